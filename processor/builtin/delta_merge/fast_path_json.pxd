# cython: language_level=3
"""The parts of the compiled merge that other compiled loops use: Spark's `json_runs` merges texts by them."""

from libc.stdint cimport int64_t, uint32_t

from processor.builtin.delta_merge.json_text cimport Edit, Member, text
from processor.builtin.delta_merge.key_text cimport KEY_FIELDS_MAX, KeyField

cdef enum:
    EDITS_MAX = 256


cdef class CompiledDeltas:
    cdef object read, write, survives, stored, new, empty, insert_header, version_name, lives
    cdef tuple names
    cdef Py_ssize_t bytes_max, key_bytes_max, depth_max
    cdef bint keeps_nulls, ignores_nulls
    cdef uint32_t partition, partitions
    cdef int64_t base, ended  # As of the lives.
    # Of the record at hand.
    cdef Member *members
    cdef Py_ssize_t members_used, members_room
    cdef Edit edits[EDITS_MAX]
    cdef Py_ssize_t edits_used, looks, bytes_readable
    cdef Py_ssize_t made_bytes, work  # Of the batch at hand.
    cdef char *delta_text
    cdef Py_ssize_t delta_used, delta_room
    cdef KeyField[KEY_FIELDS_MAX] key_fields
    cdef Py_ssize_t key_count

    cdef bint take_plain(self, object record, dict states, dict changed, list sow, list delta) except -1
    cdef bint is_own(self, bytes key) noexcept
    cdef bint is_plain_state(self, object old) except -1
    cdef bint insert(self, bytes record) except -1
    cdef bint merge(self, bytes record, bytes delta) except -1
    cdef bint merge_texts(self, text old, Py_ssize_t old_size, text new, Py_ssize_t new_size) except -1
    cdef bint fold(self, text old, text old_end, text new, text new_end, bint is_record) except -1
    cdef bint index(self, text at, text end) except -1
    cdef Py_ssize_t find(self, Py_ssize_t first, Py_ssize_t count, text name, Py_ssize_t size, Py_ssize_t *place) noexcept
    cdef int write_name(self, const Member *member) except -1
    cdef int write_member(self, const Member *member) except -1
    cdef int write_text(self, text at, Py_ssize_t size) except -1
