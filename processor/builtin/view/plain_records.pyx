# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Aggregates the plain records of a partition by group, compiled: JSON texts are read in place, without parsing them.

Parsing a record and its former state, and making the objects of both contributions, took most of the time before.

The key of a group is that of `processor.values.key_text`, the key of a part that of `processor.wire.view_parts`, and its
value the JSON that `processor.builtin.view.stage_output` writes.

A record is plain if its text is as orjson writes it and has ASCII characters without escapes alone, its grouping value
is a text, an integer, null or missing, and the arguments of the aggregates are numbers of few digits, null or missing.
Whether it is plain depends on its text alone, so that a former state is found where it was added. All others are left
to the caller, which adds up both.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp

from processor.builtin.delta_merge.json_canonical cimport is_canonical
from processor.builtin.delta_merge.json_text cimport Member, Seen, grown, is_named, read_member, text
from processor.builtin.delta_merge.key_text cimport murmur2
from processor.builtin.view.plain_texts cimport (
    LENGTH_BYTES, NUMBER_BYTES_MAX, Number, put_bytes, put_group, put_member_key, put_number, read_key, read_number
)
from processor.builtin.view.plain_totals cimport ARGUMENTS_MAX, Aggregates, Totals

cdef enum:
    ASIDE_SHARE = 8  # One of so many values that are kept is set aside.

cdef struct Reading:
    text group       # its text in keys: within its quotes, or with them
    Py_ssize_t group_size
    Number numbers[ARGUMENTS_MAX]


