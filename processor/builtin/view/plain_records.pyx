# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Aggregates the plain records of a partition by group, compiled: JSON texts are read in place, without parsing them.

Parsing a record and its former state, and making the objects of both contributions, took most of the time before.

The key of a group is that of `processor.values.key_text`, the key of a part that of `processor.wire.view_parts`, and its
value the JSON that `processor.builtin.view.stage_output` writes.

A record is plain if its text is as orjson writes it and has ASCII characters without escapes alone, its grouping value
is a text, an integer, null or missing, and the arguments of the aggregates are numbers of few digits, null or missing.
Whether it is plain depends on its text alone, so that a former state is found where it was added. All others are left
to the caller, which adds up both. Sums are those of `processor.filter.aggregate.moments`: integers and a number of
decimals.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp

from processor.builtin.delta_merge.json_canonical cimport is_canonical
from processor.builtin.delta_merge.json_text cimport Member, Seen, grown, is_named, read_member, text
from processor.builtin.delta_merge.key_text cimport murmur2
from processor.builtin.view.plain_texts cimport (
    LENGTH_BYTES, NUMBER_BYTES_MAX, Number, put_bytes, put_group, put_member_key, put_number, read_key, read_number
)

cdef enum:
    ARGUMENTS_MAX = 8
    STATES_MAX = 16  # A count and the moments of each argument.
    DECIMALS_MAX = 16  # One more than a canonical number has.

cdef tuple TENS = tuple([10**power for power in range(DECIMALS_MAX + 1)])

cdef struct Reading:
    text group       # its text in keys: within its quotes, or with them
    Py_ssize_t group_size
    Number numbers[ARGUMENTS_MAX]


cdef class Totals:
    """The numbers of one group, or the change since they were set aside."""

    cdef bint is_change
    cdef int64_t members
    cdef int64_t[ARGUMENTS_MAX] counts
    cdef int[ARGUMENTS_MAX] decimals
    cdef list sums

    def __cinit__(self, Py_ssize_t arguments):
        self.sums = [0] * arguments  # All else begins as zeros.

    cdef int add(self, Py_ssize_t place, const Number *number, int times) except -1:
        """Add an argument's number, or remove it with `times` -1."""
        if not number.is_there:
            return 0
        self.counts[place] += times
        return self.add_sum(place, number.value * times, number.decimals)

    cdef int add_sum(self, Py_ssize_t place, object value, int decimals) except -1:
        """Add a number with some decimals to an argument's sum."""
        cdef int missing = self.decimals[place] - decimals
        if missing > 0:
            value = value * TENS[missing]
        elif missing < 0:
            self.sums[place] = self.sums[place] * TENS[-missing]
            self.decimals[place] = decimals
        self.sums[place] = self.sums[place] + value
        return 0

    cdef int replace(self, Py_ssize_t place, const Number *old, const Number *new) except -1:
        """Remove an argument's number, and add the next one."""
        cdef int decimals = self.decimals[place]
        if old.is_there and new.is_there and old.decimals == decimals and new.decimals == decimals:
            if new.value != old.value:
                self.sums[place] = self.sums[place] + (new.value - old.value)
            return 0
        self.add(place, new, 1)
        self.add(place, old, -1)
        return 0


