"""The compiled merge of JSON texts does what the one in Python does, and leaves it only what is unusual."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from processor.api import Record, Stored
from processor.plugins.request import KEY_BYTES_MAX
from tests.plugins import json_texts
from tests.plugins.both_ways import VERSIONS_MADE, BothWays, States

_NAME = "processor.plugins.compiled_deltas"
_HAS_COMPILED = importlib.util.find_spec(_NAME) is not None
_POLICIES = ("ignore", "set", "remove")

needs_compiled = pytest.mark.skipif(not _HAS_COMPILED, reason="compiled_deltas was not compiled: no C compiler")


@pytest.fixture
def ways(monkeypatch) -> BothWays:
    """Those of a topic of default settings."""
    return BothWays(monkeypatch)


def _delta(rng: random.Random, key: bytes, record: bytes | None) -> bytes:
    """Any delta: often one that says its key, and says again what the record has."""
    found = json_texts.members(rng)
    pairs = found.pairs
    if record is not None and rng.random() < 0.6:
        parsed = json.loads(record)
        again = json_texts.of_parsed(rng, parsed)
        pairs += rng.sample(again.pairs, rng.randrange(len(again.pairs) + 1))
        pairs = [pair for pair in pairs if pair[0] != "id"]
    if rng.random() < 0.9:
        pairs.insert(rng.choice((0, len(pairs), rng.randrange(len(pairs) + 1))), ("id", _said(rng, key)))
    return json_texts.spelled(rng, json_texts.Members(pairs))


def _said(rng: random.Random, key: bytes) -> Any:
    """What a message may say its key is."""
    text = key.decode(errors="replace")
    if rng.random() < 0.85:
        return text
    return rng.choice([json_texts.Raw(text or "0"), json_texts.Raw(text or '""'), json_texts.value(rng)])


def _states(rng: random.Random, ways: BothWays) -> States:
    """A state of every key: none, or any record of ours."""
    states: States = {}
    for key in json_texts.KEYS:
        states[key] = None
        if rng.random() < 0.7:
            try:
                record = ways.written(_delta(rng, key, None))
            except Exception:  # noqa: BLE001 - what is no message is no record
                continue
            expires_at_ms = rng.choice((0,) * 15 + (1,))
            correlation_id = rng.choice((b"",) * 15 + (b"c",))
            version = rng.choice((1, VERSIONS_MADE - 2, VERSIONS_MADE - 1, VERSIONS_MADE, 2**63))
            states[key] = Stored(version, record, expires_at_ms, rng.choice((-1, 5)), correlation_id)
    return states


def _batches(ways: BothWays, rng: random.Random, count: int) -> None:
    """Merge so many batches in both ways; the deltas of one key meet each other's records."""
    for _ in range(count):
        states = _states(rng, ways)
        records = []
        for offset in range(60):
            key = rng.choice(json_texts.KEYS[:4] if rng.random() < 0.5 else json_texts.KEYS)
            state = states[key]
            value: bytes | None = _delta(rng, key, None if state is None else state.value)
            headers = rng.choice((None,) * 40 + ([], [("own", b"h")]))
            if rng.random() < 0.02:
                value = rng.choice((None, b"", b" ", b"7", b"[]", b'"', b'"a"', b"null", b"{}", b"{", b"}", b"[{}]"))
            given = None if rng.random() < 0.01 else key
            records.append(Record(given, value, headers, offset, 0))
        ways.merge(records, states)


@needs_compiled
@pytest.mark.parametrize("policy", _POLICIES)
@pytest.mark.parametrize("bytes_max", [60, 1_048_576])
def test_any_texts_come_out_alike(monkeypatch, policy, bytes_max):
    """Ordinary or not: the same records, deltas and states, and the same records left."""
    ways = BothWays(monkeypatch, null_policy=policy, max_record_bytes=bytes_max)
    _batches(ways, random.Random(7), 60)
    assert ways.merged - ways.merged_after_all > 500


