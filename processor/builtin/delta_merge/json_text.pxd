"""Finds its way in JSON texts: where a value ends, what a member is, how deep it goes. Never past the end of a text.

Of a text that is JSON only the structure is looked at; of one that is not, something is found to be wrong, or nothing.
"""

from cpython.mem cimport PyMem_Realloc
from libc.string cimport memchr, memcmp

ctypedef const char *text

cdef struct Member:
    text name       # at its opening quote
    text value
    text end        # after the value
    Py_ssize_t name_size  # with both quotes

cdef struct Seen:   # within a value that was skipped
    bint null

cdef struct Edit:
    text at         # in the record's text
    Py_ssize_t removed
    text put        # in the delta's text
    Py_ssize_t size
    bint comma      # before what is put


cdef inline void *grown(void *memory, Py_ssize_t size) except NULL:
    """The same memory with more room."""
    memory = PyMem_Realloc(memory, size)
    if memory == NULL:
        raise MemoryError
    return memory


cdef inline text skip_string(text at, text end) noexcept nogil:
    """After the string whose opening quote is at `at`; NULL if it has no end."""
    at += 1
    while at < end:
        if at[0] == b'"':
            return at + 1
        at += 2 if at[0] == b'\\' else 1
    return NULL


cdef inline text skip_word(text at, text end) noexcept nogil:
    """After a number, true, false or null; NULL if there is none."""
    cdef text begin = at
    while at < end and at[0] != b',' and at[0] != b'}' and at[0] != b']':
        at += 1
    return at if at > begin else NULL


cdef inline text skip_value(text at, text end, Seen *seen) noexcept nogil:
    """After the value at `at`; NULL if it has no end. What is inside an object or array is noted in `seen`."""
    cdef Py_ssize_t depth = 0
    if at >= end:
        return NULL
    if at[0] == b'"':
        return skip_string(at, end)
    if at[0] != b'{' and at[0] != b'[':
        return skip_word(at, end)
    while at != NULL and at < end:
        if at[0] == b'"':
            at = skip_string(at, end)
            continue
        if at[0] == b'{' or at[0] == b'[':
            depth += 1
        elif at[0] == b'}' or at[0] == b']':
            depth -= 1
            if depth == 0:
                return at + 1
        elif at[0] == b'n':
            seen.null = True
        at += 1
    return NULL


cdef inline text read_member(text at, text end, Member *member, Seen *seen) noexcept nogil:
    """Take the member at `at`; where it ended, at a comma or a brace, or NULL."""
    if at >= end or at[0] != b'"':
        return NULL
    member.name = at
    at = skip_string(at, end)
    if at == NULL or at >= end or at[0] != b':':
        return NULL
    member.name_size = at - member.name
    member.value = at + 1
    seen.null = False
    member.end = skip_value(member.value, end, seen)
    if member.end == NULL or member.end >= end or (member.end[0] != b',' and member.end[0] != b'}'):
        return NULL
    return member.end


cdef inline bint is_named(const Member *member, text name, Py_ssize_t size) noexcept nogil:
    return member.name_size == size and memcmp(member.name, name, size) == 0


cdef inline bint is_same(const Member *one, const Member *other) noexcept nogil:
    """Whether two values are written alike."""
    cdef Py_ssize_t size = one.end - one.value
    return other.end - other.value == size and memcmp(one.value, other.value, size) == 0


cdef inline bint is_integer(text at, text end) noexcept nogil:
    """Whether a value is a number without a point or an exponent."""
    if not (b'0' <= at[0] <= b'9' or at[0] == b'-'):
        return False
    while at < end:
        if at[0] == b'.' or at[0] == b'e' or at[0] == b'E':
            return False
        at += 1
    return True


cdef inline bint is_key(text at, text end, text key, Py_ssize_t key_size) noexcept nogil:
    """Whether a value, as a string or an integer, is the record's key."""
    if at[0] == b'"':
        at += 1
        end -= 1
        # One with an escape in it may be the key all the same: that is not found out here.
        return end - at == key_size and memcmp(at, key, key_size) == 0 and memchr(at, b'\\', key_size) == NULL
    return end - at == key_size and memcmp(at, key, key_size) == 0 and is_integer(at, end)


cdef inline bint is_shallow(text begin, text end, Py_ssize_t depth_max) noexcept nogil:
    """Whether a text is nested no deeper than so; few have so many brackets that it takes a walk."""
    cdef text at = begin
    cdef Py_ssize_t brackets = 0, depth = 0
    if end - begin <= 2 * depth_max:  # A level takes an opening and a closing byte.
        return True
    while at < end:
        brackets += at[0] == b'{' or at[0] == b'['
        at += 1
    if brackets <= depth_max:
        return True
    at = begin
    while at != NULL and at < end:
        if at[0] == b'"':
            at = skip_string(at, end)
            continue
        if at[0] == b'{' or at[0] == b'[':
            depth += 1
            if depth > depth_max:
                return False
        elif at[0] == b'}' or at[0] == b']':
            depth -= 1
        at += 1
    return True
