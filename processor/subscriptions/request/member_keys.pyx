# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Places records in the order of one member of theirs, compiled: its value is found in the JSON text, which is not parsed.

Why: the first window of an order looks at every record. To parse a record of 150 bytes, and to evaluate the order on it,
took most of that time; here its text is gone through once, and the value alone is parsed.

A key is that of `SortOrder.key`. It is left to the caller for a record whose text is not compact, has an escape in a
name, or keeps every digit of a number (`processor.codec.exact`). An order by anything else is not for this class.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_SetItem
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport Py_LT, PyObject_RichCompareBool
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memchr

from processor.builtin.delta_merge.json_text cimport Member, Seen, is_named, read_member, text

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject *)

cdef enum:
    DIGITS_MAX = 18
    ZERO = 48  # The digit.
    MARK = 32  # `exact.MARK`

cdef double WHOLE_BEGIN = 2.0**53


cdef bint read_integer(text at, text end, int64_t *number) noexcept:
    """Read an integer of few digits; False for any other value."""
    cdef bint is_negative = at[0] == b'-'
    if is_negative:
        at += 1
    if end - at > DIGITS_MAX or at >= end or (is_negative and at[0] == b'0'):
        return False
    number[0] = 0
    while at < end:
        if not b'0' <= at[0] <= b'9':
            return False
        number[0] = number[0] * 10 + (at[0] - ZERO)
        at += 1
    if is_negative:
        number[0] = -number[0]
    return True


cdef inline tuple untracked(tuple sort_key):
    """Take a tuple of a number and bytes, which is in no cycle, from the collector: it would look at each one once."""
    PyObject_GC_UnTrack(<PyObject *>sort_key)
    return sort_key


cdef class MemberKeys:
    """The sort keys of one topic's records."""

    cdef bytes name
    cdef bint is_falling
    cdef object parse, ranked, number_rank, null_rank, is_over

    def __init__(self, bytes name, *, bint is_falling, parse, ranked, is_over):
        """Take what is needed.

        Args:
            name: the member's name as JSON.
            is_falling: whether the highest value comes first.
            parse: parses a JSON text.
            ranked: the place of a value, in this direction.
            is_over: returns whether a record had expired by a time.
        """
        self.name, self.is_falling, self.parse, self.ranked, self.is_over = name, is_falling, parse, ranked, is_over
        self.number_rank = ranked(1)[0]

    def scan(
        self, records, Py_ssize_t records_max, Py_ssize_t bytes_max, object over_ms, dict left_out, key_of,
        sort_keys, list scanned, list first, first_end,
    ):
        """Add the keys of the next records; returns whether there are no more.

        Args:
            records: the records, an iterator.
            records_max: how many to take.
            bytes_max: after so many bytes of values no more are taken.
            over_ms: those that had expired by this time are left out.
            left_out: SOW keys of records that are left out, too.
            key_of: finds the sort key of a record in any form.
            sort_keys: each sort key is put there by its SOW key,
            scanned: appended there,
            first: and there if it is below `first_end`.
            first_end: a sort key; None: each is below it.
        """
        cdef object record, headers, key, sort_key
        cdef bint has_left_out = bool(left_out)
        while records_max > 0 and bytes_max > 0:
            record = next(records, None)
            if record is None:
                return True
            records_max -= 1
            if (<tuple>record)[1] is not None:
                bytes_max -= len((<tuple>record)[1])
            headers = (<tuple>record)[2]
            key = (<tuple>record)[0] or b""
            # A record of one header has a version alone.
            if type(headers) is list and PyList_GET_SIZE(headers) > 1 and self.is_over(record, over_ms):
                continue
            if has_left_out and key in left_out:
                continue
            sort_key = self._key(<tuple>record, key)
            if sort_key is None:
                sort_key = key_of(record)
            PyDict_SetItem(sort_keys, key, sort_key)  # A subclass, which changes nothing here.
            scanned.append(sort_key)
            if first_end is None or PyObject_RichCompareBool(sort_key, first_end, Py_LT):
                first.append(sort_key)
        return False

    cdef object _key(self, tuple record, object key):
        """The sort key of a record; None where it is left to the caller."""
        cdef object data = record[1], value
        cdef text at, end, begin = NULL, value_end = NULL
        cdef Member member
        cdef Seen seen
        cdef int64_t number = 0
        cdef double real
        cdef Py_ssize_t name_size = PyBytes_GET_SIZE(self.name)
        cdef text name = PyBytes_AS_STRING(self.name)
        if not PyBytes_CheckExact(data):
            return None
        at = PyBytes_AS_STRING(data)
        end = at + PyBytes_GET_SIZE(data)
        if end - at < 2 or at[0] != b'{' or (end - 1)[0] != b'}':  # Such as `MARK` at its end.
            return None
        at += 1
        if at[0] != b'}':
            while True:
                at = read_member(at, end, &member, &seen)
                if at == NULL:
                    return None
                if is_named(&member, name, name_size):
                    begin, value_end = member.value, member.end  # Of a name that comes twice the last one counts.
                elif memchr(member.name, b'\\', member.name_size) != NULL:
                    return None
                if at[0] == b'}':
                    break
                at += 1
        if at + 1 != end:
            return None
        if begin == NULL:
            return (*self.ranked(None), key)
        if read_integer(begin, value_end, &number):
            return untracked((self.number_rank, -number if self.is_falling else number, key))
        try:
            value = self.parse(PyBytes_FromStringAndSize(begin, value_end - begin))
        except ValueError:
            return None  # The caller says what is wrong with it.
        if PyFloat_CheckExact(value):
            real = PyFloat_AS_DOUBLE(value)
            if -WHOLE_BEGIN < real < WHOLE_BEGIN:
                return untracked((self.number_rank, -real if self.is_falling else value, key))
        return (*self.ranked(value), key)
