# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Adds up the combined parts of groups and writes the groups' rows, compiled: parts are read in place, without parsing them.

To parse a part and the one that it replaces, and to make the objects of a group and its row, took half to two thirds of the
second stage's time.

A part is plain if its numbers have few digits, and its grouping value is the one that is written for its key: not so
1.0, which has the key of 1. All others are left to the caller, in Python; a group is plain if all its parts are.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp

from processor.builtin.delta_merge.json_canonical cimport INT_DIGITS_MAX, canonical_number
from processor.builtin.delta_merge.json_text cimport grown, text
from processor.builtin.view.plain_nearest cimport Nearest, add_key, begin_again, key_of, number_of, remove_key
from processor.builtin.view.plain_texts cimport (
    LENGTH_BYTES, Number, is_integer_key, put_bytes, put_decimal, put_group, put_number, read_integer, read_number,
    skip_text
)

cdef enum:
    STATES_MAX = 32  # A count, the moments, the least and the greatest value of each argument.
    DECIMALS_MAX = 16
    FLOAT_BYTES_MAX = 32

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef int64_t TOTAL_MAX = 4 * 10**18  # A number of 18 digits can be added to it.
cdef int64_t[DECIMALS_MAX + 1] TENS
for _power in range(DECIMALS_MAX + 1):
    TENS[_power] = 10**_power

cdef enum Kind:
    COUNT
    MOMENTS
    LEAST
    GREATEST

cdef struct State:  # A count, and the sum of an argument's numbers with so many decimals; or the extremes of parts.
    int64_t count
    int64_t total
    int decimals
    Nearest nearest

cdef struct Value:  # Of a part.
    int64_t count
    int64_t total
    int decimals
    Number extreme

cdef struct Part:
    int64_t members
    Value values[STATES_MAX]

cdef dict KINDS = {"count": COUNT, "moments": MOMENTS, "MIN": LEAST, "MAX": GREATEST}


cdef class PlainGroup:
    """The aggregates of a group with plain parts alone."""

    cdef bytes key
    cdef readonly int64_t members
    cdef Py_ssize_t count
    cdef State *states

    def __cinit__(self, bytes key, Py_ssize_t states):
        self.key, self.count = key, states
        self.states = <State *>PyMem_Calloc(states or 1, sizeof(State))
        if self.states == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t place
        if self.states != NULL:
            for place in range(self.count):
                begin_again(&self.states[place].nearest)
        PyMem_Free(self.states)

    @property
    def values_kept(self):
        """Number of values in memory: an extreme has one for each partition of the input."""
        cdef Py_ssize_t place, count = 1 + self.count
        for place in range(self.count):
            count += self.states[place].nearest.count
        return count


