"""The compiled merge beside a parser that leaves a member in a text twice, as no parser of ours does."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from processor.api import Record, Stored
from processor.wire.partition_marks import Lives
from tests.builtin.both_ways import needs_compiled


def raw_merge() -> Any:
    """The compiled merge of JSON texts that are not parsed at all: it sees them as they are."""
    from processor.builtin.delta_merge.fast_path_json import CompiledDeltas

    return CompiledDeltas(
        read=lambda data: data, write=lambda data: data, survives=lambda data, written: True, name=b'"id"',
        null_policy="ignore", bytes_max=1 << 20, key_bytes_max=1024, depth_max=128, lives=Lives(),
        insert=("kind", b"insert"), empty=("empty", b"true"), version_name="version", stored=Stored, partition=0,
        partitions=1,
    )  # fmt: skip


def merged(record: bytes, delta: bytes) -> tuple[list[bytes], list[Record]]:
    """The records that were merged, and those that were left to the general way."""
    sow: list[Any] = []
    left: list[Record] = []

    def take(record: Record) -> int:
        left.append(record)
        return 0

    states = {b"7": Stored(1, record, 0, -1, b"")}
    raw_merge()([Record(b"7", delta, None, 0, 0)], states, {}, sow, [], take, lambda _size: False)
    return [data for _, data, _ in sow], left


RECORD = b'{"id":"7","a":{"b":{"c":"long enough"},"d":1},"e":[1,2,3],"f":0}'


@needs_compiled
@pytest.mark.parametrize("delta", [
    b'{"e":[],"e":[4]}', b'{"a":1,"a":2}', b'{"a":{"b":1},"a":2}', b'{"a":2,"a":{"b":1}}', b'{"a":{"d":5,"d":6}}',
    b'{"a":{"b":{"c":""}},"a":""}', b'{"e":"","f":1,"e":""}', b'{"a":{"b":0},"a":{"b":{"c":1}}}',
])  # fmt: skip
def test_a_member_that_is_changed_twice_is_left(delta):
    """Two changes of one place overlap: the record is left to the general way, and nothing is copied."""
    assert merged(RECORD, delta) == ([], [Record(b"7", delta, None, 0, 0)])


@needs_compiled
def test_members_in_any_order_are_merged():
    """Changes that have nothing in common are made at once, in any order of the delta's members."""
    members = [b'"f":1', b'"a":{"b":{"c":"x"},"d":2}', b'"e":[]', b'"g":true', b'"h":{}']
    for chosen in permutations(members):
        data, left = merged(RECORD, b"{" + b",".join(chosen) + b"}")
        assert left == []
        added = [member for member in chosen if member[1:2] in b"gh"]
        assert data == [b",".join([b'{"id":"7","a":{"b":{"c":"x"},"d":2},"e":[],"f":1', *added]) + b"}"]
