"""Every rule on every kind of value of every message type gives the specified result or a rejection with a reason.

Everything passes through a worker; the expected results come from the table of pairs and from `expected`.
"""

from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import pytest
from bson import Decimal128

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import told
from tests.merge.message_worlds import WORLDS, Body, World, avro
from tests.merge.typed_pairs import AVRO, NO_SUM, PAIRS, TOO_LARGE, Pair

RULES = ["replace", "first", "sum", "min", "max", "append", "union", "by"]
"""The merge rules, and a sequence group by the field."""

REFUSED: Final = object()
"""The result of a topic that is refused at the start."""
REJECTED: Final = object()
"""The result of values that are never stored in a record."""


def union(old: list[Any], new: list[Any]) -> list[Any]:
    """The elements of both arrays, each new one once."""
    seen = list(map(repr, old))
    return old + [element for element in new if repr(element) not in seen]


def expected(rule: str, pair: Pair, old: Any, new: Any, *, has_schema: bool) -> Any:
    """The expected value of the field after `old` and `new`, by the rules of the specification."""
    is_array = pair.kind == "array"
    if has_schema:
        takes = {"sum": {"number", "text"}, "append": {"array"}, "union": {"array"}}
        for ordering in ("min", "max", "by"):
            takes[ordering] = {"number", "text", "time", "bytes", "other"}
        if pair.kind not in takes.get(rule, {pair.kind}):
            return REFUSED
    if rule == "sum":
        return {NO_SUM: REJECTED, TOO_LARGE: old}.get(pair.total, pair.total) if _hashable(pair.total) else pair.total
    if rule in ("min", "max", "by") and not pair.ordered:
        return REJECTED
    return {
        "replace": lambda: {**old, **new} if pair.kind == "object" else new,
        "first": lambda: old,
        "min": lambda: pair.low,
        "max": lambda: pair.high,
        "by": lambda: pair.high,
        "append": lambda: old + new if is_array else [old, new],
        "union": lambda: union(old, new) if is_array else union([old], [new]),
    }[rule]()


def _hashable(value: Any) -> bool:
    return value is NO_SUM or value is TOO_LARGE


def world_of(name: str, avro_type: Any, folder: Path) -> World:
    """A message type, with a schema for `v` if it is Avro."""
    return avro(avro_type, folder) if name == "avro" else WORLDS[name]


def driver_of(world: World, **settings: Any) -> ProcessorTestDriver:
    """A driver of a topic of this message type."""
    topic = TopicConfig.model_validate({**world.settings, **settings})
    return ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)


def settings_of(world: World, rule: str) -> dict[str, Any]:
    """The settings of a topic with this rule on the field."""
    if rule == "by":
        return {"sequence_groups": [{"by": world.paths["v"], "fields": [world.paths["x"]]}]}
    return {"merge_rules": {world.paths["v"]: rule}}


def publish(driver: ProcessorTestDriver, world: World, *bodies: Body) -> None:
    """Send delta publishes in order and commit."""
    for body in bodies:
        message = {"id": "1", **body}
        driver.pipe_input("1", world.write(message), world.headers(message))
    driver.commit()


def record_of(driver: ProcessorTestDriver, world: World) -> Body | None:
    """The last committed record; None if there is none."""
    sow = driver.read_output("sow")
    return world.read(sow[-1].value or b"") if sow else None


def alike(one: Any, other: Any) -> bool:
    """Return whether two values have the same class and value; the zeros of a Decimal may differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Decimal128):
        one, other = one.to_decimal(), other.to_decimal()
    return repr(one) == repr(other) or (isinstance(one, Decimal) and bool(one == other))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [*PAIRS, "avro"])
def test_every_rule_gives_the_value_of_the_rules_or_refuses(name: str, rule: str, tmp_path: Path) -> None:
    """A rule on two values gives the exact result in the field's type, or the topic or the delta is rejected."""
    for number, pair in enumerate(AVRO if name == "avro" else PAIRS[name]):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = world_of(name, pair.avro, folder)
        for rises in (True, False):
            print(pair.name, rises)  # The last line is the pair that fails.
            check(world, pair, rule, rises=rises)


def check(world: World, pair: Pair, rule: str, *, rises: bool) -> None:
    """Publish the two values of a pair, the lower one first if `rises`, and compare the record with `expected`."""
    old, new = (pair.low, pair.high) if rises else (pair.high, pair.low)
    result = expected(rule, pair, old, new, has_schema=pair.avro is not None)
    path, settings = world.paths["v"], settings_of(world, rule)
    if result is REFUSED:
        with pytest.raises(ConfigurationError, match=f"{path}: the schema allows [a-z]+ there"):
            driver_of(world, **settings)
        return
    driver = driver_of(world, **settings)
    publish(driver, world, {"v": old, "x": world.x[0]}, {"v": new, "x": world.x[1]})
    letters = [told(letter) for letter in driver.read_output("dlq")]
    for letter in letters:
        assert letter["dlq_reason"] == "schema_mismatch"
        assert path in letter["dlq_detail"]
    record = record_of(driver, world)
    if result is REJECTED:
        assert (len(letters), record) == (2, None)
        return
    is_too_large = rule == "sum" and pair.total is TOO_LARGE
    is_late = rule == "by" and not rises
    assert record is not None
    assert len(letters) == is_too_large
    assert alike(record["v"], result), record
    assert record["x"] == world.x[not (is_too_large or is_late)]
    assert driver.events["stale_group"] == is_late


