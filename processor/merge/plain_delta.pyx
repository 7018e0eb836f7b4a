# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Writes the delta from one plain record to the next, compiled: JSON texts are compared in place, without parsing them.

To parse both records, compare them and write the difference took a third of a written row's time. The bytes are those
that `processor.merge.diff` and the message type `json` make. A text is plain if it is as orjson writes it, with ASCII
characters without escapes alone; then equal values have equal bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from processor.builtin.delta_merge.json_canonical cimport NAMES_MAX, is_canonical
from processor.builtin.delta_merge.json_text cimport Member, Seen, is_named, is_same, read_member, text


cdef class PlainDelta:
    """Writes deltas of the records of a topic, and the outputs of records that changed."""

    cdef list names
    cdef object new, stored, headers_of_version

    def __init__(self, list names, stored, headers_of_version):
        """Take the names of the key fields, all at the top, as JSON, the type of a state, and what makes its headers."""
        self.names, self.new, self.stored, self.headers_of_version = names, tuple.__new__, stored, headers_of_version

    def updates(self, records, dict states, dict changes, list sow, list deltas):
        """Make the outputs of the records that differ from their states, with no header but the version.

        Args:
            records: by key, encoded and no larger than allowed; None deletes.
            states: the state of each key.
            changes: gets the states that changed.
            sow: gets the SOW records.
            deltas: gets the delta records, for the same keys.

        Returns:
            The records that are left to the caller: new ones, deletes, and those for which `__call__` returns None.
        """
        cdef dict left = {}
        cdef bytes value, former, delta
        for key, record in records.items():
            old = states[key]
            value, former = record, None if old is None else old[1]
            if value is None or former is None:
                left[key] = value
                continue
            if value == former:
                continue
            delta = self(former, value)
            if delta is None:
                left[key] = value
                continue
            headers = self.headers_of_version(old[0] + 1)
            changes[key] = self.new(self.stored, (old[0] + 1, value, 0, -1, b"", b""))
            sow.append((key, value, headers))
            deltas.append((key, delta, headers))
        return left

    def __call__(self, bytes old, bytes new):
        """Return the delta between two records, with the key fields of the new one in front.

        None: a text is not plain, a member is gone or nothing has changed, which headers say, or the value that has
        changed is an object or an array.
        """
        cdef Member[NAMES_MAX] before
        cdef Member[NAMES_MAX] after
        cdef Member[NAMES_MAX] put
        cdef Py_ssize_t olds = members_of(old, before), news = members_of(new, after)
        cdef Py_ssize_t puts = 0, keys, number, place, known = 0, size = 1
        cdef bint has_changed = False
        cdef bytes name, delta
        cdef char *at
        if olds < 0 or news < 0:
            return None
        for name in self.names:
            place = place_of(after, news, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), 0)
            if place >= 0 and puts < NAMES_MAX:
                put[puts] = after[place]
                puts += 1
        keys = puts
        for number in range(news):
            place = place_of(before, olds, after[number].name, after[number].name_size, number)
            known += place >= 0
            if place >= 0 and is_same(&before[place], &after[number]):
                continue
            has_changed = True
            if after[number].value[0] == b'{' or after[number].value[0] == b'[':
                return None
            if place_of(put, keys, after[number].name, after[number].name_size, 0) >= 0:
                continue  # A key field that has changed is there already.
            if puts == NAMES_MAX:
                return None
            put[puts] = after[number]
            puts += 1
        if known < olds or not has_changed:
            return None
        for number in range(puts):  # With the comma or brace before each.
            size += put[number].end - put[number].name + 1
        delta = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(delta)
        for number in range(puts):
            at[0] = b',' if number else b'{'
            memcpy(at + 1, put[number].name, put[number].end - put[number].name)
            at += put[number].end - put[number].name + 1
        at[0] = b'}'
        return delta


cdef Py_ssize_t members_of(bytes record, Member *members) noexcept:
    """Note the members of a record; returns their number, -1 if it is not plain."""
    cdef text at = PyBytes_AS_STRING(record)
    cdef text end = at + PyBytes_GET_SIZE(record)
    cdef Py_ssize_t count = 0
    cdef Seen seen
    if not is_canonical(at, end):
        return -1
    if end - at == 2:
        return 0
    while at[0] != b'}':
        if count == NAMES_MAX:
            return -1
        at = read_member(at + 1, end, &members[count], &seen)
        if at == NULL:
            return -1
        count += 1
    return count


cdef Py_ssize_t place_of(const Member *members, Py_ssize_t count, text name, Py_ssize_t size, Py_ssize_t near) noexcept:
    """The place of a member by its name, -1 if there is none; it is mostly near a place."""
    cdef Py_ssize_t number
    if near < count and is_named(&members[near], name, size):
        return near
    for number in range(count):
        if is_named(&members[number], name, size):
            return number
    return -1
