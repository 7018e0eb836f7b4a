# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""The hash of `processor.kafka.partitioner`, compiled: a view hashes each record once or twice, and took 5 % for it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from processor.builtin.delta_merge cimport key_text


def murmur2(bytes data not None):
    """Return the 32-bit murmur2 hash, as a non-negative number."""
    return key_text.murmur2(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
