"""Computes the partition of a key: murmur2, as in Kafka's own Java client."""

from __future__ import annotations

import os

try:
    from processor.kafka import key_hash

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995  # Both constants are the algorithm's; see org.apache.kafka.common.utils.Utils.murmur2.
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash, as a non-negative number."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if rest := data[whole:]:
        h ^= int.from_bytes(rest, "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


_hash = key_hash.murmur2 if has_compiled else murmur2


def partition_for(key: bytes, partitions: int) -> int:
    """The partition that Java, Spark and our producers send this key to."""
    return (_hash(key) & 0x7FFFFFFF) % partitions


def partitions_of(key: bytes, partitions: int, *, is_anywhere: bool) -> range:
    """The partitions in which the record of a key may be, and which a lookup of the key must therefore read.

    Args:
        key: the Kafka record key.
        partitions: how many the topic has.
        is_anywhere: whether publishers choose partitions by a rule of their own (`foreign_partition: accept`).
    """
    if is_anywhere:
        return range(partitions)
    partition = partition_for(key, partitions)
    return range(partition, partition + 1)