@needs_compiled
@pytest.mark.long
@pytest.mark.parametrize("policy", _POLICIES)
def test_very_many_texts_come_out_alike(monkeypatch, policy):
    """Others every time."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for bytes_max in (60, 300, 1_048_576):
        ways = BothWays(monkeypatch, null_policy=policy, max_record_bytes=bytes_max)
        _batches(ways, random.Random(seed), 1_000)
        _damage(ways, random.Random(seed), 25_000)


def _ordinary(rng: random.Random, depth: int = 0) -> Any:
    """A value that a program writes."""
    if depth < 3 and rng.random() < 0.3:
        return {rng.choice(("a", "b", "price", "größe")): _ordinary(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice((
        rng.randrange(10**6), round(rng.uniform(-1000, 1000), 3), rng.random(), True, False, "text", "Zürich €",
        'a "b"\n', [], [1, 2.5, "x", [True]], 2**63, 0.0, -1,
    ))  # fmt: skip


@needs_compiled
@pytest.mark.parametrize("policy", _POLICIES)
def test_ordinary_texts_are_compiled(monkeypatch, policy):
    """Every one: objects in objects, numbers and texts of all kinds, arrays, in any order, of any kind of key."""
    ways = BothWays(monkeypatch, null_policy=policy)
    rng = random.Random(3)
    states: States = dict.fromkeys((b"7", b"-12", b"k", "schlüssel".encode()))
    records = []
    for offset in range(6_000):
        key = rng.choice(list(states))
        said: Any = int(key) if key in (b"7", b"-12") and rng.random() < 0.5 else key.decode()
        body = {name: _ordinary(rng) for name in rng.sample("abcdef", rng.randrange(5))}
        body = {"id": said, **body} if rng.random() < 0.5 else {**body, "id": said}
        text = json.dumps(body, separators=rng.choice(((",", ":"), (", ", ": "))), ensure_ascii=rng.random() < 0.5)
        records.append(Record(key, text.encode(), None, offset, 0))
    found = ways.merge(records, states)
    assert len(found.sow) == 6_000
    assert ways.left_by_compiled == 0


@needs_compiled
@pytest.mark.parametrize(("record", "delta"), [
    (b'{"id":"7"}', b"{}"),
    (b'{"id":"7"}', b'{"a":{}}'),
    (b'{"id":"7","a":{}}', b'{"a":{}}'),
    (b'{"id":"7","a":{}}', b'{"a":{"b":{}}}'),
    (b'{"id":"7","a":{}}', b'{"a":{"b":1,"c":2}}'),
    (b'{"id":"7","a":{"b":1}}', b'{"a":{"c":2,"b":3,"d":4},"e":5}'),
    (b'{"a":{"b":{"c":1}},"id":"7"}', b'{"e":1,"a":{"f":2,"b":{"g":3,"c":4},"h":5},"i":6}'),
    (b'{"a":1,"id":"7","b":2}', b'{"new":0,"b":3,"id":7,"a":4,"more":5}'),
    (b'{"a":1,"id":7,"b":2}', b'{"id":"7","b":3}'),
    (b'{"a":{"b":1,"c":2},"id":"7"}', b'{"a":{"b":1,"c":{}},"d":[]}'),
    (b'{"a":{"b":1,"c":2},"id":"7"}', b'{"c":1,"a":{"b":1,"c":2},"d":[]}'),
    (b'{"a":{"b":{"c":1}},"id":"7"}', b'{"a":{"b":{"c":1},"d":0}}'),
    (b'{"a":{"b":1},"id":"7"}', b'{"a":5}'),
    (b'{"a":5,"id":"7"}', b'{"a":{"b":1}}'),
    (b'{"a":[1],"id":"7"}', b'{"a":[1.0]}'),
    (b'{"a":[{"b":1}],"id":"7"}', b'{"a":[1]}'),
    (b'{"a":[{"b":1}],"id":"7"}', b'{"a":[{"b":1}],"b":[{"b":1}]}'),
    (b'{"a":1,"ab":2,"id":"7"}', b'{"ab":3,"b":4}'),
    (b'{"a\\"":1,"a":2,"id":"7"}', b'{"a\\u0022":3,"\\u0061":4}'),
    (b'{"id":"7","a":{"id":"8"}}', b'{"a":{"id":"9"}}'),
    (b'{"id":"7","a":"}"}', b'{"a":"{\\"x\\":null","b":"\\\\"}'),
    (b'{"id":"7","a":null}', b'{"a":1}'),
    (b'{"id":"7","a":true}', b'{"a":1}'),
    (b'{"id":"7","a":1}', b'{"a":"1"}'),
    (b'{"id":"7","a":0.0}', b'{"a":-0.0}'),
    (b'{"id":"7","a":1.0}', b'{"a":10e-1}'),
    (b'{"id":"7","a":0.30000000000000004}', b'{"a":0.3}'),
    (None, b'{"id":"7"}'),
    (None, b'{"a":1,"id":7}'),
    (None, b'{"a":1,"id":"7","b":{"c":[{"d":"null"}]}}'),
    (None, b'{"a":1,"b":2,"id":"7"}'),
])  # fmt: skip
@pytest.mark.parametrize("policy", _POLICIES)
def test_such_deltas_are_compiled(monkeypatch, policy, record, delta):
    """Each at one rule's edge."""
    ways = BothWays(monkeypatch, null_policy=policy)
    assert not ways.leaves(record, delta)
    assert ways.merged == 1


