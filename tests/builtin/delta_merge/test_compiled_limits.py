"""The limits of the compiled merge, and its behaviour with damaged input: it does no harm and keeps no memory."""

from __future__ import annotations

import gc
import random
import tracemalloc
from itertools import permutations
from typing import Any

import pytest

from processor.api import Record, Stored
from processor.wire.command import KEY_BYTES_MAX
from processor.wire.partition_marks import Lives
from tests.builtin.delta_merge import json_texts
from tests.builtin.delta_merge.both_ways import POLICIES, BothWays, States, needs_compiled


@needs_compiled
@pytest.mark.parametrize(("record", "delta", "size"), [
    (None, b'{"id":"7","a":"xyz"}', 20),
    (None, b'{ "id":"7", "a":1e15 }', 33),
    (None, b'{"id":"7","a":1e15}', 33),
    (b'{"id":"7"}', b'{"a":1e15}', 33),
    (b'{"id":"7","a":0}', b'{"id":"7","a":100}', 18),
    (b'{"id":"7","a":"xyzxyzxyzxyz"}', b'{"id":"7","a":"xyzxyzxyzxyz"}', 29),
    (b'{"id":"7","a":"xyzxyzxyzxyz"}', b"{}", 29),
])  # fmt: skip
def test_a_record_is_as_long_as_the_setting_allows(record, delta, size):
    """A record of the longest allowed size is merged and one byte more is left, also where merging makes it longer."""
    for bytes_max in range(size - 2, size + 3):
        ways = BothWays(max_record_bytes=bytes_max)
        assert ways.leaves(record, delta) == (bytes_max < size)
        assert ways.merged == (bytes_max >= size)


@needs_compiled
def test_a_key_is_as_long_as_allowed(ways):
    """A key of the longest allowed size is merged, and one byte more is left."""
    for size, is_left in ((KEY_BYTES_MAX, False), (KEY_BYTES_MAX + 1, True)):
        key = b"k" * size
        assert ways.leaves(None, b'{"id":"%b"}' % key, key) is is_left
        assert ways.leaves(b'{"id":"%b"}' % key, b'{"a":1}', key) is is_left


def _members(first: int, end: int, value: bytes = b"1") -> bytes:
    return b",".join(b'"m%d":%b' % (number, value) for number in range(first, end))


@needs_compiled
@pytest.mark.parametrize(
    ("count", "is_left"), [(63, False), (64, False), (65, False), (4095, False), (4096, False), (4097, True)]
)
def test_very_wide_records_are_left(ways, count, is_left):
    """A record with very many members at any depth is left."""
    record = b'{"id":"7",%b}' % _members(1, count)
    assert ways.leaves(record, b'{"m%d":2,"m1":1,"new":{}}' % (count - 1)) is is_left
    record = b'{"id":"7","a":{"b":{%b}}}' % _members(4, count + 1)
    assert ways.leaves(record, b'{"a":{"b":{"m%d":2,"new":3},"c":{"d":4}}}' % count) is is_left
    assert ways.merged == 2


@needs_compiled
def test_only_objects_that_hold_each_other_are_wide_together(ways):
    """Of two objects next to each other each may have as many members as allowed."""
    wide = _members(0, 4000)
    assert not ways.leaves(b'{"id":"7","a":{%b},"b":{%b}}' % (wide, wide), b'{"a":{"m7":2},"b":{"m9":3,"new":4}}')
    assert ways.leaves(b'{"id":"7","a":{%b,"b":{%b}}}' % (wide, wide), b'{"a":{"m7":2,"b":{"m9":3,"new":4}}}')


@needs_compiled
@pytest.mark.parametrize(("count", "is_left"), [(255, False), (256, False), (257, True)])
def test_very_many_changes_are_left(ways, count, is_left):
    """Very many changes of stored members, of new ones, or of both in any order are left."""
    record = b'{%b,"id":"7"}' % _members(0, count)
    assert ways.leaves(record, b"{%b}" % _members(0, count, b"2")) is is_left
    assert ways.leaves(b'{"id":"7"}', b"{%b}" % _members(0, count, b"2")) is is_left
    mixed = [b'"m%d":2' % number for number in range(count)]
    random.Random(1).shuffle(mixed)
    assert ways.leaves(b'{%b,"id":"7"}' % _members(0, 40), b"{%b}" % b",".join(mixed)) is is_left
    assert ways.merged == 3


@needs_compiled
def test_very_long_searches_are_left(ways):
    """A search for a few hundred absent members in a record of thousands is left."""
    record = b'{"id":"7",%b}' % _members(0, 4000)
    assert not ways.leaves(record, b"{%b}" % _members(4000, 4004))
    assert ways.leaves(record, b"{%b}" % _members(4000, 4005))
    assert not ways.leaves(record, b"{%b}" % _members(0, 4000))
    assert ways.merged == 3


