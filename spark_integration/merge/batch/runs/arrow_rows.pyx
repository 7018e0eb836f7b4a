# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Reads the buffers of an Arrow batch of records, and writes those of another, without an object for each record."""

from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcmp

from processor.builtin.delta_merge.json_text cimport text


cdef class Rows:
    """Output records as the buffers of Arrow columns: key, value and headers."""

    def __cinit__(self):
        cdef int number
        for number in range(ROW_BUFFERS):
            self.buffers[number] = Buffer(NULL, 0, 0)
        self.count = self.headers = 0

    def __dealloc__(self):
        cdef int number
        for number in range(ROW_BUFFERS):
            PyMem_Free(self.buffers[number].data)

    def take(self):
        """Take the buffers of all rows: keys, values and a byte for each that is set, counts of headers, names, texts."""
        cdef int number
        cdef list parts = []
        for number in range(ROW_BUFFERS):
            parts.append(taken(&self.buffers[number]))
        self.count = self.headers = 0
        return parts

    cdef int begin(self, text key, Py_ssize_t key_size, text value, Py_ssize_t value_size) except -1:
        """Begin a row, with the value NULL for none; `end` ends it, after its headers."""
        cdef uint8_t is_set = value != NULL
        put(&self.buffers[KEYS], key, key_size)
        put_end(&self.buffers[KEY_ENDS], self.buffers[KEYS].used)
        if is_set:  # C's memcpy may assume that no pointer is NULL, also for no bytes.
            put(&self.buffers[VALUES], value, value_size)
        put(&self.buffers[VALUES_SET], &is_set, 1)
        return put_end(&self.buffers[VALUE_ENDS], self.buffers[VALUES].used)

    cdef int header(self, text name, Py_ssize_t name_size, text value, Py_ssize_t size) except -1:
        put(&self.buffers[NAMES], name, name_size)
        put_end(&self.buffers[NAME_ENDS], self.buffers[NAMES].used)
        put(&self.buffers[TEXTS], value, size)
        self.headers += 1
        return put_end(&self.buffers[TEXT_ENDS], self.buffers[TEXTS].used)

    cdef int end(self) except -1:
        self.count += 1
        return put_end(&self.buffers[HEADER_ENDS], self.headers)

    cdef Py_ssize_t size(self) noexcept:
        return self.buffers[VALUES].used + self.buffers[TEXTS].used + self.buffers[KEYS].used

    cdef void mark(self, Py_ssize_t *marks) noexcept:
        """Note the place to which `back` goes."""
        cdef int number
        for number in range(ROW_BUFFERS):
            marks[number] = self.buffers[number].used
        marks[ROW_BUFFERS] = self.count
        marks[ROW_BUFFERS + 1] = self.headers

    cdef void back(self, const Py_ssize_t *marks) noexcept:
        cdef int number
        for number in range(ROW_BUFFERS):
            self.buffers[number].used = marks[number]
        self.count = marks[ROW_BUFFERS]
        self.headers = marks[ROW_BUFFERS + 1]


cdef class Chunk:
    """The addresses of the buffers of a batch; whoever makes it keeps the batch."""

    def __init__(
        self, Py_ssize_t rows, uintptr_t key_ends, uintptr_t keys, uintptr_t values_valid, Py_ssize_t values_bit,
        uintptr_t value_ends, uintptr_t values, uintptr_t offsets, uintptr_t header_ends, uintptr_t name_ends,
        uintptr_t names, uintptr_t texts_valid, Py_ssize_t texts_bit, uintptr_t text_ends, uintptr_t texts,
        uintptr_t repeats,
    ):
        self.rows = rows
        self.key_ends, self.keys = <const int32_t *>key_ends, <text>keys
        self.values_valid, self.values_bit = <const uint8_t *>values_valid, values_bit
        self.value_ends, self.values = <const int32_t *>value_ends, <text>values
        self.offsets, self.header_ends = <const int64_t *>offsets, <const int32_t *>header_ends
        self.name_ends, self.names = <const int32_t *>name_ends, <text>names
        self.texts_valid, self.texts_bit = <const uint8_t *>texts_valid, texts_bit
        self.text_ends, self.texts = <const int32_t *>text_ends, <text>texts
        self.repeats = <const uint8_t *>repeats

    cdef bint is_same_key(self, Py_ssize_t one, Py_ssize_t other) noexcept:
        cdef Py_ssize_t size = self.key_ends[one + 1] - self.key_ends[one]
        return (
            self.key_ends[other + 1] - self.key_ends[other] == size
            and memcmp(self.keys + self.key_ends[one], self.keys + self.key_ends[other], size) == 0
        )
