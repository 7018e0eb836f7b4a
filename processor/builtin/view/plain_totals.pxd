# cython: language_level=3
"""The totals of one group of plain records, for those who keep them; see the module itself."""

from libc.stdint cimport int64_t

from processor.builtin.view.plain_nearest cimport Nearest
from processor.builtin.view.plain_texts cimport Number

cdef enum:
    ARGUMENTS_MAX = 8
    STATES_MAX = 32  # A count, the moments, the least and the greatest value of each argument.
    EXTREMES_MAX = 16


cdef class Aggregates:
    cdef Py_ssize_t arguments, states, extremes
    cdef Py_ssize_t[STATES_MAX] argument_of
    cdef bint[STATES_MAX] is_count
    cdef Py_ssize_t[STATES_MAX] extreme_of  # -1: it is none.
    cdef bint[ARGUMENTS_MAX] has_sum
    cdef Py_ssize_t[EXTREMES_MAX] extreme_argument
    cdef bint[EXTREMES_MAX] is_greatest
    cdef Py_ssize_t kept_max, room_max, room


cdef class Totals:
    cdef bint is_change
    cdef bint is_refilled  # The values of its extremes are being read again.
    cdef int64_t members
    cdef Aggregates of
    cdef int64_t[ARGUMENTS_MAX] counts
    cdef int[ARGUMENTS_MAX] decimals
    cdef list sums
    cdef Py_ssize_t extremes
    cdef Nearest *nearest
    cdef list log  # Of a change: extreme, number, decimals, and 1 or -1.

    cdef int change(self, Number *numbers, int times, bint has_values) except -1
    cdef bint replace(self, Number *old, Number *new, bint has_values) except -1
    cdef int change_values(self, Number *numbers, int times) except -1
    cdef int begin_refill(self) except -1
    cdef bint is_incomplete(self) noexcept
    cdef int settle(self, former) except -1
    cdef tuple plain(self, Py_ssize_t share)
    cdef char *put(self, char *at) except? NULL
    cdef void free(self) noexcept
    cdef int add_sum(self, Py_ssize_t place, object value, int decimals) except -1
    cdef int replace_sum(self, Py_ssize_t place, Number *old, Number *new) except -1
    cdef bint replace_value(self, Py_ssize_t each, Number *old, Number *new) except -1
    cdef int change_value(self, Py_ssize_t each, Number *number, int times) except -1