cdef class PlainGroups:
    """Adds up the combined parts of groups, and writes the groups' rows."""

    cdef list fields
    cdef Py_ssize_t states, names_size
    cdef Kind[STATES_MAX] kinds
    cdef object number, new, stored
    cdef char *buffer

    def __init__(self, list kinds, fields, number, stored):
        """Begin without groups.

        Args:
            kinds: of each value of a part behind the members, `count`, `moments`, `MIN` or `MAX`.
            fields: of each field of a row its name with a colon, as JSON, the aggregate function, empty for the
                grouping value, and the place of its value; None: the caller makes the rows.
            number: returns the text of a function's value, made of the count, the sum and its decimals, None if the
                caller is to make the row.
            stored: the type of a state.
        """
        cdef Py_ssize_t place
        self.states, self.number, self.new, self.stored = len(kinds), number, tuple.__new__, stored
        self.fields = None if fields is None else list(fields)
        self.names_size = sum([len(name) for name, _, _ in fields or ()])
        if self.states > STATES_MAX:
            raise ValueError("too many aggregates")
        for place in range(self.states):
            self.kinds[place] = KINDS[kinds[place]]

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def group(self, bytes key, values):
        """Return the group of these parts; None: it is not plain."""
        if is_integer_key(PyBytes_AS_STRING(key), PyBytes_AS_STRING(key) + len(key)) and len(key) > INT_DIGITS_MAX:
            return None
        cdef PlainGroup group = PlainGroup(key, self.states)
        for value in values:
            if not self.change(group, None, value):
                return None
        return group

    def fold(self, parts, dict rows, groups, list others):
        """Replace the former parts of members by the next ones, in order.

        Args:
            parts: records with their groups.
            rows: the state of each key, which is kept up to date.
            groups: by key; those that are plain take the change.
            others: gets group, key, former value and value of the changes that are left to the caller. A plain group
                among these is wrong from then on.
        """
        for record, key in parts:
            value, stored = record[1], rows.get(record[0])
            former = None if stored is None else stored[1]
            group = groups.get(key)
            if type(group) is not PlainGroup or not self.change(<PlainGroup>group, former, value):
                others.append((key, record[0], former, value))
            rows[record[0]] = None if value is None else self.new(self.stored, (1, value, 0, -1, b"", b""))

    def row(self, PlainGroup group):
        """Return the row of a group with members; None: the caller makes it."""
        if self.fields is None:
            return None
        cdef Py_ssize_t size = PyBytes_GET_SIZE(group.key), place
        cdef bytes name, number
        cdef str function
        cdef State *state
        cdef Number extreme
        cdef char *at
        self.buffer = <char *>grown(self.buffer, self.names_size + len(self.fields) * (size + FLOAT_BYTES_MAX) + 2)
        at = put_bytes(self.buffer, b"{", 1)
        for name, function, place in self.fields:
            if (at - 1)[0] != b'{':
                at = put_bytes(at, b",", 1)
            at = put_bytes(at, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            if not function:
                at = put_group(at, PyBytes_AS_STRING(group.key), size)
                continue
            if place < 0:
                at = put_number(at, group.members)
                continue
            state = &group.states[place]
            if self.kinds[place] >= LEAST:
                if state.nearest.count == 0:
                    at = put_bytes(at, b"null", 4)
                else:
                    extreme = self.extreme(state, place)
                    at = put_decimal(at, &extreme)
            elif self.kinds[place] == COUNT:
                at = put_number(at, state.count)
            elif state.count == 0:
                at = put_bytes(at, b"null", 4)
            elif state.decimals == 0 and function == "SUM":
                at = put_number(at, state.total)
            else:
                number = self.number(function, state.count, state.total, state.decimals)
                if number is None or PyBytes_GET_SIZE(number) > FLOAT_BYTES_MAX - 8:
                    return None
                at = put_bytes(at, PyBytes_AS_STRING(number), PyBytes_GET_SIZE(number))
        at = put_bytes(at, b"}", 1)
        return PyBytes_FromStringAndSize(self.buffer, at - self.buffer)

    cdef Number extreme(self, const State *state, Py_ssize_t place) noexcept:
        """Return the extreme of some parts."""
        return number_of(state.nearest.kept[state.nearest.count - 1], self.kinds[place] == GREATEST)

    def part(self, PlainGroup group):
        """Return key, members and values of a group, as those of one part."""
        cdef Py_ssize_t place
        cdef State *state
        cdef Number extreme
        cdef object number
        values = [group.members]
        for place in range(self.states):
            state = &group.states[place]
            if self.kinds[place] == COUNT:
                values.append(state.count)
            elif self.kinds[place] == MOMENTS:
                values.append([state.count, state.total, state.decimals, 0])
            elif state.nearest.count == 0:
                values.append([0, None, None, None])
            else:
                extreme = self.extreme(state, place)
                number = extreme.value
                if extreme.decimals:
                    number = float(f"{extreme.value}e-{extreme.decimals}")
                values.append([1, number, None, None])
        return group.key, values

    cdef bint change(self, PlainGroup group, former, value) except -1:
        """Replace a part by the next one; None: there is none. False, and the group is wrong, if one is not plain."""
        cdef Part old, new
        if former is not None:
            if not self.read(group.key, former, &old):
                return False
            if not self.add(group, &old, -1):
                return False
        if value is not None:
            if not self.read(group.key, value, &new):
                return False
            return self.add(group, &new, 1)
        return True

    cdef bint add(self, PlainGroup group, Part *part, int times) except -1:
        """Add a part, or remove it with `times` -1; False if a sum has too many digits."""
        cdef Py_ssize_t place
        cdef State *state
        cdef Value *value
        cdef int64_t total
        group.members += times * part.members
        for place in range(self.states):
            state, value = &group.states[place], &part.values[place]
            if self.kinds[place] >= LEAST:
                if value.extreme.is_there and times > 0:
                    add_key(&state.nearest, key_of(&value.extreme, self.kinds[place] == GREATEST), PY_SSIZE_T_MAX)
                elif value.extreme.is_there:
                    remove_key(&state.nearest, key_of(&value.extreme, self.kinds[place] == GREATEST))
                continue
            state.count += times * value.count
            if self.kinds[place] == COUNT:
                continue
            total = times * value.total
            if state.decimals > value.decimals:
                if not scale(&total, state.decimals - value.decimals):
                    return False
            elif state.decimals < value.decimals:
                if not scale(&state.total, value.decimals - state.decimals):
                    return False
                state.decimals = value.decimals
            state.total += total
            if not -TOTAL_MAX < state.total < TOTAL_MAX:
                return False
        return True

    cdef bint read(self, bytes key, value, Part *part) except -1:
        """Read a part of a group, as the first stage writes it; False if it is not plain."""
        if not PyBytes_CheckExact(value):
            return False
        cdef text at = PyBytes_AS_STRING(value)
        cdef text end = at + PyBytes_GET_SIZE(value)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(key), place
        cdef int64_t ignored, decimals
        self.buffer = <char *>grown(self.buffer, size + 4)
        size = put_group(self.buffer, PyBytes_AS_STRING(key), size) - self.buffer
        at = read_integer(skip_text(at, end, b"[0,", 3), end, &ignored)
        at = skip_text(skip_text(skip_text(at, end, b",0,[", 4), end, self.buffer, size), end, b"],[", 3)
        at = read_integer(at, end, &part.members)
        for place in range(self.states):
            at = skip_text(at, end, b",", 1)
            if self.kinds[place] >= LEAST:
                at = read_extreme(at, end, &part.values[place].extreme)
                continue
            if self.kinds[place] == COUNT:
                at = read_integer(at, end, &part.values[place].count)
                continue
            at = read_integer(skip_text(at, end, b"[", 1), end, &part.values[place].count)
            at = read_integer(skip_text(at, end, b",", 1), end, &part.values[place].total)
            at = read_integer(skip_text(at, end, b",", 1), end, &decimals)
            at = skip_text(at, end, b",0]", 3)
            if at == NULL or not 0 <= decimals <= DECIMALS_MAX:
                return False
            part.values[place].decimals = <int>decimals
        return at != NULL and end - at == 2 and memcmp(at, b"]]", 2) == 0


cdef text read_extreme(text at, text end, Number *number) noexcept:
    """Read the extreme of a part whose values are plain numbers; the place behind it, NULL if it is another one."""
    cdef text begin = skip_text(at, end, b"[1,", 3)
    number.is_there = begin != NULL
    if begin == NULL:
        return skip_text(at, end, b"[0,null,null,null]", 18)
    at = canonical_number(begin, end) if begin < end else NULL
    if at == NULL or not read_number(begin, at, number):
        return NULL
    return skip_text(at, end, b",null,null]", 11)


cdef bint scale(int64_t *total, int decimals) noexcept:
    """Give a sum more decimals; False if it gets too many digits."""
    if decimals > DECIMALS_MAX or not -TOTAL_MAX // TENS[decimals] < total[0] < TOTAL_MAX // TENS[decimals]:
        return False
    total[0] *= TENS[decimals]
    return True


def groups_of(records):
    """Return each record with its group; raises ValueError if one is no part of a view."""
    return [(record, group_of(record[0])) for record in records]


cdef bytes group_of(key):
    """Return the group in the key of a part, as `processor.wire.view_parts` has it."""
    cdef const unsigned char *at
    cdef uint32_t size = 0
    cdef Py_ssize_t place
    if not PyBytes_CheckExact(key) or PyBytes_GET_SIZE(key) < LENGTH_BYTES:
        raise ValueError("no key of a view's part")
    at = <const unsigned char *>PyBytes_AS_STRING(key)
    for place in range(LENGTH_BYTES):
        size = size << 8 | at[place]
    if LENGTH_BYTES + <Py_ssize_t>size >= PyBytes_GET_SIZE(key):
        raise ValueError("no key of a view's part")
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(key) + LENGTH_BYTES, size)
