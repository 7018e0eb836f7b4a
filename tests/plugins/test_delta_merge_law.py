"""The delta merge under random commands, rollbacks and crashes: three ways to the same state of the world."""

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from processor.config import TopicConfig
from processor.plugins.delta_merge import DeltaMerge
from processor.testing import ProcessorTestDriver
from tests.endtoend.oracle import last_per_key, replay
from tests.plugins.reading import seen, told, written

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
STEPS = st.lists(
    st.lists(COMMANDS, min_size=1, max_size=6)
    | st.sampled_from(["commit", "commit", "write", "abort", "crash", "crash, disk kept"]),
    max_size=12,
)


def fold(records):
    """The state of the world after the input: the rules of merge.md once more, slow, and nothing shared."""
    world = {}
    for record in records:
        headers = told(record)
        if record.key is None or record.value == b"{":
            continue
        key = record.key.decode()
        if record.value is None or headers.get("command") == "sow_delete":
            world.pop(key, None)
            continue
        body = json.loads(record.value)
        if body.get("id", key) != key:
            continue
        new = body if headers.get("command") == "publish" else merged(world.get(key, {}), body)
        for pointer in json.loads(headers.get("remove", "[]")):
            removed(new, [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]])
        world[key] = new
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


def removed(record, path):
    """Take one member away, if it is there."""
    if len(path) == 1:
        record.pop(path[0], None)
    elif isinstance(record.get(path[0]), dict):
        removed(record[path[0]], path[1:])


@settings(max_examples=150, deadline=None, print_blob=True)
@given(STEPS)
def test_sow_delta_and_input_tell_the_same_world(steps):
    """After every commit: SOW, replayed deltas, the fold of the input and the state agree; every input has one end."""
    topic = TopicConfig()
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    for step in [*steps, "commit", "commit", "crash"]:
        if isinstance(step, list):
            driver.pipe_batch(step)
        elif step == "abort":
            driver.abort()
        elif step == "write":
            driver.write()
        elif step.startswith("crash"):
            driver.crash(keep_store=step != "crash")
        else:
            driver.commit()
        sow, delta = seen(driver.read_output("sow")), seen(driver.read_output("delta"))
        world = last_per_key(sow)
        assert written(replay(delta)) == written(world)
        assert written(fold(driver.input[: driver.committed_offset])) == written(world)
        assert [(record.key, record.headers["version"]) for record in sow] == [
            (record.key, record.headers["version"]) for record in delta
        ]
    stored = driver.state.get_many([b"7", b"8", b"a/b", b""])
    assert {key.decode(): json.loads(state.value) for key, state in stored.items() if state is not None} == world
    ends = len(sow) + sum(driver.rejections.values()) + sum(driver.events.values())
    assert ends == len(driver.input) == driver.committed_offset
