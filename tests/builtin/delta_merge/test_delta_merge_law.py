"""The delta merge under random commands, clocks, rollbacks and crashes: three ways to the same state of the world."""

import copy
import importlib.util
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.builtin.delta_merge import plain
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import merging, seen, told, written
from tests.endtoend.oracle import last_per_key, replay

KEYS = st.sampled_from(["7", "8", "a/b", ""])
NAMES = st.sampled_from(["a", "b", "a/b", "~"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 0.0, 1.0, "", "1", 2**63])
BODIES = st.dictionaries(
    NAMES,
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
    ),
    max_size=3,
)
POINTERS = st.lists(NAMES, min_size=1, max_size=2).map(
    lambda path: "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)
)
COMMANDS = st.one_of(
    st.tuples(KEYS, BODIES, st.just({})),
    st.tuples(KEYS, BODIES, st.just({"command": "publish"})),
    st.tuples(KEYS, BODIES, st.lists(POINTERS, max_size=2).map(lambda pointers: {"remove": json.dumps(pointers)})),
    st.tuples(st.none(), st.builds(lambda key, body: {**body, "id": key}, KEYS, BODIES), st.just({})),
    st.tuples(KEYS, st.none(), st.just({})),
    st.tuples(KEYS, BODIES, st.just({"command": "sow_delete"})),
    st.tuples(KEYS, st.just(b"{"), st.just({})),
    st.tuples(KEYS, st.just({"id": "nobody's"}), st.just({})),
)
LIVES = st.sampled_from(["0", "0.5", "1", "3"]).map(lambda s: {"expiration": s})
NUMBERS = st.builds(
    lambda client, number, more: {"client": client, "sequence": str(number), **more},
    st.sampled_from(["c", "d"]),
    st.integers(0, 6),
    st.sampled_from([{}, {}, {}, {"replay_of": "orders.publish/0/0"}]),
)
MORE = st.one_of(
    st.just({}), st.just({}), LIVES, NUMBERS, st.builds(lambda life, number: life | number, LIVES, NUMBERS)
)
GIVEN = st.builds(lambda command, more: (command[0], command[1], command[2] | more), COMMANDS, MORE)
STEPS = st.lists(
    st.lists(GIVEN, min_size=1, max_size=6)
    | st.sampled_from(["commit", "commit", "write", "abort", "crash", "crash, disk kept"])
    | st.sampled_from([0, 1, 500, 1000, 3000])
    | st.sampled_from([500, 1000]).map(lambda ms: ("asleep", ms)),
    max_size=14,
)


class Life:
    """The history of a driver: records, and punctuations as None, each with its time."""

    def __init__(self, driver):
        self.driver = driver
        self.committed = []
        self.open = []

    def take(self, step):
        """One step of a worker's life."""
        driver, known = self.driver, len(self.driver.input)
        if isinstance(step, list):
            driver.pipe_batch(step)
            self.given(known)
        elif isinstance(step, int):
            driver.advance_time(step)
            self.open.append((None, driver.now_ms))
        elif isinstance(step, tuple):
            driver.now_ms += step[1]
        elif step == "write":
            driver.write()
        elif step == "commit":
            driver.commit()
            self.committed, self.open = self.committed + self.open, []
            self.given(known)
        else:
            if step == "abort":
                driver.abort()
            else:
                driver.crash(keep_store=step != "crash")
            self.open = []
            self.given(driver.committed_offset)

    def given(self, offset):
        """The processor has seen the input from there on, now."""
        self.open += [(record, self.driver.now_ms) for record in self.driver.input[offset:]]


