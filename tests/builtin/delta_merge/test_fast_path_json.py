"""The compiled merge of JSON texts equals the one in Python, and leaves only unusual commands to it."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from processor.api import Record, Stored
from tests.builtin.delta_merge import json_texts
from tests.builtin.delta_merge.both_ways import HAS_COMPILED, NAME, POLICIES, BothWays, States, needs_compiled


def _states(rng: random.Random, ways: BothWays) -> States:
    """A state of every key: none, or any record of ours."""
    states: States = {}
    for key in json_texts.KEYS:
        states[key] = None
        if rng.random() < 0.7:
            try:
                record = ways.written(json_texts.delta(rng, key, None))
            except Exception:  # noqa: BLE001 - what is no message is no record
                continue
            expires_at_ms = rng.choice((0,) * 15 + (1,))
            correlation_id = rng.choice((b"",) * 15 + (b"c",))
            version = rng.choice((1, 8, 9, 10, 4095, 10**18 - 1, 2**63 - 100))
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
            value: bytes | None = json_texts.delta(rng, key, None if state is None else state.value)
            headers = rng.choice((None,) * 40 + ([], [("own", b"h")]))
            if rng.random() < 0.02:
                value = rng.choice((None, b"", b" ", b"7", b"[]", b'"', b'"a"', b"null", b"{}", b"{", b"}", b"[{}]"))
            given = None if rng.random() < 0.01 else key
            records.append(Record(given, value, headers, offset, 0))
        ways.merge(records, states)


@needs_compiled
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("bytes_max", [60, 1_048_576])
def test_any_texts_come_out_alike(policy, bytes_max):
    """Random texts give the same records, deltas and states in both ways, and the same records are left."""
    ways = BothWays(null_policy=policy, max_record_bytes=bytes_max)
    _batches(ways, random.Random(7), 60)
    assert ways.merged - ways.merged_after_all > 500


@needs_compiled
@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_very_many_texts_come_out_alike(policy, random_seed, steps):
    """Very many random texts, others each time, are merged alike in both ways."""
    for bytes_max in (60, 300, 1_048_576):
        ways = BothWays(null_policy=policy, max_record_bytes=bytes_max)
        _batches(ways, random.Random(random_seed), steps(2_000))


def _ordinary(rng: random.Random, depth: int = 0) -> Any:
    """A value that a program writes."""
    if depth < 3 and rng.random() < 0.3:
        return {rng.choice(("a", "b", "price", "größe")): _ordinary(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice((
        rng.randrange(10**6), round(rng.uniform(-1000, 1000), 3), rng.random(), True, False, "text", "Zürich €",
        'a "b"\n', [], [1, 2.5, "x", [True]], 2**63, 0.0, -1,
    ))  # fmt: skip


@needs_compiled
@pytest.mark.parametrize("policy", POLICIES)
def test_ordinary_texts_are_compiled(policy):
    """Usual texts are all merged by the compiled way, with any nesting, order, type of value and key."""
    ways = BothWays(null_policy=policy)
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
@pytest.mark.parametrize("policy", POLICIES)
def test_such_deltas_are_compiled(policy, record, delta):
    """Deltas at the edge of one rule each are still merged by the compiled way."""
    ways = BothWays(null_policy=policy)
    assert not ways.leaves(record, delta)
    assert ways.merged == 1


@needs_compiled
def test_nulls_are_compiled_as_their_policy_says():
    """Nulls are set or ignored at any depth of objects that merge; other deltas with nulls are left."""
    record = b'{"id":"7","a":{"b":1},"c":null}'
    for delta in (
        b'{"a":null,"d":null}',
        b'{"a":{"b":null,"e":null},"c":null}',
        b'{"c":1}',
        b'{"d":[null,{"a":null}]}',
    ):
        assert not BothWays(null_policy="set").leaves(record, delta)
        assert not BothWays(null_policy="ignore").leaves(record, delta)
        assert BothWays(null_policy="remove").leaves(record, delta) == (delta[5:6] != b"1" and b"[" not in delta)
    assert not BothWays(null_policy="set").leaves(record, b'{"d":{"a":null}}')
    for delta in (b'{"d":{"a":null}}', b'{"c":{"a":{"b":null}}}'):
        assert BothWays(null_policy="ignore").leaves(record, delta)


@needs_compiled
@pytest.mark.parametrize(("key", "says"), [
    (b"7", b"7"), (b"7", b'"7"'), (b"-1", b"-1"), (b"18446744073709551615", b"18446744073709551615"), (b"", b'""'),
    (b"true", b'"true"'), (b"null", b'"null"'), (b"1.5", b'"1.5"'), (b"7 ", b'"7 "'), (b"{}", b'"{}"'),
    ("é".encode(), '"é"'.encode()), ("é".encode(), b'"\\u00e9"'), (b"7", b'"\\u0037"'),
    (b"0", b"-0"),
])  # fmt: skip
def test_such_keys_are_compiled(ways, key, says):
    """Keys that are texts or integers are merged by the compiled way, for new records and stored ones."""
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
def test_a_delta_with_another_key_is_left(ways, key, says):
    """A delta whose key field only resembles the key is left."""
    assert ways.leaves(None, b'{"id":%b}' % says, key)
    assert ways.leaves(b'{"id":"as it was"}', b'{"a":1,"id":%b}' % says, key)


@needs_compiled
def test_a_record_without_its_key_is_left(ways):
    """A new record without its key, and a stored one that was damaged so, are left."""
    assert ways.leaves(None, b'{"a":1}')
    assert ways.leaves(None, b"{}")
    assert ways.leaves(b'{"a":{"id":"7"}}', b'{"a":1}')
    assert ways.leaves(b"{}", b'{"a":1}')


@needs_compiled
def test_other_states_are_left(ways):
    """A record that expires or has a time to live of its own is left."""
    record = Record(b"7", b'{"a":1}', None, 0, 0)
    for state in (Stored(1, b'{"id":"7"}', 1, -1, b""), Stored(1, b'{"id":"7"}', 0, -1, b"c")):
        ways.merge([record], {b"7": state})
    assert ways.left_by_compiled == 2
    ways.merge([record], {b"7": Stored(1, b'{"id":"7"}', 0, 5, b"")})
    assert ways.left_by_compiled == 2
    as_no_store_has_it: Any = bytearray(b'{"id":"7"}')
    assert ways.leaves(as_no_store_has_it, b'{"a":1}')


@needs_compiled
def test_versions_of_any_length_are_written(ways):
    """The digits of a version are right at each number of them, up to the largest that a store holds."""
    for version in (*(10**digits - less for digits in range(1, 19) for less in (0, 1, 2)), 2**63 - 2):
        told = ways.one(b'{"id":"7"}', b'{"a":1}', version=version)
        assert told.sow[0][2] == told.delta[0][2] == [("version", b"%d" % (version + 1))]
    assert ways.left_by_compiled == 0


@needs_compiled
def test_a_delta_that_changes_nothing_is_empty(ways):
    """The stored record stays the same object, and the delta is empty."""
    record = b'{"a":{"b":1},"id":"7"}'
    for version in (1, 4096):
        told = ways.one(record, b'{"id":7,"a":{"b":1}}', version=version)
        assert told.sow[0][1] is record
        assert told.delta[0][1:] == (b'{"id":"7"}', [("version", b"%d" % (version + 1)), ("empty", b"true")])
    assert ways.left_by_compiled == 0


def test_where_there_is_a_compiler_it_is_compiled():
    """A machine with a compiler has the compiled merge: a build goes on without it, so its failure would be silent."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    found = next(filter(None, map(shutil.which, (compiler, "cc", "gcc", "clang"))), None)
    if found is None:
        pytest.skip("no C compiler")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        pytest.skip("no Python.h")
    assert HAS_COMPILED, f"there is {found}, but {NAME} was not built: pip install --no-build-isolation --verbose -e ."
    importlib.import_module(NAME)


_SHOWS_WAY = """
import sys
if sys.argv[1] == "missing":
    sys.modules["processor.builtin.delta_merge.fast_path_json"] = None
from processor.config import TopicConfig
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.testing import ProcessorTestDriver
driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")
driver.pipe_batch([(b"7", b'{"id":7,"a":1}', []), (b"7", b'{"a":2}', [])])
print(type(driver._task.processor._fold_plain).__name__, driver.pending_output("sow")[-1].value.decode())
"""


@pytest.mark.parametrize(("extension", "switch", "way"), [
    ("there", "1", "NoneType"), ("missing", "", "NoneType"),
])  # fmt: skip
def test_without_the_compiled_module_python_does_the_same(extension, switch, way):
    """The merge in parts takes over where the compiled one is switched off or missing."""
    done = subprocess.run(
        [sys.executable, "-c", _SHOWS_WAY, extension],
        env={**os.environ, "SOWSTREAM_NO_EXTENSIONS": switch}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [way, '{"id":7,"a":2}'], done.stderr