TYPES = [*WORLDS, "avro"]
NULLABLE = ["json", "msgpack", "bson", "composite-local of json", "avro"]


@pytest.mark.parametrize("name", NULLABLE)
@pytest.mark.parametrize("rule", RULES)
def test_a_null_meets_no_rule(name: str, rule: str, tmp_path: Path) -> None:
    """A null keeps the record's value, a value after a null begins the field, and a null `by` counts as older."""
    is_array = rule in ("append", "union")
    world = world_of(name, {"type": "array", "items": "int"} if is_array else "int", tmp_path)
    value = [7] if is_array else 7
    for first, second in ((value, None), (None, value)):
        driver = driver_of(world, **settings_of(world, rule))
        publish(driver, world, {"v": first, "x": world.x[0]}, {"v": second, "x": world.x[1]})
        record = record_of(driver, world)
        assert record is not None
        assert record["v"] == value
        assert record["x"] == world.x[not (rule == "by" and second is None)]
        assert driver.rejections == {}


@pytest.mark.parametrize("name", TYPES)
def test_a_thousand_doubles_are_summed_and_none_is_rejected(name: str, tmp_path: Path) -> None:
    """The sum of a thousand doubles is exact in JSON and texts, and rounded after each addition elsewhere."""
    world = world_of(name, "double", tmp_path)
    is_text, is_exact = isinstance(world.x[0], str), "json" in name
    driver = driver_of(world, merge_rules={world.paths["v"]: "sum"}, dlq_max_ratio=1)
    rng = random.Random(20261123)
    exact, rounded = Fraction(0), 0.0
    bodies: list[Body] = []
    for _ in range(1000):
        number = rng.uniform(0, 100)
        written = format(Decimal(repr(number)), "f")
        exact += Fraction(written)
        rounded = float(Fraction(repr(rounded)) + Fraction(written))
        bodies.append({"v": written if is_text else Decimal(written) if is_exact else number})
    publish(driver, world, *bodies)
    assert driver.rejections == {}
    record = record_of(driver, world)
    assert record is not None
    if is_text or is_exact:
        assert Fraction(record["v"]) == exact
    else:
        assert record["v"] == rounded


LATE_PAIRS = [
    pytest.param(name, pair, id=f"{name}-{pair.name}")
    for name, pairs in (*PAIRS.items(), ("avro", AVRO))
    for pair in pairs
    if pair.ordered and pair.kind not in ("array", "object")
]


@pytest.mark.parametrize(("name", "pair"), LATE_PAIRS)
def test_a_late_publish_or_removal_undoes_no_newer_field(name: str, pair: Pair, tmp_path: Path) -> None:
    """A late update neither replaces nor removes a group's field, in every message type and for every kind of `by`."""
    world = world_of(name, pair.avro, tmp_path)
    settings = settings_of(world, "by")
    newest = {"id": "1", "v": pair.high, "x": world.x[1]}
    late = {"id": "1", "v": pair.low, "x": world.x[0]}
    paths = json.dumps([world.paths["x"], world.paths["v"]])
    for command, headers in (
        ("publish", {}),
        ("delta_publish", {"remove": paths}),
        ("publish", {"remove": paths}),
    ):
        driver = driver_of(world, **settings)
        for body, more in ((newest, {}), (late, {"command": command, **headers})):
            driver.pipe_input("1", *_message(world, body, more))
        driver.commit()
        record = record_of(driver, world)
        assert record is not None
        assert alike(record["v"], pair.high)
        assert record["x"] == world.x[1]
        assert driver.events["stale_group"] == 1
        assert driver.rejections == {}
    # In time, the same removal is done.
    driver = driver_of(world, **settings)
    for body, more in ((late, {}), (newest, {"remove": paths})):
        driver.pipe_input("1", *_message(world, body, more))
    driver.commit()
    record = record_of(driver, world)
    assert record is not None
    assert (record.get("v"), record.get("x")) == (None, None)


def _message(world: World, body: Body, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """A message and its headers; with a schema, a full record is written like a delta of all its fields."""
    if headers.get("command") == "publish" and world.write_whole is not None:
        return world.write_whole(body), headers
    return world.write(body), {**world.headers(body), **headers}


@pytest.mark.parametrize("name", ["msgpack", "bson", "avro", "composite-local of msgpack"])
@pytest.mark.parametrize("command", ["publish", "delta_publish"])
def test_a_nan_that_is_published_again_is_no_change(name: str, command: str, tmp_path: Path) -> None:
    """The second update with the same NaN has a delta with header `empty`, as a full record and as a delta."""
    world = world_of(name, "double", tmp_path)
    driver = driver_of(world)
    for _ in range(2):
        driver.pipe_input("1", *_message(world, {"id": "1", "v": float("nan")}, {"command": command}))
    assert [told(delta).get("empty") for delta in driver.pending_output("delta")] == [None, "true"]