@needs_compiled
@pytest.mark.parametrize("policy", POLICIES)
def test_depth_is_the_message_types(policy):
    """The compiled way merges to the depth of the message type, and leaves deeper deltas."""
    ways = BothWays(null_policy=policy)
    for depth in range(120, 135):
        delta = b'{"id":"7","a":' + b'{"a":' * (depth - 1) + b"1" + b"}" * depth
        told = ways.one(None, delta)
        assert bool(told.sow) is (depth <= ways.codec.max_depth)
        record = b'{"id":"7","a":' + b'{"b":0,"a":' * (depth - 1) + b"0" + b"}" * depth
        ways.one(record, delta)
        ways.one(b'{"id":"7","a":0}', delta)
        ways.one(record, b'{"a":' * 9 + b'{"b":{}}' + b"}" * 9)
        ways.one(b'{"id":"7"}', b'{"a":%b1%b,"b":"%b"}' % (b"[" * depth, b"]" * depth, b"[" * 200))


@needs_compiled
@pytest.mark.parametrize("policy", POLICIES)
def test_many_brackets_are_not_deep(policy):
    """Long lists of objects or arrays, and brackets in texts, do not count as depth."""
    ways = BothWays(null_policy=policy)
    max_depth = ways.codec.max_depth
    for listed in (b'{"b":"\\"]}"}', b"[[1,2]]", b'"[[[{{"', b"{}"):
        deltas = [
            b'{"a":[%b],"c":%b1%b,"id":"7"}' % (b",".join([listed] * 300), b"[" * depth, b"]" * depth)
            for depth in (1, max_depth - 1, max_depth)
        ]
        assert [ways.leaves(None, delta) for delta in deltas] == [False, False, True]
        assert [ways.leaves(b'{"id":"7"}', delta) for delta in deltas] == [False, False, True]
    assert ways.merged == 4 * 4


@needs_compiled
def test_a_long_record_is_not_read_again_for_every_level(ways):
    """A long record whose delta reaches deep into it is left; a short one is merged."""
    for depth, size, is_left in ((50, 100, False), (2, 100_000, False), (50, 100_000, True)):
        levels = b'{"a":' * depth
        record = b'{"id":"7","b":' + levels + b'{"c":0,"d":"%b"}' % (b"x" * size) + b"}" * depth + b"}"
        delta = b'{"b":' + levels + b'{"c":1}' + b"}" * depth + b"}"
        assert ways.leaves(record, delta) is is_left
        record = b'{"id":"7","b":' + levels + b'{"c":0}' + b"}" * depth + b"}"
        delta = b'{"b":' + levels + b'{"c":"%b"}' % (b"x" * size) + b"}" * depth + b"}"
        assert ways.leaves(record, delta) is is_left
    assert ways.merged == 6


def raw_merge() -> Any:
    """The compiled merge of JSON texts that are not parsed at all: it sees them as they are."""
    from processor.builtin.delta_merge.fast_path_json import CompiledDeltas

    return CompiledDeltas(
        read=lambda data: data, write=lambda data: data, survives=lambda data, written: True, names=(b'"id"',),
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


def _differs(ways: BothWays, record: bytes, deltas: tuple[bytes, ...]) -> None:
    """Merge deltas into a record that may be damaged; the outcome counts where it is a record of ours all the same."""
    is_ours = ways.is_ours(record)
    for delta in deltas:
        if is_ours:
            ways.one(record, delta)
            continue
        states: States = {b"7": Stored(1, record, 0, -1, b"")}
        sow: list[Any] = []
        ways.compiled([Record(b"7", delta, None, 0, 0)], states, {}, sow, [], lambda record: 0, lambda made: False)
        # Nothing is in it that is not in one of them.
        assert all(len(data) <= len(record) + len(ways.written(delta)) for _, data, _ in sow)


_DAMAGED = (
    b'{"id":"7","a":{"b":[1,{"c":"x\\\\"}],"d":{"e":null}},"f":"\xc3\xa9\\"","g":-1.5e300,"h":{},"i":[],"j":true}',
    b'{"id":7,"a":{"d":{"e":{"f":"\\u0001"}}}}',
)
_ON_DAMAGED = (
    b"{}",
    b'{"id":"7","a":{"d":{"e":1,"x":2}},"j":false,"new":[1]}',
    b'{"h":{"x":1},"i":[{}],"f":{},"g":0}',
    b'{"a":{"b":[1,{"c":"x\\\\"}],"d":{"e":{"f":{}}}},"a":{"d":{"e":{"f":"\\u0001","g":1}}}}',
)


@needs_compiled
@pytest.mark.parametrize("record", _DAMAGED)
@pytest.mark.parametrize("policy", POLICIES)
def test_damaged_records_do_no_harm(policy, record):
    """Records cut off at either end, or with any byte changed, missing or doubled, do no harm."""
    ways = BothWays(null_policy=policy)
    record = ways.written(record)
    for at in range(len(record) + 1):
        _differs(ways, record[:at], _ON_DAMAGED)
        _differs(ways, record[at:], _ON_DAMAGED)
        _differs(ways, record[:at] + record[at : at + 1] + record[at:], _ON_DAMAGED)
        for byte in b'"\\{}[],:n0 \x00\xff':
            _differs(ways, record[:at] + bytes((byte,)) + record[at + 1 :], _ON_DAMAGED)
            _differs(ways, record[:at] + bytes((byte,)), _ON_DAMAGED)


@needs_compiled
@pytest.mark.parametrize("record", [
    b"", b"{", b"}", b"{]", b"7", b'"{}"', b'{"id":"7"', b'{"id":"7","a":{}', b'{"id":"7","a":{]}',
    b'{"id":"7","a":{}}}', b'{"id":"7","a":{}}x}', b'{"id":"7","a":{},}', b'{"id":"7" "a":{}}', b'{"id":"7","a"}',
    b'{"id":"7","a":}', b'{"id":"7",a:{}}', b'{"id":"7","a":{"b"}}', b'{"id":"7","a":{"b":}}',
    b'{"id":"7","a":{"b":1]}', b'{"id":"7}', b'{"id":"7","a":{}]', b'["id":"7","a":{}}', b'{"id":"7","a":{}} ',
])  # fmt: skip
def test_records_with_another_structure_are_left(ways, record):
    """A damaged record is left before anything is added to it."""
    assert ways.leaves(record, b'{"a":{"c":1}}') is True
    assert ways.merged == (record[-1:] == b" ")  # As the exact writer ends a record.


def _damage(ways: BothWays, rng: random.Random, count: int) -> None:
    """Merge into so many random records, each damaged at random."""
    for _ in range(count):
        delta = json_texts.delta(rng, b"7", None)
        try:
            record = bytearray(ways.written(json_texts.delta(rng, b"7", None)))
        except Exception:  # noqa: BLE001 - what is no message is no record
            continue
        again = json_texts.delta(rng, b"7", bytes(record))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(record))
            record[at : at + rng.randrange(3)] = bytes(rng.choices(b'"\\{}[],:n0', k=rng.randrange(3)))
            record = record or bytearray(b"{")
        _differs(ways, bytes(record), (delta, again))


