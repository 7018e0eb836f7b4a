# cython: language_level=3
"""Decides whether a JSON text is as orjson would write it again, without parsing it.

The answer may be no for a text that is; it is never yes for one that is not. No: spaces, escapes, bytes beyond ASCII,
exponents, numbers of more digits than a double or an int holds for certain, many members or levels.
"""

from libc.string cimport memcmp

ctypedef const char *text

cdef enum:
    LEVELS_MAX = 32
    NAMES_MAX = 64  # of all objects that are open at a time
    INT_DIGITS_MAX = 18
    FLOAT_DIGITS_MAX = 15  # Any 15 digits come through a double unchanged.
    ZEROS_MAX = 3  # after `0.`; orjson writes an exponent for more than four

cdef struct Named:
    text name
    Py_ssize_t size


cdef inline text canonical_string(text at, text end) noexcept nogil:
    """After the string at the opening quote `at`; NULL if it has escapes, other bytes than ASCII, or no end."""
    at += 1
    while at < end:
        if at[0] == b'"':
            return at + 1
        if at[0] == b'\\' or <unsigned char>at[0] < 0x20 or <unsigned char>at[0] >= 0x7f:
            return NULL
        at += 1
    return NULL


cdef inline text canonical_number(text at, text end) noexcept nogil:
    """After the number at `at`; NULL if it is none, or may be written in another way."""
    cdef bint is_negative = at[0] == b'-'
    cdef text begin, point
    cdef bint is_zero
    if is_negative:
        at += 1
    begin = at
    while at < end and b'0' <= at[0] <= b'9':
        at += 1
    if at == begin or (begin[0] == b'0' and (at - begin > 1 or is_negative)):
        return NULL
    if at == end or at[0] != b'.':
        if at < end and (at[0] == b'e' or at[0] == b'E'):
            return NULL
        return at if at - begin <= INT_DIGITS_MAX else NULL
    is_zero = begin[0] == b'0'
    point = at
    at += 1
    while at < end and b'0' <= at[0] <= b'9':
        at += 1
    if at == point + 1 or at - begin - 1 > FLOAT_DIGITS_MAX:
        return NULL
    if at < end and (at[0] == b'e' or at[0] == b'E'):
        return NULL
    if (at - 1)[0] == b'0':
        return at if at - point == 2 else NULL
    if is_zero and at - point > ZEROS_MAX + 1 and memcmp(point + 1, b"0000", ZEROS_MAX + 1) == 0:
        return NULL
    return at


cdef inline text canonical_word(text at, text end) noexcept nogil:
    """After true, false or null; NULL if it is none of them."""
    if end - at >= 4 and (memcmp(at, b"true", 4) == 0 or memcmp(at, b"null", 4) == 0):
        return at + 4
    return at + 5 if end - at >= 5 and memcmp(at, b"false", 5) == 0 else NULL


cdef inline bint is_canonical(text at, text end) noexcept nogil:
    """Whether a text is one object that orjson would write just so."""
    cdef bint[LEVELS_MAX] is_object
    cdef int[LEVELS_MAX] first_name
    cdef Named[NAMES_MAX] names
    cdef int depth = 0, used = 0, number
    cdef text begin
    cdef Py_ssize_t size
    cdef bint wants_value = True, may_close = False
    if at >= end or at[0] != b'{':
        return False
    while at < end:
        if wants_value and not (may_close and (at[0] == b'}' or at[0] == b']')):
            if depth > 0 and is_object[depth - 1]:
                if at[0] != b'"':
                    return False
                begin = at
                at = canonical_string(at, end)
                if at == NULL or at >= end or at[0] != b':' or used == NAMES_MAX:
                    return False
                size = at - begin
                for number in range(first_name[depth - 1], used):
                    if names[number].size == size and memcmp(names[number].name, begin, size) == 0:
                        return False
                names[used].name = begin
                names[used].size = size
                used += 1
                at += 1
                if at >= end:
                    return False
            may_close = False
            if at[0] == b'{' or at[0] == b'[':
                if depth == LEVELS_MAX:
                    return False
                is_object[depth] = at[0] == b'{'
                first_name[depth] = used
                depth += 1
                at += 1
                may_close = True
                continue
            if at[0] == b'"':
                at = canonical_string(at, end)
            elif at[0] == b'-' or b'0' <= at[0] <= b'9':
                at = canonical_number(at, end)
            else:
                at = canonical_word(at, end)
            if at == NULL:
                return False
            wants_value = False
            continue
        # After a value, or at the end of an empty object or array.
        if at[0] == b',' and not wants_value:
            wants_value = True
            at += 1
            continue
        if is_object[depth - 1]:
            if at[0] != b'}':
                return False
        elif at[0] != b']':
            return False
        depth -= 1
        used = first_name[depth]
        at += 1
        wants_value = may_close = False
        if depth == 0:
            return at == end
    return False