@needs_compiled
def test_nulls_are_compiled_as_their_policy_says(monkeypatch):
    """Set, or ignored, at any depth of what merges; all else that has nulls is left."""
    record = b'{"id":"7","a":{"b":1},"c":null}'
    for delta in (
        b'{"a":null,"d":null}',
        b'{"a":{"b":null,"e":null},"c":null}',
        b'{"c":1}',
        b'{"d":[null,{"a":null}]}',
    ):
        assert not BothWays(monkeypatch, null_policy="set").leaves(record, delta)
        assert not BothWays(monkeypatch, null_policy="ignore").leaves(record, delta)
        assert BothWays(monkeypatch, null_policy="remove").leaves(record, delta) == (
            delta[5:6] != b"1" and b"[" not in delta
        )
    assert not BothWays(monkeypatch, null_policy="set").leaves(record, b'{"d":{"a":null}}')
    for delta in (b'{"d":{"a":null}}', b'{"c":{"a":{"b":null}}}'):
        assert BothWays(monkeypatch, null_policy="ignore").leaves(record, delta)


@needs_compiled
@pytest.mark.parametrize(("key", "says"), [
    (b"7", b"7"), (b"7", b'"7"'), (b"-1", b"-1"), (b"18446744073709551615", b"18446744073709551615"), (b"", b'""'),
    (b"true", b'"true"'), (b"null", b'"null"'), (b"1.5", b'"1.5"'), (b"7 ", b'"7 "'), (b"{}", b'"{}"'),
    ("é".encode(), '"é"'.encode()), ("é".encode(), b'"\\u00e9"'), (b"7", b'"\\u0037"'),
    (b"0", b"-0"),
])  # fmt: skip
def test_such_keys_are_compiled(ways, key, says):
    """Texts and integers, of new records and of known ones."""
    assert not ways.leaves(None, b'{"id":%b}' % says, key)
    assert not ways.leaves(b'{"id":"as it was"}', b'{"a":1,"id":%b}' % says, key)
    assert ways.merged == 2