cdef class PlainRecords:
    """The plain records of one partition by group, as sums and extremes.

    Groups can be set aside: `set_aside` returns their totals, and forgets them. From the first one on, a group that is not
    in memory begins as a change, to which `settle` adds the totals that were set aside.

    An extreme keeps the values nearest to it. A group of which none of these is left, and others were forgotten, is
    incomplete: `begin_refill` and `refill` of all records fill it, and others of which few are left, so that they do not
    ask for it soon. Each may keep twice as many then: where extremes leave one after the other, as the least of times that
    advance, the values that are read for each that leaves get fewer by half each time. Of more than `room_max` values of the
    partition, 16 bytes each, an extreme keeps no more than 16; a group that is set aside has one of 8 that it may keep.
    """

    cdef dict groups
    cdef readonly bint has_set_aside
    cdef list unsettled
    cdef bytes group_name
    cdef list names
    cdef Py_ssize_t arguments
    cdef int64_t partition
    cdef Aggregates aggregates
    cdef bint is_refilling
    cdef object new, stored
    cdef char *buffer

    def __init__(self, *, bytes group_name, list names, states, int64_t partition, stored, kept_max, room_max):
        """Begin without records.

        Args:
            group_name: the grouping member's name, as JSON.
            names: those of the arguments, at most `ARGUMENTS_MAX`.
            states: of each value of a part the argument, and `count`, `moments`, `MIN` or `MAX`.
            partition: the number of the partition.
            stored: the type of a state.
            kept_max: most values that an extreme keeps before it is filled again, at least 2.
            room_max: values of all groups beyond which an extreme that gets a value keeps few.
        """
        self.groups, self.unsettled, self.has_set_aside = {}, [], False
        self.group_name, self.names, self.arguments = group_name, names, len(names)
        self.aggregates = Aggregates(len(names), states, kept_max, room_max)
        self.partition, self.new, self.stored = partition, tuple.__new__, stored

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def __len__(self):
        """Number of groups."""
        return len(self.groups)

    def __contains__(self, key):
        """Return whether a group has plain records."""
        return key in self.groups

    def keys(self):
        """Return the groups that have plain records."""
        return list(self.groups)

    def totals(self, key):
        """Return the totals of a group, with the extremes alone of their values; None: it has no records."""
        cdef Totals totals = self.groups.get(key)
        return None if totals is None else totals.plain(1)

    def set_aside(self, Py_ssize_t count, others):
        """Forget so many groups but `others`, and those being refilled; returns their totals.

        None of them is a change. Those longest in memory are the first.
        """
        cdef dict result = {}
        cdef Totals totals
        for group, totals in self.groups.items():
            if len(result) >= count:
                break
            if group not in others and not totals.is_refilled:
                result[group] = totals.plain(max(1, self.aggregates.kept_max // ASIDE_SHARE))
        for group in result:
            self.forget(group)
        self.has_set_aside = self.has_set_aside or bool(result)
        return result

    cdef int forget(self, bytes group) except -1:
        """Forget a group."""
        cdef Totals totals = self.groups.pop(group)
        totals.free()
        return 0

    def begin_refill(self):
        """Begin to read again the values of all groups with an extreme of which few are left; no group is a change."""
        cdef Totals totals
        self.is_refilling = True
        for totals in self.groups.values():
            totals.begin_refill()

    def refill(self, value):
        """Add the values of a record to the extremes of its group if it is being refilled; False: it is not plain."""
        cdef Reading reading
        cdef Totals totals
        if not self.read(value, &reading):
            return False
        totals = self.groups.get(PyBytes_FromStringAndSize(reading.group, reading.group_size))
        if totals is not None and totals.is_refilled:
            totals.change_values(reading.numbers, 1)
        return True

    def end_refill(self):
        """Note that all records have been read again."""
        cdef Totals totals
        self.is_refilling = False
        for totals in self.groups.values():
            totals.is_refilled = False

    def unknown(self, groups):
        """Return those of the groups, and of all that are changes, whose totals may have been set aside."""
        if not self.has_set_aside:
            return []
        return [*self.unsettled, *[group for group in groups if group not in self.groups]]

    def settle(self, dict aside):
        """Add what was set aside to the changes of groups, which are changes no more.

        Args:
            aside: for each group that `unknown` returned what `set_aside` did; None: there is nothing.
        """
        cdef Totals totals
        self.unsettled = []
        for group, former in aside.items():
            totals = self.groups.get(group)
            if totals is None:
                if former is None:
                    continue
                totals = self.groups[group] = Totals(self.aggregates)
            totals.settle(former)

    def parts(self, changed, others, set sent, list outgoing, list added, list left, list held):
        """Append the part of each changed group to the list of its partition, or a tombstone where it has no members.

        Args:
            changed: the groups.
            others: those among them, and more, that are left to the caller.
            sent: the groups of which a part was sent.
            outgoing: for each partition of the parts its records to send: key, value and headers.
            added: gets the groups of which no part was sent before.
            left: gets those of which no part is left.
            held: gets those with an extreme that is not known.

        Returns:
            The groups that are left to the caller, and those whose sums are no int64.
        """
        cdef list rest = []
        cdef bytes group
        cdef Totals totals
        cdef uint32_t partitions = len(outgoing), partition
        for group in changed:
            totals = self.groups.get(group)
            if totals is not None and totals.members and totals.is_incomplete():
                held.append(group)
                continue
            if others and group in others:
                rest.append(group)
                continue
            if totals is not None and totals.members == 0:
                self.forget(group)
                totals = None
            value = None
            if totals is not None:
                value = self.value(group, totals)
                if value is None:
                    rest.append(group)
                    continue
                if group not in sent:
                    added.append(group)
            elif group in sent:
                left.append(group)
            else:
                continue
            partition = (murmur2(PyBytes_AS_STRING(group), PyBytes_GET_SIZE(group)) & 0x7FFFFFFFU) % partitions
            (<list>outgoing[partition]).append((self.part_key(group), value, []))
        return rest

    cdef bytes part_key(self, bytes group):
        """Return the key of a group's part."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(group)
        cdef char *begin = self.room(LENGTH_BYTES + size + 1 + NUMBER_BYTES_MAX)
        cdef char *end = put_number(put_member_key(begin, PyBytes_AS_STRING(group), size), self.partition)
        return PyBytes_FromStringAndSize(begin, end - begin)

    cdef bytes value(self, bytes group, Totals totals):
        """Return the part of a group; None: a sum is no int64."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(group)
        # A digit more than the most, for what separates numbers.
        cdef char *begin = self.room(size + (8 + 4 * self.aggregates.states) * (NUMBER_BYTES_MAX + 2))
        cdef char *at = begin
        at = put_number(put_bytes(at, b"[0,", 3), self.partition)
        at = put_group(put_bytes(at, b",0,[", 4), PyBytes_AS_STRING(group), size)
        at = totals.put(put_bytes(at, b"],[", 3))
        if at == NULL:
            return None
        at = put_bytes(at, b"]]", 2)
        return PyBytes_FromStringAndSize(begin, at - begin)

    cdef char *room(self, Py_ssize_t size) except NULL:
        """Return memory for so many bytes, which the next call gives away again."""
        self.buffer = <char *>grown(self.buffer, size)
        return self.buffer

    def add(self, bytes value, dict changed):
        """Add a record; False, and nothing done, if it is not plain."""
        cdef Reading reading
        if not self.read(value, &reading):
            return False
        self.change(&reading, 1, changed, False)
        return True

    def others(self, records):
        """Return the records that are not plain; those without a value are."""
        cdef Reading reading
        cdef list left = []
        for record in records:
            value = record[1]
            if record[0] is None or (value is not None and not self.read(value, &reading)):
                left.append(record)
        return left

    def fold(self, records, dict rows, dict changes, dict changed, list added, list removed, after, bint is_complete):
        """Replace the former states of records by the next ones, in order.

        Args:
            records: the records, of which those without a key are left to the caller, in `added`.
            rows: the state of each key, which is kept up to date.
            changes: gets the states that changed.
            changed: gets the groups that changed.
            added: gets the records that are not plain, and count.
            removed: gets key and value of former states that are not plain, and counted.
            after: the key up to which records count, or of groups being refilled their values; None: none does.
            is_complete: whether all count.
        """
        cdef Reading new, old
        cdef bint is_new, is_old, has_new, has_old, is_behind
        cdef Totals totals
        for record in records:
            key, value = record[0], record[1]
            if key is None:
                added.append(record)
                continue
            stored = rows.get(key)
            has_new, has_old = value is not None, stored is not None
            is_behind = (not is_complete or self.is_refilling) and (after is None or key > after)
            if is_complete or not is_behind:
                is_new, is_old = has_new and self.read(value, &new), has_old and self.read(stored[1], &old)
                if (
                    is_new and is_old and new.group_size == old.group_size
                    and memcmp(new.group, old.group, new.group_size) == 0
                ):
                    group = PyBytes_FromStringAndSize(new.group, new.group_size)
                    totals = self.of_group(group)
                    if totals.replace(old.numbers, new.numbers, not (is_behind and totals.is_refilled)):
                        changed[group] = None
                else:
                    if is_new:
                        self.change(&new, 1, changed, is_behind)
                    elif has_new:
                        added.append(record)
                    if is_old:
                        self.change(&old, -1, changed, is_behind)
                    elif has_old:
                        removed.append((key, stored[1]))
            state = self.new(self.stored, (1, value, 0, -1, b"", b"")) if has_new else None
            rows[key] = changes[key] = state

    cdef int change(self, Reading *reading, int times, dict changed, bint is_behind) except -1:
        """Add a record to its group, or remove it with `times` -1; one behind the others that are being read again."""
        cdef bytes group = PyBytes_FromStringAndSize(reading.group, reading.group_size)
        cdef Totals totals = self.of_group(group)
        totals.change(reading.numbers, times, not (is_behind and totals.is_refilled))
        if totals.members == 0 and not self.has_set_aside:
            self.forget(group)  # Else `parts` does it: it would begin again as a change.
        changed[group] = None
        return 0

    cdef Totals of_group(self, bytes group):
        """Return the totals of a group."""
        cdef Totals totals = self.groups.get(group)
        if totals is None:
            totals = self.groups[group] = Totals(self.aggregates)
            totals.is_change = self.has_set_aside
            if totals.is_change:
                totals.log = []
                self.unsettled.append(group)
        return totals

    cdef bint read(self, value, Reading *reading) except -1:
        """Read the members that count; False if the record is not plain."""
        if not PyBytes_CheckExact(value):
            return False
        cdef text at = PyBytes_AS_STRING(value)
        cdef text end = at + PyBytes_GET_SIZE(value)
        cdef Py_ssize_t place
        cdef Member member
        cdef Seen seen
        cdef bytes name
        if not is_canonical(at, end):
            return False
        reading.group, reading.group_size = at, 0  # NULL, unless the member is there.
        for place in range(self.arguments):
            reading.numbers[place].is_there = False
        if end - at == 2:
            return True
        while at[0] != b'}':
            at = read_member(at + 1, end, &member, &seen)
            if at == NULL:
                return False
            if is_named(&member, PyBytes_AS_STRING(self.group_name), PyBytes_GET_SIZE(self.group_name)):
                if not read_key(&member, &reading.group, &reading.group_size):
                    return False
            for place in range(self.arguments):
                name = <bytes>self.names[place]
                if is_named(&member, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
                    if not read_number(member.value, member.end, &reading.numbers[place]):
                        return False
        return True
