# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Merges the plain deltas of a batch, compiled: the texts of JSON records are merged without parsing them.

Why: the merge was half of a worker's time, most of it making and dropping the objects of a record of which a delta
changes little. Here a record stays the text it is stored as. A delta names members; each is looked for in the record's
text, and a difference becomes an *edit*: put these bytes in the place of those. Then one pass copies the record with
its edits, and the new values make up the text of the delta that is sent.

The merge relies on two facts. Both texts are as orjson writes them (compact, each member once, one way to write any
value), so that equal values have equal bytes: a delta is therefore parsed and written once by orjson, which also finds
texts that are not JSON; one that has this form for certain (`json_canonical`) is taken as it is. A record may have been
stored with an older orjson, which wrote some numbers in another way (1e16 for 1e+16): one that comes again is sent as if
it had changed, once. And commands are plain, see `plain`: one that would take more than copying (a null to be taken out
of the record, a key that is written with escapes) is left to `take`, as are all errors. So this file decides nothing
that is not decided elsewhere, and the same tests hold for both.

Texts are scanned within their bounds, with any content. Of a stored record that was damaged only the structure is
looked at: bytes that are no UTF-8, or a number that is none, are copied. The store has checksums against that.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

from processor.builtin.delta_merge.json_canonical cimport is_canonical
from processor.builtin.delta_merge.json_text cimport (
    Edit, Member, Seen, digits_of, edited, grown, is_named, is_same, is_shallow, read_member, text
)
from processor.builtin.delta_merge.key_text cimport KEY_FIELDS_MAX, KeyField, is_part, key_field_of, murmur2, read_key

cdef enum:
    # With more than these a record is left to `take`, which has no such limits.
    MEMBERS_MAX = 4096  # of the objects of a record that its delta reaches into
    LOOKS_MAX = 16384  # at members in search of names: what a delta names times what is there, at the worst
    # Each level that a delta reaches down reads again what is inside it: this often both texts, and so many bytes.
    READS_MAX = 4
    READ_BYTES_FREE = 65536
    ROOM_KEPT_BYTES_MAX = 1048576  # for the text of deltas, between batches
    # After so much work it is asked whether it is enough: a millisecond or less. About a byte copied or read is one.
    WORK_MAX = 262144
    WORK_OF_RECORD = 256
    WORK_OF_TAKE = 8192
    LOOK_WORK = 16


