# cython: language_level=3
"""The hash by which Java's clients choose a key's partition, as `processor.kafka.partitioner` has it in Python.

Source: org.apache.kafka.common.utils.Utils.murmur2; both constants are the algorithm's.
"""

from libc.stdint cimport uint32_t


cdef inline uint32_t murmur2(const char *data, Py_ssize_t size) noexcept nogil:
    """The 32-bit murmur2 hash of bytes, on a little-endian machine as on any other."""
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