@needs_compiled
@pytest.mark.parametrize(("key", "says"), [
    (b"true", b"true"), (b"null", b"null"), (b"1.5", b"1.5"), (b"7", b"7.0"), (b"-0", b"-0"), (b"7", b'"8"'),
    (b"1e3", b"1e3"), (b"{}", b"{}"), (b"[]", b"[]"), (b"a\\n", b'"a\\n"'), (b"\xff", b'"\\u00ff"'), (b"7", b'"70"'),
    (b"70", b'"7"'), (b"70", b"7"), (b"7", b"70"), (b'"7"', b'"7"'), (b"1.0", b"1.0"), (b"-0.0", b"-0.0"),
    (b"100000000000000000000.0", b"1e20"), (b"1e+16", b"1e16"), (b"1e-7", b"1e-7"), (b"false", b"false"),
    (b'{"a":1}', b'{"a":1}'),
])  # fmt: skip
def test_what_is_not_the_key_is_left(ways, key, says):
    """However much it looks like it."""
    assert ways.leaves(None, b'{"id":%b}' % says, key)
    assert ways.leaves(b'{"id":"as it was"}', b'{"a":1,"id":%b}' % says, key)


@needs_compiled
def test_a_record_without_its_key_is_left(ways):
    """A new one, and a known one that somebody damaged."""
    assert ways.leaves(None, b'{"a":1}')
    assert ways.leaves(None, b"{}")
    assert ways.leaves(b'{"a":{"id":"7"}}', b'{"a":1}')
    assert ways.leaves(b"{}", b'{"a":1}')
    assert ways.merged == 0


@needs_compiled
def test_other_states_are_left(ways):
    """Ones that expire, and that have a correlation id."""
    record = Record(b"7", b'{"a":1}', None, 0, 0)
    for state in (Stored(1, b'{"id":"7"}', 1, -1, b""), Stored(1, b'{"id":"7"}', 0, -1, b"c")):
        assert ways.merge([record], {b"7": state}).left == [record]
    assert ways.left_by_compiled == 2
    assert ways.merge([record], {b"7": Stored(1, b'{"id":"7"}', 0, 5, b"")}).left == []
    assert ways.left_by_compiled == 2
    as_no_store_has_it: Any = bytearray(b'{"id":"7"}')
    assert ways.leaves(as_no_store_has_it, b'{"a":1}')


@needs_compiled
def test_versions_are_told_beyond_the_made_headers(ways):
    """The one before the last made, the last, and those that are made for their record."""
    for version in (*range(1, VERSIONS_MADE + 3), 2**70):
        told = ways.one(b'{"id":"7"}', b'{"a":1}', version=version)
        assert told.sow[0][2] == told.delta[0][2] == [("version", b"%d" % (version + 1))]
    assert ways.left_by_compiled == 0


@needs_compiled
def test_what_says_nothing_new_is_told_as_empty(ways):
    """The record stays the same object."""
    record = b'{"a":{"b":1},"id":"7"}'
    for version in (1, VERSIONS_MADE):
        told = ways.one(record, b'{"id":7,"a":{"b":1}}', version=version)
        assert told.sow[0][1] is record
        assert told.delta[0][1:] == (b'{"id":"7"}', [("version", b"%d" % (version + 1)), ("empty", b"true")])
    assert ways.left_by_compiled == 0


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
def test_a_record_is_as_long_as_the_setting_allows(monkeypatch, record, delta, size):
    """And not a byte longer, also where it is longer than what was sent."""
    for bytes_max in range(size - 2, size + 3):
        ways = BothWays(monkeypatch, max_record_bytes=bytes_max)
        assert ways.leaves(record, delta) == (bytes_max < size)
        assert ways.merged == (bytes_max >= size)


@needs_compiled
def test_a_key_is_as_long_as_allowed(ways):
    """And not a byte longer."""
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
    """At whatever depth."""
    record = b'{"id":"7",%b}' % _members(1, count)
    assert ways.leaves(record, b'{"m%d":2,"m1":1,"new":{}}' % (count - 1)) is is_left
    record = b'{"id":"7","a":{"b":{%b}}}' % _members(4, count + 1)
    assert ways.leaves(record, b'{"a":{"b":{"m%d":2,"new":3},"c":{"d":4}}}' % count) is is_left
    assert ways.merged == 2