cdef class CompiledDeltas:
    """`MergeBatch` of one partition of a topic: for one caller at a time, as what it has of a record is kept here."""

    def __cinit__(self):
        self.members = NULL
        self.delta_text = NULL
        self.members_used = self.members_room = self.delta_used = self.delta_room = 0
        self.looks = self.made_bytes = self.work = 0

    def __init__(
        self, *, read, write, survives, tuple names, str null_policy, Py_ssize_t bytes_max, Py_ssize_t key_bytes_max,
        Py_ssize_t depth_max, lives, insert, empty, version_name, stored,
        uint32_t partition, uint32_t partitions,
    ):
        """Take the compiled settings of a topic.

        Args:
            read, write, survives: how the message type parses and writes, and whether a text comes through both.
            names, null_policy: those of the key fields, as JSON, and the topic's; at most `KEY_FIELDS_MAX`.
            bytes_max, key_bytes_max: of a message or record, and of a Kafka key.
            depth_max: deepest nesting of a delta, in objects and arrays.
            lives: the versions with which new records begin.
            insert: the header with the kind of a new record.
            empty: the header of a delta that changed nothing.
            version_name: the name of the header with the version.
            stored: the type of a state.
            partition, partitions: its number, and how many a new key is hashed over; 1: every key may stay.
        """
        self.read, self.write, self.survives = read, write, survives
        if not 1 <= len(names) <= KEY_FIELDS_MAX:
            raise ValueError(f"{len(names)} key fields; 1 to {KEY_FIELDS_MAX}")
        self.names, self.key_count = names, len(names)
        for number, name in enumerate(names):
            self.key_fields[number] = KeyField(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), NULL, 0)
        self.keeps_nulls, self.ignores_nulls = null_policy == "set", null_policy == "ignore"
        self.bytes_max, self.key_bytes_max, self.depth_max = bytes_max, key_bytes_max, depth_max
        self.lives, self.version_name = lives, version_name
        self.insert_header, self.empty = insert, empty
        self.base = self.ended = 0
        self.stored, self.new = stored, tuple.__new__
        self.partition, self.partitions = partition, partitions

    def __dealloc__(self):
        PyMem_Free(self.members)
        PyMem_Free(self.delta_text)

    def __call__(self, records, dict states, dict changed, list sow, list delta, take, is_full):
        """Merge the records in order, until the batch is full; a record that is not plain goes to `take`."""
        cdef object record
        cdef Py_ssize_t taken = 0, taken_bytes = 0, before
        self.made_bytes = self.work = 0
        self.base, self.ended = self.lives.base, self.lives.ended
        for record in records:
            if not self.take_plain(record, states, changed, sow, delta):
                before, taken_bytes = taken_bytes, take(record)
                self.ended = self.lives.ended  # It may have ended a life.
                self.work += WORK_OF_TAKE + taken_bytes - before
            taken += 1
            if self.work >= WORK_MAX:
                self.work = 0
                if is_full(self.made_bytes + taken_bytes):
                    break
        if self.delta_room > ROOM_KEPT_BYTES_MAX:
            PyMem_Free(self.delta_text)
            self.delta_text = NULL
            self.delta_room = 0
        return taken, self.made_bytes

    cdef bint take_plain(self, object record, dict states, dict changed, list sow, list delta) except -1:
        """Merge one record; False, and nothing done, if it is not plain."""
        cdef object value, key, old
        cdef int64_t version
        cdef list headers
        cdef bytes written, data, delta_data
        if not PyTuple_Check(record) or PyTuple_GET_SIZE(record) < 4 or <object>PyTuple_GET_ITEM(record, 2):
            return False
        key, value = <object>PyTuple_GET_ITEM(record, 0), <object>PyTuple_GET_ITEM(record, 1)
        if not PyBytes_CheckExact(key) or not PyBytes_CheckExact(value):
            return False
        if PyBytes_GET_SIZE(value) > self.bytes_max or PyBytes_GET_SIZE(key) > self.key_bytes_max:
            return False
        old = states[key]
        if old is None:
            if not self.is_own(key):
                return False
        elif not self.is_plain_state(old):
            return False
        if is_canonical(PyBytes_AS_STRING(value), PyBytes_AS_STRING(value) + PyBytes_GET_SIZE(value)):
            written = value
        else:
            try:
                written = self.write(self.read(value))
                if written != value and not self.survives(value, written):
                    return False
            except Exception:  # `take` raises the same error again.
                return False
        if not is_shallow(PyBytes_AS_STRING(written), PyBytes_AS_STRING(written) + PyBytes_GET_SIZE(written), self.depth_max):
            return False
        if not read_key(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), self.key_fields, self.key_count):
            return False
        if old is None:
            # What orjson returns keeps a page of memory, and the record's own bytes are there already.
            data = value if written is value or written == value else b"".join((written, b""))
            if not self.insert(data):
                return False
            version = max(self.base + 2 * <int64_t><object>PyTuple_GET_ITEM(record, 3) + 1, self.ended + 1)
            headers = [(self.version_name, digits_of(version)), self.insert_header]
        else:
            data = <object>PyTuple_GET_ITEM(old, 1)
            if not self.merge(data, written):
                return False
            data = edited(data, self.edits, self.edits_used)
            if data is None:
                return False
            version = <int64_t><object>PyTuple_GET_ITEM(old, 0) + 1
            headers = [(self.version_name, digits_of(version))]
        if PyBytes_GET_SIZE(data) > self.bytes_max:  # A new one may be longer than what was sent, too: 1e15 grows.
            return False
        delta_data = PyBytes_FromStringAndSize(self.delta_text, self.delta_used)
        sow.append((key, data, headers))
        # Nothing was set, so the record is as it was.
        delta.append((key, delta_data, headers if old is None or self.edits_used else [*headers, self.empty]))
        states[key] = changed[key] = self.new(self.stored, (version, data, 0, -1, b"", b""))
        self.made_bytes += PyBytes_GET_SIZE(data) + self.delta_used
        self.work += PyBytes_GET_SIZE(data) + self.delta_used + LOOK_WORK * self.looks + WORK_OF_RECORD
        return True

    cdef bint is_own(self, bytes key) noexcept:
        """Return whether a new key belongs to this partition, and is no reserved one: those begin with a NUL."""
        if PyBytes_GET_SIZE(key) > 0 and PyBytes_AS_STRING(key)[0] == 0:
            return False
        if self.partitions == 1:
            return True
        return (murmur2(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF) % self.partitions == self.partition

    cdef bint is_plain_state(self, object old) except -1:
        """True if nothing but its record is to be kept: it does not expire, and has no time to live of its own."""
        if not PyTuple_Check(old) or PyTuple_GET_SIZE(old) != 6:
            return False
        if not PyBytes_CheckExact(<object>PyTuple_GET_ITEM(old, 1)):
            return False
        return not <object>PyTuple_GET_ITEM(old, 2) and not <object>PyTuple_GET_ITEM(old, 4)

    cdef bint insert(self, bytes record) except -1:
        """Write the delta of a new record: its key fields, then all other members."""
        cdef text begin = PyBytes_AS_STRING(record)
        cdef text end = begin + PyBytes_GET_SIZE(record)
        cdef text at = begin + 1
        cdef bint more = end - begin > 2 and begin[0] == b'{'
        cdef Member member
        cdef Seen seen
        cdef Member[KEY_FIELDS_MAX] keys  # In the order of the record.
        cdef Py_ssize_t[KEY_FIELDS_MAX] places  # Of each key field in it.
        cdef Py_ssize_t number, count = 0
        for number in range(self.key_count):
            places[number] = -1
        while more:
            at = read_member(at, end, &member, &seen)
            if at == NULL:
                return False
            more = at[0] == b','
            at += 1
            if not self.keeps_nulls and (member.value[0] == b'n' or (member.value[0] == b'{' and seen.null)):
                return False
            number = key_field_of(&member, self.key_fields, self.key_count)
            if number >= 0:
                if places[number] >= 0 or not is_part(&member, &self.key_fields[number]):
                    return False
                keys[count], places[number] = member, count
                count += 1
        if at != end or count != self.key_count:
            return False
        self.delta_used = self.looks = 0
        self.write_text(b"{", 1)
        for number in range(count):
            self.write_member(&keys[places[number]])
        at = begin + 1
        for number in range(count):
            if keys[number].name > at:  # Members before it, and the comma after them.
                self.write_text(b",", 1)
                self.write_text(at, keys[number].name - 1 - at)
            at = keys[number].end + 1
        if at < end:
            self.write_text(b",", 1)
            self.write_text(at, end - 1 - at)
        self.write_text(b"}", 1)
        return True

    cdef bint merge(self, bytes record, bytes delta) except -1:
        """Find the edits that a delta makes to a record, and write the delta of the changes."""
        return self.merge_texts(
            PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record), PyBytes_AS_STRING(delta), PyBytes_GET_SIZE(delta)
        )

    cdef bint merge_texts(self, text old, Py_ssize_t old_size, text new, Py_ssize_t new_size) except -1:
        """`merge` of texts that are not objects of Python."""
        self.members_used = self.edits_used = self.looks = self.delta_used = 0
        self.bytes_readable = READS_MAX * (old_size + new_size) + READ_BYTES_FREE
        if new[0] != b'{':
            return False
        if not self.fold(old, old + old_size, new, new + new_size, True):
            return False
        self.write_text(b"}", 1)
        return True

    cdef bint fold(self, text old, text old_end, text new, text new_end, bint is_record) except -1:
        """Find the edits to one object, and write its members that change, but not the brace after them."""
        cdef Py_ssize_t first = self.members_used
        self.bytes_readable -= (old_end - old) + (new_end - new)
        if self.bytes_readable < 0 or not self.index(old, old_end):
            return False
        cdef Py_ssize_t count = self.members_used - first
        cdef Py_ssize_t place = 0, found, before, opened, number, key_count = self.key_count
        cdef bint is_empty = count == 0, more = new_end - new > 2
        cdef text at = new + 1
        cdef Member was, member
        cdef Seen seen
        if is_record:
            self.write_text(b"{", 1)
            for number in range(key_count):
                found = self.find(first, count, self.key_fields[number].name, self.key_fields[number].name_size, &place)
                if found < 0:
                    return False
                self.write_member(&self.members[found])
            place = 0
        while more:
            at = read_member(at, new_end, &member, &seen)
            if at == NULL:
                return False
            more = at[0] == b','
            at += 1
            if is_record:
                number = key_field_of(&member, self.key_fields, key_count)
                if number >= 0:
                    if not is_part(&member, &self.key_fields[number]):
                        return False
                    continue  # The record's own stays, as it was written.
            if member.value[0] == b'n' and not self.keeps_nulls:
                if self.ignores_nulls:
                    continue
                return False
            found = self.find(first, count, member.name, member.name_size, &place)
            if self.looks > LOOKS_MAX:
                return False
            if found >= 0:
                was = self.members[found]
                if was.value[0] == b'{' and member.value[0] == b'{':
                    before = self.delta_used
                    self.write_name(&member)
                    self.write_text(b"{", 1)
                    opened = self.delta_used
                    if not self.fold(was.value, was.end, member.value, member.end, False):
                        return False
                    if self.delta_used > opened:
                        self.write_text(b"}", 1)
                    else:
                        self.delta_used = before
                    continue
                if is_same(&was, &member):
                    continue
            if member.value[0] == b'{' and seen.null and not self.keeps_nulls:
                return False
            if self.edits_used == EDITS_MAX:
                return False
            if found >= 0:
                self.edits[self.edits_used] = Edit(
                    was.value, was.end - was.value, member.value, member.end - member.value, False
                )
            else:
                self.edits[self.edits_used] = Edit(old_end - 1, 0, member.name, member.end - member.name, not is_empty)
                is_empty = False
            self.edits_used += 1
            self.write_member(&member)
        self.members_used = first
        return at == new_end or new_end - new == 2

    cdef bint index(self, text at, text end) except -1:
        """Put down the members of an object; False if it is none, or has very many."""
        cdef Seen seen
        cdef Py_ssize_t room
        if end - at < 2 or at[0] != b'{' or (end - 1)[0] != b'}':
            return False
        if end - at == 2:
            return True
        while True:
            at += 1
            if self.members_used == self.members_room:
                if self.members_room == MEMBERS_MAX:
                    return False
                room = max(64, 2 * self.members_room)
                self.members = <Member *>grown(self.members, room * sizeof(Member))
                self.members_room = room
            at = read_member(at, end, &self.members[self.members_used], &seen)
            if at == NULL:
                return False
            self.members_used += 1
            if at[0] == b'}':
                return at + 1 == end

    cdef Py_ssize_t find(
        self, Py_ssize_t first, Py_ssize_t count, text name, Py_ssize_t size, Py_ssize_t *place
    ) noexcept:
        """The member with a name, -1 if none; from `place` on, as deltas mostly name members in the record's order."""
        cdef Py_ssize_t tried, number = place[0]
        for tried in range(count):
            if number >= count:
                number = 0
            if is_named(&self.members[first + number], name, size):
                place[0] = number + 1
                self.looks += tried
                return first + number
            number += 1
        self.looks += count
        return -1

    cdef int write_name(self, const Member *member) except -1:
        """Write the name of a member that changes, after a comma if it is not the first of its object."""
        if self.delta_text[self.delta_used - 1] != b'{':
            self.write_text(b",", 1)
        return self.write_text(member.name, member.name_size) or self.write_text(b":", 1)

    cdef int write_member(self, const Member *member) except -1:
        return self.write_name(member) or self.write_text(member.value, member.end - member.value)

    cdef int write_text(self, text at, Py_ssize_t size) except -1:
        """Add to the text of the delta."""
        cdef Py_ssize_t room = 2 * (self.delta_used + size)
        if self.delta_used + size > self.delta_room:
            self.delta_text = <char *>grown(self.delta_text, room)
            self.delta_room = room
        memcpy(self.delta_text + self.delta_used, at, size)
        self.delta_used += size
        return 0
