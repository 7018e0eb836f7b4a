# cython: language_level=3
"""Rows where Arrow has them: those of a batch that is read, and those of one that is written."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from processor.builtin.delta_merge.json_text cimport grown, text

cdef struct Buffer:
    char *data
    Py_ssize_t used
    Py_ssize_t room


cdef inline int put(Buffer *buffer, const void *data, Py_ssize_t size) except -1:
    """Append bytes."""
    cdef Py_ssize_t room
    if buffer.used + size > buffer.room:
        room = max(4096, 2 * (buffer.used + size))
        buffer.data = <char *>grown(buffer.data, room)
        buffer.room = room
    memcpy(buffer.data + buffer.used, data, size)
    buffer.used += size
    return 0


cdef inline int put_end(Buffer *ends, Py_ssize_t end) except -1:
    cdef int32_t number = <int32_t>end
    return put(ends, &number, sizeof(int32_t))


cdef inline bytes taken(Buffer *buffer):
    cdef bytes data = PyBytes_FromStringAndSize(buffer.data, buffer.used)
    buffer.used = 0
    return data


cdef enum:
    KEYS
    KEY_ENDS
    VALUES
    VALUE_ENDS
    VALUES_SET
    HEADER_ENDS
    NAMES
    NAME_ENDS
    TEXTS
    TEXT_ENDS
    ROW_BUFFERS


cdef class Rows:
    cdef Buffer[ROW_BUFFERS] buffers
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t headers

    cdef int begin(self, text key, Py_ssize_t key_size, text value, Py_ssize_t value_size) except -1
    cdef int header(self, text name, Py_ssize_t name_size, text value, Py_ssize_t size) except -1
    cdef int end(self) except -1
    cdef Py_ssize_t size(self) noexcept
    cdef void mark(self, Py_ssize_t *marks) noexcept
    cdef void back(self, const Py_ssize_t *marks) noexcept


cdef class Chunk:
    cdef Py_ssize_t rows
    cdef const int32_t *key_ends
    cdef text keys
    cdef const uint8_t *values_valid
    cdef Py_ssize_t values_bit
    cdef const int32_t *value_ends
    cdef text values
    cdef const int64_t *offsets
    cdef const int32_t *header_ends
    cdef const int32_t *name_ends
    cdef text names
    cdef const uint8_t *texts_valid
    cdef Py_ssize_t texts_bit
    cdef const int32_t *text_ends
    cdef text texts
    cdef const uint8_t *repeats

    cdef bint is_same_key(self, Py_ssize_t one, Py_ssize_t other) noexcept


cdef inline bint is_valid(const uint8_t *bits, Py_ssize_t place) noexcept:
    return bits == NULL or (bits[place >> 3] >> (place & 7)) & 1


cdef inline bint is_word(text at, Py_ssize_t size, text word, Py_ssize_t word_size) noexcept:
    return size == word_size and memcmp(at, word, size) == 0


cdef inline bint is_ascii(text at, Py_ssize_t size) noexcept:
    cdef Py_ssize_t place
    for place in range(size):
        if <unsigned char>at[place] >= 0x80:
            return False
    return True