@needs_compiled
def test_only_objects_that_hold_each_other_are_wide_together(ways):
    """Of two side by side each may have as many members as allowed."""
    wide = _members(0, 4000)
    assert not ways.leaves(b'{"id":"7","a":{%b},"b":{%b}}' % (wide, wide), b'{"a":{"m7":2},"b":{"m9":3,"new":4}}')
    assert ways.leaves(b'{"id":"7","a":{%b,"b":{%b}}}' % (wide, wide), b'{"a":{"m7":2,"b":{"m9":3,"new":4}}}')


@needs_compiled
@pytest.mark.parametrize(("count", "is_left"), [(255, False), (256, False), (257, True)])
def test_very_many_changes_are_left(ways, count, is_left):
    """Of members that are there, of new ones, and of both in an order of their own."""
    record = b'{%b,"id":"7"}' % _members(0, count)
    assert ways.leaves(record, b"{%b}" % _members(0, count, b"2")) is is_left
    assert ways.leaves(b'{"id":"7"}', b"{%b}" % _members(0, count, b"2")) is is_left
    mixed = [b'"m%d":2' % number for number in range(count)]
    random.Random(1).shuffle(mixed)
    assert ways.leaves(b'{%b,"id":"7"}' % _members(0, 40), b"{%b}" % b",".join(mixed)) is is_left
    assert ways.merged == 3


@needs_compiled
def test_very_long_searches_are_left(ways):
    """A few hundred members that a record of thousands does not have."""
    record = b'{"id":"7",%b}' % _members(0, 4000)
    assert not ways.leaves(record, b"{%b}" % _members(4000, 4004))
    assert ways.leaves(record, b"{%b}" % _members(4000, 4005))
    assert not ways.leaves(record, b"{%b}" % _members(0, 4000))
    assert ways.merged == 3


@needs_compiled
@pytest.mark.parametrize("policy", _POLICIES)
def test_depth_is_the_message_types(monkeypatch, policy):
    """At every depth up to the limit and beyond."""
    ways = BothWays(monkeypatch, null_policy=policy)
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
@pytest.mark.parametrize("policy", _POLICIES)
def test_many_brackets_are_not_deep(monkeypatch, policy):
    """A list of objects or of arrays, however long, and brackets in texts; beside the deepest that is allowed."""
    ways = BothWays(monkeypatch, null_policy=policy)
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
    """One that is reached deep into is left; not so a short one."""
    for depth, size, is_left in ((50, 100, False), (2, 100_000, False), (50, 100_000, True)):
        levels = b'{"a":' * depth
        record = b'{"id":"7","b":' + levels + b'{"c":0,"d":"%b"}' % (b"x" * size) + b"}" * depth + b"}"
        delta = b'{"b":' + levels + b'{"c":1}' + b"}" * depth + b"}"
        assert ways.leaves(record, delta) is is_left
        record = b'{"id":"7","b":' + levels + b'{"c":0}' + b"}" * depth + b"}"
        delta = b'{"b":' + levels + b'{"c":"%b"}' % (b"x" * size) + b"}" * depth + b"}"
        assert ways.leaves(record, delta) is is_left
    assert ways.merged == 6


def _differs(ways: BothWays, record: bytes, deltas: tuple[bytes, ...]) -> None:
    """Merge deltas into a record that may be damaged; the outcome counts where it is a record of ours all the same."""
    is_ours = ways.is_ours(record)
    for delta in deltas:
        if is_ours:
            ways.one(record, delta)
            continue
        states: States = {b"7": Stored(1, record, 0, -1, b"")}
        sow: list[Any] = []
        ways.compiled([Record(b"7", delta, None, 0, 0)], states, {}, sow, [], lambda record: None)
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
@pytest.mark.parametrize("policy", _POLICIES)
def test_damaged_records_do_no_harm(monkeypatch, policy, record):
    """Cut off anywhere, at either end; with any byte another one, missing, or there twice."""
    ways = BothWays(monkeypatch, null_policy=policy)
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
    """Before anything is added to what is damaged."""
    assert ways.leaves(record, b'{"a":{"c":1}}') is True
    assert ways.merged == (record[-1:] == b" ")  # As the exact writer ends a record.


