"""Spreads Kafka partitions evenly over Spark's state partitions: computes the grouping key, or slot, of a partition."""

from __future__ import annotations

from typing import Final

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 42  # Of Spark's own partitioner, as are the constants below: Spark's Murmur3_x86_32.
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_M: Final = 5
_N: Final = 0xE6546B64
_F1: Final = 0x85EBCA6B
_F2: Final = 0xC2B2AE35
_INT_BYTES: Final = 4


def slot_of(partition: int) -> int:
    """The integer that Spark hashes to `partition`: its state partition is `partition` modulo their number.

    With the partition numbers as keys, two of four Kafka partitions would share a state partition, and one be idle.
    """
    h = partition
    h ^= h >> 16
    h = h * _inverse(_F2) & _MASK
    h ^= h >> 13 ^ h >> 26
    h = h * _inverse(_F1) & _MASK
    h ^= h >> 16
    h ^= _INT_BYTES
    k = _rotated((h - _N) * _inverse(_M) & _MASK, 32 - 13) ^ _SEED
    k = _rotated(k * _inverse(_C2) & _MASK, 32 - 15) * _inverse(_C1) & _MASK
    return k - (1 << 32) if k >> 31 else k


def partition_of(slot: int) -> int:
    """The partition of a slot: Spark's hash of the integer."""
    k = _rotated((slot & _MASK) * _C1 & _MASK, 15) * _C2 & _MASK
    h = _rotated(_SEED ^ k, 13) * _M + _N & _MASK
    h ^= _INT_BYTES
    h ^= h >> 16
    h = h * _F1 & _MASK
    h ^= h >> 13
    h = h * _F2 & _MASK
    return h ^ h >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def _inverse(factor: int) -> int:
    return pow(factor, -1, 1 << 32)
