# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Makes the parts and the rows of views from plain records, compiled: members are copied as texts, without parsing them.

A record is plain as in `plain_records`, with any values but in fields by which it is grouped or joined: these are texts,
integers, null or missing. The rest is left to the caller, who writes the same bytes in Python.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int64_t
from libc.string cimport memchr

from processor.builtin.delta_merge.json_canonical cimport is_canonical
from processor.builtin.delta_merge.json_text cimport Member, Seen, grown, is_named, read_member, skip_value, text
from processor.builtin.view.plain_texts cimport (
    LENGTH_BYTES, NUMBER_BYTES_MAX, put_bytes, put_group, put_member_key, put_number, read_key
)


cdef class PlainContributions:
    """Makes the contributions of records to their groups."""

    cdef bytes group_name
    cdef list names
    cdef int64_t partition
    cdef char *buffer

    def __init__(self, bytes group_name, list names, int64_t partition):
        """Take the names of the grouping member and of the arguments, as JSON, and the number of the partition."""
        self.group_name, self.names, self.partition = group_name, names, partition

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def __call__(self, value, int64_t timestamp_ms, int64_t offset):
        """Return the key of a record's group, and its contribution; None: it is not plain."""
        if not PyBytes_CheckExact(value):
            return None
        cdef text begin = PyBytes_AS_STRING(value)
        cdef text end = begin + PyBytes_GET_SIZE(value)
        cdef text group = begin
        cdef Py_ssize_t size = 0
        cdef Member member
        cdef bytes name
        cdef char *at
        if not is_canonical(begin, end):
            return None
        if find(begin, end, self.group_name, &member) and not read_key(&member, &group, &size):
            return None
        # A member may be several arguments.
        self.buffer = <char *>grown(self.buffer, (1 + len(self.names)) * (end - begin + 8) + 3 * NUMBER_BYTES_MAX + 16)
        at = put_number(put_bytes(self.buffer, b"[", 1), timestamp_ms)
        at = put_number(put_bytes(at, b",", 1), self.partition)
        at = put_number(put_bytes(at, b",", 1), offset)
        at = put_group(put_bytes(at, b",[", 2), group, size)
        at = put_bytes(at, b"],[", 3)
        for name in self.names:
            if (at - 1)[0] != b'[':
                at = put_bytes(at, b",", 1)
            if not find(begin, end, name, &member) or is_empty_text(&member):
                at = put_bytes(at, b"null", 4)
            elif member.value[0] == b'{' or member.value[0] == b'[':
                return None
            else:
                at = put_bytes(at, member.value, member.end - member.value)
        at = put_bytes(at, b"]]", 2)
        return PyBytes_FromStringAndSize(group, size), PyBytes_FromStringAndSize(self.buffer, at - self.buffer)


cdef class PlainSides:
    """Makes the parts of the underlying's records: the keys of their partners, and the members that rows need."""

    cdef list keys, members
    cdef char *buffer

    def __init__(self, list keys, list members):
        """Take the name of each join's only field, and those of the members, as JSON."""
        self.keys, self.members = keys, members

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def __call__(self, value):
        """Return the keys of a record, as `write_keys` has them, and its part; None: it is not plain."""
        if not PyBytes_CheckExact(value):
            return None
        cdef text begin = PyBytes_AS_STRING(value)
        cdef text end = begin + PyBytes_GET_SIZE(value)
        cdef Member member
        cdef bytes name
        cdef list keys = []
        cdef text key = begin
        cdef char *before
        cdef Py_ssize_t size
        cdef char *at
        if not is_canonical(begin, end):
            return None
        # A member may be several keys, each with its quotes, two escapes and a comma more.
        self.buffer = <char *>grown(self.buffer, (1 + len(self.keys)) * (end - begin + 8) + 8)
        at = put_bytes(self.buffer, b"[[", 2)
        for name in self.keys:
            if keys:
                at = put_bytes(at, b",", 1)
            size, before = 0, at
            if find(begin, end, name, &member) and not read_key(&member, &key, &size):
                return None
            if size == 0:
                at = put_bytes(at, b"null", 4)
            elif key[0] == b'"':  # A text that reads as a number.
                at = put_bytes(put_bytes(at, b'"\\', 2), key, size - 1)
                at = put_bytes(at, b'\\""', 3)
            else:
                at = put_bytes(put_bytes(put_bytes(at, b'"', 1), key, size), b'"', 1)
            keys.append(PyBytes_FromStringAndSize(before, at - before))
        at = put_bytes(at, b"],{", 3)
        for name in self.members:
            if find(begin, end, name, &member):
                if (at - 1)[0] != b'{':
                    at = put_bytes(at, b",", 1)
                at = put_bytes(at, member.name, member.end - member.name)
        at = put_bytes(at, b"}]", 2)
        return b"[%b]" % b", ".join(keys), PyBytes_FromStringAndSize(self.buffer, at - self.buffer)