cdef class PlainRecords:
    """The plain records of one partition by group, as sums.

    Groups can be set aside: `set_aside` returns their sums, and forgets them. From the first one on, a group that is not
    in memory begins as a change, to which `settle` adds the sums that were set aside.
    """

    cdef dict groups
    cdef readonly bint has_set_aside
    cdef list unsettled
    cdef bytes group_name
    cdef list names
    cdef Py_ssize_t arguments
    cdef int64_t partition
    cdef Py_ssize_t states
    cdef Py_ssize_t[STATES_MAX] argument_of
    cdef bint[STATES_MAX] is_count
    cdef object new, stored
    cdef char *buffer

    def __init__(self, *, bytes group_name, list names, states, int64_t partition, stored):
        """Begin without records.

        Args:
            group_name: the grouping member's name, as JSON.
            names: those of the arguments, at most `ARGUMENTS_MAX`.
            states: of each value of a part the argument, and `count` or `moments`.
            partition: the number of the partition.
            stored: the type of a state.
        """
        cdef Py_ssize_t place
        self.groups, self.unsettled, self.has_set_aside = {}, [], False
        self.group_name, self.names, self.arguments = group_name, names, len(names)
        self.partition, self.states = partition, len(states)
        self.new, self.stored = tuple.__new__, stored
        if self.arguments > ARGUMENTS_MAX or self.states > STATES_MAX:
            raise ValueError("too many arguments")
        for place in range(self.states):
            self.argument_of[place], kind = states[place]
            self.is_count[place] = kind == "count"

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
        """Return the members of a group, and of each argument the count, the sum and its decimals; None: no records."""
        cdef Totals totals = self.groups.get(key)
        cdef Py_ssize_t place
        if totals is None:
            return None
        return totals.members, [
            (totals.counts[place], totals.sums[place], totals.decimals[place]) for place in range(self.arguments)
        ]

    def set_aside(self, Py_ssize_t count, others):
        """Forget so many groups but `others`, none of which is a change: those longest in memory. Returns their totals."""
        cdef dict result = {}
        for group in self.groups:
            if len(result) >= count:
                break
            if group not in others:
                result[group] = self.totals(group)
        for group in result:
            del self.groups[group]
        self.has_set_aside = self.has_set_aside or bool(result)
        return result

    def unknown(self, groups):
        """Return those of the groups, and of all that are changes, whose sums may have been set aside."""
        if not self.has_set_aside:
            return []
        return [*self.unsettled, *[group for group in groups if group not in self.groups]]

    def settle(self, dict aside):
        """Add what was set aside to the changes of groups, which are changes no more.

        Args:
            aside: for each group that `unknown` returned what `set_aside` did; None: there is nothing.
        """
        cdef Totals totals
        cdef Py_ssize_t place
        self.unsettled = []
        for group, former in aside.items():
            totals = self.groups.get(group)
            if totals is None:
                if former is None:
                    continue
                totals = self.groups[group] = Totals(self.arguments)
            totals.is_change = False
            if former is not None:
                totals.members += former[0]
                for place, (count, total, decimals) in enumerate(former[1]):
                    totals.counts[place] += count
                    totals.add_sum(place, total, decimals)

    def parts(self, changed, dict others, set sent, list outgoing, list added, list left):
        """Append the part of each changed group to the list of its partition, or a tombstone where it has no members.

        Args:
            changed: the groups.
            others: those among them, and more, that are left to the caller.
            sent: the groups of which a part was sent.
            outgoing: for each partition of the parts its records to send: key, value and headers.
            added: gets the groups of which no part was sent before.
            left: gets those of which no part is left.

        Returns:
            The groups that are left to the caller, and those whose sums are no int64.
        """
        cdef list rest = []
        cdef bytes group
        cdef Totals totals
        cdef uint32_t partitions = len(outgoing), partition
        for group in changed:
            if others and group in others:
                rest.append(group)
                continue
            totals = self.groups.get(group)
            if totals is not None and totals.members == 0:
                del self.groups[group]
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
        cdef Py_ssize_t size = PyBytes_GET_SIZE(group), number, place
        # A digit more than the most, for what separates numbers.
        cdef char *begin = self.room(size + (8 + 4 * self.states) * (NUMBER_BYTES_MAX + 2))
        cdef char *at = begin
        cdef int64_t total
        cdef int is_beyond = 0
        at = put_number(put_bytes(at, b"[0,", 3), self.partition)
        at = put_group(put_bytes(at, b",0,[", 4), PyBytes_AS_STRING(group), size)
        at = put_number(put_bytes(at, b"],[", 3), totals.members)
        for number in range(self.states):
            place = self.argument_of[number]
            at = put_bytes(at, b",", 1)
            if self.is_count[number]:
                at = put_number(at, totals.counts[place])
                continue
            total = PyLong_AsLongLongAndOverflow(totals.sums[place], &is_beyond)
            if is_beyond:
                return None
            at = put_number(put_bytes(at, b"[", 1), totals.counts[place])
            at = put_number(put_bytes(at, b",", 1), total)
            at = put_number(put_bytes(at, b",", 1), totals.decimals[place])
            at = put_bytes(at, b",0]", 3)
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
        self.change(&reading, 1, changed)
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
            after: the key up to which records count; None: none does.
            is_complete: whether all count.
        """
        cdef Reading new, old
        cdef bint is_new, is_old, has_new, has_old
        cdef Totals totals
        cdef Py_ssize_t place
        for record in records:
            key, value = record[0], record[1]
            if key is None:
                added.append(record)
                continue
            stored = rows.get(key)
            has_new, has_old = value is not None, stored is not None
            if is_complete or (after is not None and key <= after):
                is_new, is_old = has_new and self.read(value, &new), has_old and self.read(stored[1], &old)
                if (
                    is_new and is_old and new.group_size == old.group_size
                    and memcmp(new.group, old.group, new.group_size) == 0
                ):
                    group = PyBytes_FromStringAndSize(new.group, new.group_size)
                    totals = self.of_group(group)
                    for place in range(self.arguments):
                        totals.replace(place, &old.numbers[place], &new.numbers[place])
                    changed[group] = None
                else:
                    if is_new:
                        self.change(&new, 1, changed)
                    elif has_new:
                        added.append(record)
                    if is_old:
                        self.change(&old, -1, changed)
                    elif has_old:
                        removed.append((key, stored[1]))
            state = self.new(self.stored, (1, value, 0, -1, b"", b"")) if has_new else None
            rows[key] = changes[key] = state

    cdef int change(self, const Reading *reading, int times, dict changed) except -1:
        """Add a record to its group, or remove it with `times` -1."""
        cdef bytes group = PyBytes_FromStringAndSize(reading.group, reading.group_size)
        cdef Totals totals = self.of_group(group)
        cdef Py_ssize_t place
        totals.members += times
        for place in range(self.arguments):
            totals.add(place, &reading.numbers[place], times)
        if totals.members == 0 and not self.has_set_aside:
            del self.groups[group]  # Else `parts` does it: it would begin again as a change.
        changed[group] = None
        return 0

    cdef Totals of_group(self, bytes group):
        """Return the totals of a group."""
        cdef Totals totals = self.groups.get(group)
        if totals is None:
            totals = self.groups[group] = Totals(self.arguments)
            totals.is_change = self.has_set_aside
            if totals.is_change:
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
