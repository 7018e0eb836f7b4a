"""The compiled merge beside damaged records and errors: it reads nothing that is not there, and keeps nothing."""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import Any

import pytest

from processor.api import Record, Stored
from tests.builtin.delta_merge import json_texts
from tests.builtin.delta_merge.both_ways import POLICIES, BothWays, States, needs_compiled


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