cdef class PlainRows:
    """Makes the rows of a view whose fields are members of a record and of its partners."""

    cdef list fields
    cdef Py_ssize_t names_size
    cdef list topics
    cdef bytes answer_mark
    cdef bint has_keys
    cdef char *buffer

    def __init__(self, list fields, topics, bytes answer_mark, bint has_keys):
        """Begin.

        Args:
            fields: of each its name with a colon, as JSON, the joined topic or None, and the member's name as JSON.
            topics: the joined topics, in order.
            answer_mark: begins the members that are answers; empty where partners have their own groups.
            has_keys: whether the places of answers end with the keys of the partners.
        """
        self.fields, self.names_size = fields, sum([len(name) for name, _, _ in fields])
        self.topics, self.answer_mark, self.has_keys = list(topics), answer_mark, has_keys

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def answers(self, bytes key, bytes part):
        """Return the joined topics of which a record may have a partner, each with the place of the answer about it.

        None: the part is written in another way, or a key has escapes.
        """
        cdef text at = PyBytes_AS_STRING(part) + 1
        cdef text end = record_of(part)
        cdef text begin
        cdef Seen seen
        cdef list found = []
        cdef Py_ssize_t place = 0, size = PyBytes_GET_SIZE(key), mark = PyBytes_GET_SIZE(self.answer_mark)
        cdef char *put
        if end == NULL:
            return None
        while at[0] != b']':
            begin = at + 1
            at = skip_value(begin, end, &seen)
            if at == NULL or place == len(self.topics):
                return None
            topic = self.topics[place]
            place += 1
            if begin[0] == b'n':
                continue
            if begin[0] != b'"' or memchr(begin, b'\\', at - begin) != NULL:
                return None
            self.buffer = <char *>grown(self.buffer, LENGTH_BYTES + size + mark + NUMBER_BYTES_MAX + 2 + (at - begin))
            put = self.buffer
            if mark:
                put = put_member_key(put, PyBytes_AS_STRING(key), size)
                put = put_bytes(put, PyBytes_AS_STRING(self.answer_mark), mark)
            put = put_bytes(put_number(put, place), b"/", 1)
            if self.has_keys:
                put = put_bytes(put, begin + 1, at - begin - 2)
            found.append((topic, PyBytes_FromStringAndSize(self.buffer, put - self.buffer)))
        return found if place == len(self.topics) else None

    def row(self, bytes part, dict partners):
        """Return the row of a part; None: its record, or a partner's, is not plain.

        Args:
            part: the part.
            partners: of each joined topic the answer about the partner: an array with its fields, or an empty one.
        """
        cdef text own = record_of(part)
        cdef text own_end = PyBytes_AS_STRING(part) + PyBytes_GET_SIZE(part) - 1
        cdef Py_ssize_t size = own_end - own
        cdef bytes answer, name, source
        cdef text begin, end
        cdef Member member
        cdef char *at
        if own == NULL or not is_canonical(own, own_end):
            return None
        for answer in partners.values():
            begin = PyBytes_AS_STRING(answer)
            size += PyBytes_GET_SIZE(answer)
            if PyBytes_GET_SIZE(answer) > 2 and not is_canonical(begin + 1, begin + PyBytes_GET_SIZE(answer) - 1):
                return None
        # A member may be several fields, under any names.
        self.buffer = <char *>grown(self.buffer, size * len(self.fields) + self.names_size + 2)
        at = put_bytes(self.buffer, b"{", 1)
        for name, topic, source in self.fields:
            begin, end = own, own_end
            if topic is not None:
                answer = partners.get(topic)
                if answer is None or PyBytes_GET_SIZE(answer) == 2:
                    continue
                begin = PyBytes_AS_STRING(answer) + 1
                end = begin + PyBytes_GET_SIZE(answer) - 2
            if not find(begin, end, source, &member) or member.value[0] == b'n':
                continue
            if (at - 1)[0] != b'{':
                at = put_bytes(at, b",", 1)
            at = put_bytes(at, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            at = put_bytes(at, member.value, member.end - member.value)
        at = put_bytes(at, b"}", 1)
        return PyBytes_FromStringAndSize(self.buffer, at - self.buffer)


cdef bint find(text at, text end, bytes name, Member *member) noexcept:
    """Find a member of a canonical object by its name."""
    cdef Seen seen
    if end - at == 2:
        return False
    while at[0] != b'}':
        at = read_member(at + 1, end, member, &seen)
        if at == NULL:
            return False
        if is_named(member, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
            return True
    return False


cdef bint is_empty_text(const Member *member) noexcept:
    return member.value[0] == b'"' and member.end - member.value == 2


cdef text record_of(bytes part) noexcept:
    """The record's text in a part, behind the keys; NULL: it is written in another way."""
    cdef text at = PyBytes_AS_STRING(part)
    cdef text end = at + PyBytes_GET_SIZE(part) - 1
    cdef Seen seen
    if end - at < 5 or at[0] != b'[' or at[1] != b'[' or end[0] != b']':
        return NULL
    at = skip_value(at + 1, end, &seen)
    return at + 1 if at != NULL and end - at > 2 and at[0] == b',' and at[1] == b'{' else NULL