@needs_compiled
@pytest.mark.parametrize("policy", POLICIES)
def test_random_damage_does_no_harm(policy):
    """Random damage in random records never crashes the compiled merge."""
    _damage(BothWays(null_policy=policy), random.Random(5), 1_000)


@needs_compiled
@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_very_much_damage_does_no_harm(policy, random_seed, steps):
    """As above, with more damage, other each time."""
    _damage(BothWays(null_policy=policy), random.Random(random_seed), steps(75_000))


@needs_compiled
def test_nothing_is_kept_of_what_is_merged(ways):
    """The compiled merge holds no memory of records that it merged, left or failed on."""
    states: States = {b"7": Stored(1, b'{"id":"7","a":{"b":1}}', 0, -1, b"")}
    deltas = (
        b'{"a":{"b":%d,"c":[1]}}',
        b'{"a":{"b":1}}',
        b'{"a":null,"n":%d,"b":{"c":null}}',
        b"{%d",
        b'{"id":%d}',
        b'{"id":"7"}',
    )
    values = [delta % number if b"%d" in delta else delta for number in range(300) for delta in deltas]
    records = [Record(b"7", value, None, 0, 0) for value in values]
    missing = [Record(b"8", b'{"id":"8","a":1}', None, 0, 0)]

    def merge() -> None:
        sow: list[Any] = []
        ways.compiled(records, dict(states), {}, sow, [], lambda record: 0, lambda made: False)
        ways.compiled(missing, {b"8": None}, {}, sow, [], lambda record: 0, lambda made: False)
        with pytest.raises(KeyError):
            ways.compiled(missing, {}, {}, sow, [], lambda record: 0, lambda made: False)
        assert sow

    merge()
    tracemalloc.start()
    try:
        merge()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5):
            merge()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 2_000


@needs_compiled
def test_room_for_a_long_record_is_given_back(ways):
    """After its batch the memory for a long record is freed, as there is a merge for each partition."""
    records = [Record(b"7", b'{"id":"7","a":"%b"}' % (b"x" * 1_000_000), None, 0, 0)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            ways.compiled(records, {b"7": None}, {}, [], [], lambda record: 0, lambda made: False)
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
        assert tracemalloc.get_traced_memory()[1] - before > 2_000_000
    finally:
        tracemalloc.stop()


@needs_compiled
def test_an_error_of_the_callback_goes_on(ways):
    """Records merged before an error of `take` stay merged."""

    class Stop(Exception):
        pass

    def take(record: Record) -> None:
        raise Stop

    records = [Record(b"7", value, None, 0, 0) for value in (b'{"id":7}', None, b'{"a":1}')]
    states: States = {b"7": None}
    sow: list[Any] = []
    with pytest.raises(Stop):
        ways.compiled(records, states, {}, sow, [], take, lambda made: False)
    assert [data for _, data, _ in sow] == [b'{"id":7}']
