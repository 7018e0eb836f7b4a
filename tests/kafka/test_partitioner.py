"""The partition of a key is the one that Java's clients choose, compiled or not."""

import random

import pytest

from processor.kafka import partitioner
from tests.programs.oracle.keys import partition_of


@pytest.mark.parametrize("is_compiled", [True, False])
def test_partition_is_that_of_java(is_compiled, monkeypatch):
    """Of keys of any length and bytes, both ways choose the partition that an independent murmur2 does."""
    if is_compiled and not partitioner.has_compiled:
        pytest.skip("it was not compiled here")
    if not is_compiled:
        monkeypatch.setattr(partitioner, "_hash", partitioner.murmur2)
    rng = random.Random(1)
    keys = [rng.randbytes(size) for size in range(40) for _ in range(5)]
    assert [partitioner.partition_for(key, 7) for key in keys] == [partition_of(key, 7) for key in keys]
