# cython: language_level=3
"""Numbers and keys of plain records in JSON texts, and the bytes of their groups' parts."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from processor.builtin.delta_merge.json_canonical cimport INT_DIGITS_MAX
from processor.builtin.delta_merge.json_text cimport Member, text
from processor.builtin.delta_merge.key_text cimport is_integer

cdef enum:
    ZERO = 48  # The digit.
    NUMBER_BYTES_MAX = 20  # Of an int64.
    LENGTH_BYTES = 4  # Of the length of the group in the key of a part.

cdef struct Number:
    bint is_there
    int64_t value    # 18 digits at most
    int decimals


cdef inline bint read_number(text at, text end, Number *number) noexcept nogil:
    """Read a canonical number or null; False for any other value."""
    cdef bint is_negative = at[0] == b'-'
    number.is_there = False
    if at[0] == b'n':
        return True
    if is_negative:
        at += 1
    if not b'0' <= at[0] <= b'9':
        return False
    number.is_there = True
    number.value = number.decimals = 0
    while at < end and at[0] != b'.':
        number.value = number.value * 10 + (at[0] - ZERO)
        at += 1
    at += 1
    while at < end:
        number.value = number.value * 10 + (at[0] - ZERO)
        number.decimals += 1
        at += 1
    if is_negative:
        number.value = -number.value
    return True


cdef inline text skip_digits(text at, text end) noexcept nogil:
    """The first character that is no digit."""
    while at < end and b'0' <= at[0] <= b'9':
        at += 1
    return at


cdef inline bint is_quoted(text at, text end) noexcept nogil:
    """Return whether a text, not empty, stands in a key within its quotes: it reads as a number, or is true or false."""
    cdef text begin = at
    cdef Py_ssize_t digits
    if at[0] == b't' or at[0] == b'f':
        return (end - at == 4 and memcmp(at, b"true", 4) == 0) or (end - at == 5 and memcmp(at, b"false", 5) == 0)
    if at[0] == b'+' or at[0] == b'-':
        at += 1
    begin = at
    at = skip_digits(at, end)
    digits = at - begin
    if at < end and at[0] == b'.':
        begin = at + 1
        at = skip_digits(begin, end)
        digits += at - begin
    if digits == 0 or at == end:
        return digits > 0
    if at[0] != b'e' and at[0] != b'E':
        return False
    at += 1
    if at < end and (at[0] == b'+' or at[0] == b'-'):
        at += 1
    return at < end and skip_digits(at, end) == end


cdef inline bint read_key(const Member *member, text *key, Py_ssize_t *size) noexcept nogil:
    """Read the key that a grouping value, or a field of a join, makes: empty for null and the empty text.

    It stands in the record, within the value's quotes or with them. False if the value is another one.
    """
    if member.value[0] == b'"':
        key[0], size[0] = member.value + 1, member.end - member.value - 2
        if size[0] and is_quoted(key[0], key[0] + size[0]):
            key[0], size[0] = member.value, member.end - member.value
        return True
    if member.value[0] == b'n':
        size[0] = 0
        return True
    key[0], size[0] = member.value, member.end - member.value
    return is_integer(member.value, member.end)


cdef inline bint is_integer_key(text at, text end) noexcept nogil:
    """Return whether a key is that of an integer: a text that reads as a number stands within its quotes."""
    if at < end and at[0] == b'-':
        at += 1
    return at < end and skip_digits(at, end) == end


cdef inline text skip_text(text at, text end, text expected, Py_ssize_t size) noexcept nogil:
    """The place behind an expected text; NULL if it is not there, or `at` is NULL."""
    if at == NULL or end - at < size or memcmp(at, expected, size) != 0:
        return NULL
    return at + size


cdef inline text read_integer(text at, text end, int64_t *value) noexcept nogil:
    """Read an integer of at most `INT_DIGITS_MAX` digits; the place behind it, NULL if there is none, or `at` is NULL."""
    cdef text begin
    cdef bint is_negative
    if at == NULL or at >= end:
        return NULL
    is_negative = at[0] == b'-'
    at += is_negative
    begin = at
    value[0] = 0
    while at < end and b'0' <= at[0] <= b'9' and at - begin < INT_DIGITS_MAX:
        value[0] = value[0] * 10 + (at[0] - ZERO)
        at += 1
    if at == begin or (at < end and b'0' <= at[0] <= b'9'):
        return NULL
    if is_negative:
        value[0] = -value[0]
    return at


cdef inline char *put_bytes(char *at, const char *data, Py_ssize_t size) noexcept nogil:
    """Write bytes; returns the place behind them."""
    memcpy(at, data, size)
    return at + size


cdef inline char *put_number(char *at, int64_t value) noexcept nogil:
    """Write a number in digits; returns the place behind them."""
    cdef char[NUMBER_BYTES_MAX] digits
    cdef int first = NUMBER_BYTES_MAX
    cdef uint64_t left = <uint64_t>value
    if value < 0:
        left = 0 - left
    while True:
        first -= 1
        digits[first] = <char>(ZERO + left % 10)
        left = left // 10
        if left == 0:
            break
    if value < 0:
        first -= 1
        digits[first] = b'-'
    return put_bytes(at, &digits[first], NUMBER_BYTES_MAX - first)


@cython.cdivision(True)
cdef inline char *put_decimal(char *at, const Number *number) noexcept nogil:
    """Write a canonical number that is there; returns the place behind it."""
    cdef int64_t scale = 1, value = number.value
    cdef int place
    if number.decimals == 0:
        return put_number(at, value)
    for place in range(number.decimals):
        scale *= 10
    if value < 0:
        at, value = put_bytes(at, b"-", 1), -value
    at = put_bytes(put_number(at, value // scale), b".", 1)
    for place in range(number.decimals):
        scale //= 10
        at[0] = <char>(ZERO + value // scale % 10)
        at += 1
    return at


cdef inline char *put_member_key(char *at, text group, Py_ssize_t size) noexcept nogil:
    """Write the key of a group's member but the member, as `processor.wire.view_parts` has it; returns the place behind it."""
    cdef int place
    for place in range(LENGTH_BYTES):
        at[place] = <char>(<uint32_t>size >> 8 * (LENGTH_BYTES - 1 - place))
    return put_bytes(put_bytes(at + LENGTH_BYTES, group, size), b"m", 1)


cdef inline char *put_group(char *at, text key, Py_ssize_t size) noexcept nogil:
    """Write the grouping value with a key as JSON; returns the place behind it."""
    if size == 0:
        return put_bytes(at, b"null", 4)
    if key[0] == b'"' or is_integer_key(key, key + size):
        return put_bytes(at, key, size)
    return put_bytes(put_bytes(put_bytes(at, b'"', 1), key, size), b'"', 1)
