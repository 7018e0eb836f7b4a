"""Finds its way in JSON texts: where a value ends, what a member is, how deep it goes; and edits them. Never past their end.

Of a text that is JSON only the structure is looked at; of one that is not, something is found to be wrong, or nothing.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Realloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

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


cdef inline bytes digits_of(int64_t number):
    """A number that is not negative, as text."""
    cdef char[20] digits
    cdef Py_ssize_t place = 20
    cdef uint64_t rest = <uint64_t>number  # Divided faster than a number with a sign.
    while True:
        place -= 1
        digits[place] = <char>(48 + rest % 10)  # The digit zero is 48.
        rest //= 10
        if rest == 0:
            return PyBytes_FromStringAndSize(digits + place, 20 - place)


cdef inline bytes edited(bytes record, Edit *edits, Py_ssize_t count):
    """A record with edits, which are put in order; None if two of them overlap, as where a delta names a member twice."""
    cdef Py_ssize_t number, place, size = PyBytes_GET_SIZE(record)
    cdef text at = PyBytes_AS_STRING(record)
    cdef text end = at + size
    cdef Edit edit
    cdef char *put
    cdef bytes merged
    if count == 0:
        return record
    # In the order of their places; those of one place, which add members, stay in theirs. Mostly they are already.
    for number in range(count):
        edit = edits[number]
        size += edit.size + edit.comma - edit.removed
        place = number
        while place > 0 and edits[place - 1].at > edit.at:
            edits[place] = edits[place - 1]
            place -= 1
        edits[place] = edit
    # Before anything is copied: the size between two edits that overlap is negative.
    for number in range(count):
        if edits[number].at < at:
            return None
        at = edits[number].at + edits[number].removed
    at = PyBytes_AS_STRING(record)
    merged = PyBytes_FromStringAndSize(NULL, size)
    put = PyBytes_AS_STRING(merged)
    for number in range(count):
        edit = edits[number]
        memcpy(put, at, edit.at - at)
        put += edit.at - at
        if edit.comma:
            put[0] = b','
            put += 1
        memcpy(put, edit.put, edit.size)
        put += edit.size
        at = edit.at + edit.removed
    memcpy(put, at, end - at)
    return merged
