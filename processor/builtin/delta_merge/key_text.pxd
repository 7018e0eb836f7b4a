# cython: language_level=3
"""The key of a record as Kafka has it: the parts that its key fields make, and the hash that chooses its partition.

The rules stand in `processor.merge.key.KeyFields`; a key that needs more than comparing bytes is left to it.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memchr, memcmp

from processor.builtin.delta_merge.json_text cimport Member, is_named, text

cdef enum:
    KEY_FIELDS_MAX = 8

cdef struct KeyField:
    text name              # with both quotes
    Py_ssize_t name_size
    text at                # its part of the key at hand
    Py_ssize_t size


cdef inline bint read_key(text key, Py_ssize_t size, KeyField *fields, Py_ssize_t count) noexcept nogil:
    """Find the part of each key field: the whole key of one, else the strings of a compact array; False if it is none."""
    cdef text at = key
    cdef text end = key + size
    cdef Py_ssize_t number
    cdef char opening = b'['
    if count == 1:
        fields[0].at, fields[0].size = key, size
        return True
    for number in range(count):
        if end - at < 2 or at[0] != opening or at[1] != b'"':
            return False
        opening = b','
        at += 2
        fields[number].at = at
        # A part with an escape is left to those who read it.
        while at < end and at[0] != b'"' and at[0] != b'\\' and <unsigned char>at[0] >= 0x20:
            at += 1
        if at == end or at[0] != b'"':
            return False
        fields[number].size = at - fields[number].at
        at += 1
    return end - at == 1 and at[0] == b']'


cdef inline Py_ssize_t key_field_of(const Member *member, const KeyField *fields, Py_ssize_t count) noexcept nogil:
    """The number of the key field that a member is; -1 if it is none."""
    cdef Py_ssize_t number
    if is_named(member, fields[0].name, fields[0].name_size):  # One key field is the usual case.
        return 0
    for number in range(1, count):
        if is_named(member, fields[number].name, fields[number].name_size):
            return number
    return -1


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


cdef inline bint is_part(const Member *member, const KeyField *field) noexcept nogil:
    """Whether a member's value is the part of the key that its field makes."""
    return is_key(member.value, member.end, field.at, field.size)


cdef inline uint32_t murmur2(const char *data, Py_ssize_t size) noexcept nogil:
    """The 32-bit hash of bytes by which Java's clients choose a partition, as `processor.kafka.partitioner` has it in Python.

    Source: org.apache.kafka.common.utils.Utils.murmur2; both constants are the algorithm's.
    """
    cdef uint32_t m = 0x5BD1E995U
    cdef uint32_t h = 0x9747B28CU ^ <uint32_t>size
    cdef uint32_t k
    cdef const unsigned char *at = <const unsigned char *>data
    while size >= 4:
        k = at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16) | (<uint32_t>at[3] << 24)
        k *= m
        k ^= k >> 24
        k *= m
        h = h * m ^ k
        at += 4
        size -= 4
    if size:
        if size == 3:
            h ^= <uint32_t>at[2] << 16
        if size >= 2:
            h ^= <uint32_t>at[1] << 8
        h = (h ^ at[0]) * m
    h ^= h >> 13
    h *= m
    return h ^ (h >> 15)