def _damage(ways: BothWays, rng: random.Random, count: int) -> None:
    """Merge into so many random records, each damaged at random."""
    for _ in range(count):
        delta = _delta(rng, b"7", None)
        try:
            record = bytearray(ways.written(_delta(rng, b"7", None)))
        except Exception:  # noqa: BLE001 - what is no message is no record
            continue
        again = _delta(rng, b"7", bytes(record))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(record))
            record[at : at + rng.randrange(3)] = bytes(rng.choices(b'"\\{}[],:n0', k=rng.randrange(3)))
            record = record or bytearray(b"{")
        _differs(ways, bytes(record), (delta, again))


@needs_compiled
@pytest.mark.parametrize("policy", _POLICIES)
def test_random_damage_does_no_harm(monkeypatch, policy):
    """Of random records."""
    _damage(BothWays(monkeypatch, null_policy=policy), random.Random(5), 1_000)


@needs_compiled
def test_nothing_is_kept_of_what_is_merged(ways):
    """Whether merged, left, or failed."""
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
        ways.compiled(records, dict(states), {}, sow, [], lambda record: None)
        ways.compiled(missing, {b"8": None}, {}, sow, [], lambda record: None)
        with pytest.raises(KeyError):
            ways.compiled(missing, {}, {}, sow, [], lambda record: None)
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
    """After its batch: there is one of these for each partition."""
    records = [Record(b"7", b'{"id":"7","a":"%b"}' % (b"x" * 1_000_000), None, 0, 0)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            ways.compiled(records, {b"7": None}, {}, [], [], lambda record: None)
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
        assert tracemalloc.get_traced_memory()[1] - before > 2_000_000
    finally:
        tracemalloc.stop()


@needs_compiled
def test_an_error_of_whoever_takes_the_rest_goes_on(ways):
    """What was merged before it stays merged, as in Python."""

    class Stop(Exception):
        pass

    def take(record: Record) -> None:
        raise Stop

    records = [Record(b"7", value, None, 0, 0) for value in (b'{"id":7}', None, b'{"a":1}')]
    for way in (ways.compiled, ways.pure):
        states: States = {b"7": None}
        sow: list[Any] = []
        with pytest.raises(Stop):
            way(records, states, {}, sow, [], take)
        assert [data for _, data, _ in sow] == [b'{"id":7}']


def test_where_there_is_a_compiler_it_is_compiled():
    """Building goes on without it, so nobody would hear that it failed."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    found = next(filter(None, map(shutil.which, (compiler, "cc", "gcc", "clang"))), None)
    if found is None:
        pytest.skip("no C compiler")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        pytest.skip("no Python.h")
    assert _HAS_COMPILED, (
        f"there is {found}, but {_NAME} was not built: pip install --no-build-isolation --verbose -e ."
    )
    importlib.import_module(_NAME)


_SHOWS_WAY = """
import sys
if sys.argv[1] == "missing":
    sys.modules["processor.plugins.compiled_deltas"] = None
from processor.config import TopicConfig
from processor.plugins.delta_merge import DeltaMerge
from processor.testing import ProcessorTestDriver
driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")
driver.pipe_batch([(b"7", b'{"id":7,"a":1}', []), (b"7", b'{"a":2}', [])])
print(type(driver._task._processor._merge_plain).__name__, driver.pending_output("sow")[-1].value.decode())
"""


@pytest.mark.parametrize(("extension", "switch", "way"), [
    ("there", "1", "function"), ("missing", "", "function"),
])  # fmt: skip
def test_without_it_the_same_is_done_in_python(extension, switch, way):
    """Where it is switched off or missing."""
    done = subprocess.run(
        [sys.executable, "-c", _SHOWS_WAY, extension],
        env={**os.environ, "SOWSTREAM_NO_EXTENSIONS": switch}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [way, '{"id":7,"a":2}'], done.stderr