def fold(events, topic_ms):
    """The state of the world after these: the rules of merge.md once more, slow, and nothing shared."""
    world, ends, highest, lives, refused = {}, {}, {}, {}, set()
    for record, now_ms in events:
        if record is None:
            for key in [key for key, end_ms in ends.items() if end_ms <= now_ms]:
                del world[key], ends[key]
            continue
        headers = told(record)
        who, number = (headers.get("client"), headers.get("source") is not None), int(headers.get("sequence", -1))
        if record.key is None:
            refused.discard((who, number))  # Forwarded: decided when it comes again, which its source shows.
            continue
        is_mended = (who, number) in refused or headers.get("source", "").endswith("+")
        if number >= 0 and number <= highest.get(who, -1) and "replay_of" not in headers and not is_mended:
            continue
        key = record.key.decode()
        if ends.get(key, now_ms + 1) <= min(record.timestamp_ms, now_ms):
            del world[key], ends[key]
        if record.value is None or headers.get("command") == "sow_delete":
            world.pop(key, None)
            ends.pop(key, None)
        else:
            body = None if record.value == b"{" else json.loads(record.value)
            is_full = headers.get("command") == "publish"
            new = None
            if body is not None and body.get("id", key) == key:
                new = {"id": key} | body if is_full else merged(world.get(key, {}), body)
            paths = [
                [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
                for pointer in json.loads(headers.get("remove", "[]"))
            ]
            if new is None or not all(leads_through_objects(new, path) for path in paths):
                if number >= 0:
                    refused.add((who, number))
                continue
            if is_full or key not in world:
                lives.pop(key, None)
            for path in paths:
                removed(new, path)
            world[key] = new
            ttl_ms = int(float(headers["expiration"]) * 1000) if "expiration" in headers else lives.get(key, topic_ms)
            lives[key] = ttl_ms
            ends.pop(key, None)
            if ttl_ms:
                ends[key] = now_ms + ttl_ms
        highest[who] = max(number, highest.get(who, -1))
        refused.discard((who, number))
    return world


def merged(old, delta):
    """Rules 1 to 6 with the default policy."""
    new = copy.deepcopy(old)
    for name, value in delta.items():
        if isinstance(value, dict):
            new[name] = merged(new[name] if isinstance(new.get(name), dict) else {}, value)
        elif value is not None:
            new[name] = value
    return new


def leads_through_objects(record, path):
    """Return whether no array and no scalar is on the way; a null or a missing field ends the way."""
    for name in path[:-1]:
        record = record.get(name)
        if record is None:
            return True
        if not isinstance(record, dict):
            return False
    return True


def removed(record, path):
    """Take one member away, if it is there."""
    if len(path) == 1:
        record.pop(path[0], None)
    elif isinstance(record.get(path[0]), dict):
        removed(record[path[0]], path[1:])


@settings(max_examples=200, deadline=None, print_blob=True)
@given(STEPS, st.sampled_from([None, None, 2]))
def test_sow_delta_and_input_tell_the_same_world(steps, expiration_s):
    """After every commit: SOW, replayed deltas, the fold of the input and the state agree; every input has one end."""
    topic = TopicConfig(expiration=expiration_s)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic, behind_ms=0)
    life = Life(driver)
    for step in [*steps, "commit", "commit", "crash"]:
        life.take(step)
        sow, delta = seen(driver.read_output("sow")), seen(driver.read_output("delta"))
        world = last_per_key(sow)
        assert written(replay(delta)) == written(world)
        assert written(fold(life.committed, 1000 * (expiration_s or 0))) == written(world)
        assert [(record.key, record.headers["version"]) for record in sow] == [
            (record.key, record.headers["version"]) for record in delta
        ]
    stored = driver.state.get_many([b"7", b"8", b"a/b", b""])
    assert {key.decode(): json.loads(state.value) for key, state in stored.items() if state is not None} == world
    expired = driver.events.pop("expired", 0)
    assert expired == sum(record.headers.get("kind") == "expire" for record in sow)
    ends = len(sow) - expired + sum(driver.rejections.values()) + sum(driver.events.values())
    assert ends == len(driver.input) == driver.committed_offset


FIRST = b'{"id":7,"n":1,"legs":[[{"x":1,"y":{"p":1,"q":2}}]]}'
SECOND = b'{"id":7,"n":1,"legs":[[{"y":{"q":2,"p":1},"x":1}]]}'


@pytest.mark.parametrize("way", ["compiled", "in parts"])
@pytest.mark.parametrize("settings", [{}, {"null_policy": "set"}, {"merge_depth": 1}, {"source_header": True}], ids=str)
@pytest.mark.parametrize("command", [None, "publish"])
def test_the_delta_carries_an_array_whose_bytes_differ(way, settings, command, monkeypatch):
    """An array is one value: record and delta have the bytes of the last update, so replay has those of the record."""
    if way == "compiled" and importlib.util.find_spec("processor.builtin.delta_merge.fast_path_json") is None:
        pytest.skip("compiled_deltas was not compiled")
    monkeypatch.setattr(plain, "has_compiled", way == "compiled")
    driver = merging(**settings)
    for message in (FIRST, SECOND, SECOND):
        driver.pipe_input("7", message, {"command": command} if command else None)
    sow, deltas = driver.pending_output("sow"), driver.pending_output("delta")
    assert [record.value for record in sow] == [FIRST, SECOND, SECOND]
    assert json.loads(deltas[1].value).keys() == {"id", "legs"}
    assert deltas[1].value.endswith(SECOND[SECOND.index(b'"legs"') :])
    assert [told(delta).get("empty") for delta in deltas] == [None, None, "true"]


@pytest.mark.parametrize("command", [None, "publish"])
def test_members_in_another_order_outside_of_arrays_are_no_change(command):
    """A delta names members one by one, so the order of members of an object is not part of its value."""
    driver = merging()
    for message in (b'{"id":7,"o":{"x":1,"y":2},"n":1}', b'{"id":7,"n":1,"o":{"y":2,"x":1}}'):
        driver.pipe_input("7", message, {"command": command} if command else None)
    assert [told(delta).get("empty") for delta in driver.pending_output("delta")] == [None, "true"]
