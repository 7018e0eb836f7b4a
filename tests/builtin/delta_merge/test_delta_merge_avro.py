"""Avro through the delta merge: replay equals the SOW, across restarts with a newer schema."""

import datetime as dt
import json
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec.avro.schema import Schema
from processor.config import TopicConfig
from processor.testing import ProcessorTestDriver
from processor.wire.headers import header_text
from tests.codec.avro_world import World, record, values

ADDRESS = record(("zip", "string", "?"), ("street", ["null", "string"], "main"), name="Address")
ORDER = record(
    ("id", "long"),
    ("qty", "int", 1),
    ("price", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}], None),
    ("at", ["null", {"type": "long", "logicalType": "timestamp-micros"}], None),
    ("address", ["null", ADDRESS], None),
    (
        "what",
        [
            "null",
            "string",
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            ADDRESS["name"],
            record(("zip", "string"), name="Place"),
        ],
        None,
    ),
    ("marks", {"type": "map", "values": "int"}, {}),
    ("tags", {"type": "array", "items": "string"}, []),
)
PARSED = Schema(json.dumps(ORDER))


def driver_of(world, **topic):
    """A worker that starts now."""
    return ProcessorTestDriver(
        DeltaMerge,
        config := TopicConfig(message_type="avro", **topic),
        name="orders",
        topic=config,
        registry=world.settings,
    )


def applied(record, delta):
    """A delta set field by field, by a reader who knows nothing of our merge."""
    for name, value in delta.items():
        if type(value) is dict and type(record.get(name)) is dict:
            applied(record[name], value)
        else:
            record[name] = value
    return record


def replayed(codec, records):
    """The record that a key's deltas make."""
    record = None
    for _, value, headers, _, _ in records:
        if header_text(headers, "kind") == "delete":
            record = None
            continue
        record = applied({} if record is None else record, codec.decode_command(value, headers, is_delta=True))
        for pointer in json.loads(header_text(headers, "removed") or "[]"):
            *above, last = (part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))
            place = record
            for name in above:
                place = place[name]
            del place[last]
    return record


COMMANDS = st.one_of(
    values(PARSED, PARSED.root).map(lambda value: ("publish", value, {})),
    values(PARSED, PARSED.root, partial=True).map(lambda value: ("delta_publish", value, {})),
    st.sampled_from(["/qty", "/address/zip", "/address", "/marks", "/tags"]).map(
        lambda pointer: ("delta_publish", {}, {"remove": json.dumps([pointer])})
    ),
    st.just(("sow_delete", {"id": 1}, {})),
)


@pytest.fixture(scope="module")
def world():
    """A registry with the schema of orders."""
    return World(ORDER)


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(COMMANDS, min_size=1, max_size=8),
    st.sampled_from(["ignore", "set", "remove"]),
    st.sampled_from([None, 1]),
)
def test_replayed_deltas_are_the_sow_record_after_every_step(world, commands, nulls, depth):
    """Deltas have the defaults that the schema fills in, so replaying them gives the SOW record after each command."""
    driver = driver_of(world, null_policy=nulls, merge_depth=depth)
    codec = driver._codec
    for command, value, more in commands:
        data, headers = codec.encode_delta(value | {"id": 1})
        if command == "publish":
            data, headers = codec.encode(value | {"id": 1}), []
        driver.pipe_input(
            "1", data, [*headers, ("command", command.encode()), *((n, v.encode()) for n, v in more.items())]
        )
        driver.commit()
        sow = driver.read_output("sow")
        state = codec.decode(sow[-1].value) if sow and sow[-1].value is not None else None
        told = replayed(codec, driver.read_output("delta"))
        assert sorted((told or {}).items(), key=str) == sorted((state or {}).items(), key=str)
        assert len(sow) == len(driver.read_output("delta"))
    # Only a null where there may be none is refused.
    assert set(driver.rejections) <= ({"schema_mismatch"} if nulls == "set" else set())
    driver.close()


def test_a_delta_of_a_subset_schema_changes_what_it_names_and_no_more(world):
    """Decimals keep their scale and timestamps their microseconds."""
    driver = driver_of(world)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 123456, dt.UTC)
    driver.pipe_input("7", {"id": 7, "price": Decimal("1.250"), "at": at, "tags": ["x"]}, {"command": "publish"})
    part = record(("id", "int"), ("qty", "int"), name="Part")
    driver.pipe_input("7", world.framed(part, {"id": 7, "qty": 9}))
    driver.commit()
    _, sow = driver.read_output("sow")
    codec = driver._codec
    value = codec.decode(sow.value)
    assert (value["qty"], str(value["price"]), value["at"], value["tags"]) == (9, "1.250", at, ["x"])
    _, delta = driver.read_output("delta")
    assert codec.decode_command(delta.value, delta.headers, is_delta=True) == {"id": 7, "qty": 9}
    driver.close()


def test_a_worker_that_restarts_with_a_newer_schema_goes_on_with_the_old_records():
    """A delta onto a record of the old schema leaves one of the new schema."""
    world = World(ORDER)
    driver = driver_of(world)
    driver.pipe_input("7", {"id": 7, "qty": 2}, {"command": "publish"})
    driver.commit()
    [stored] = driver.read_output("sow")
    newer = json.loads(json.dumps(ORDER))
    newer["fields"][1] |= {"name": "amount", "type": "long", "aliases": ["qty"]}
    newer["fields"].append({"name": "note", "type": "string", "default": "-"})
    world.evolve(newer)
    later = driver_of(world)
    later.pipe_input("7", stored.value, {"command": "publish"})
    later.pipe_input("7", world.framed(record(("id", "long"), ("note", "string")), {"id": 7, "note": "n"}))
    later.commit()
    value = later._codec.decode(later.read_output("sow")[-1].value)
    assert (value["amount"], value["note"]) == (2, "n")
    driver.close()
    later.close()


def test_where_the_schema_came_from_does_not_travel_on(world):
    """SOW and delta have frames of their own: a header that names the publisher's schema would belie them."""
    driver = driver_of(world)
    framed = driver._codec.encode({"id": 7})
    driver.pipe_input("7", framed[5:], [("__value_schema_id", framed[:5]), ("trace", b"t")])
    driver.commit()
    for role in ("sow", "delta"):
        [out] = driver.read_output(role)
        names = {name for name, _ in out.headers}
        assert "__value_schema_id" not in names
        assert "trace" in names
    driver.close()


def test_a_bad_schema_costs_its_record_only(world):
    """A record of an unknown schema, or one that cannot be read, is rejected, and the others are merged."""
    driver = driver_of(world)
    other = record(("id", "long"), ("qty", "string"), name="Other")
    driver.pipe_batch([
        ("7", {"id": 7, "qty": 1}, {"command": "publish"}),
        ("7", b"\0" + (987_654).to_bytes(4, "big") + b"\x0e", None),
        ("7", world.framed(other, {"id": 7, "qty": "many"}), None),
        ("7", world.framed(record(("id", "long"), ("qty", "int"), name="Part"), {"id": 7, "qty": 3}), None),
    ])  # fmt: skip
    driver.commit()
    letters = [(header_text(letter.headers, "dlq_reason"), letter.offset) for letter in driver.read_output("dlq")]
    assert letters == [("schema_not_found", 0), ("schema_mismatch", 1)]
    assert [driver._codec.decode(sow.value)["qty"] for sow in driver.read_output("sow")] == [1, 3]
    driver.close()


def test_a_removed_field_comes_back_as_its_default(world):
    """Avro records have all fields: one removed by header or publish returns as its default, also in the delta."""
    driver = driver_of(world)
    driver.pipe_batch([
        ("7", {"id": 7, "qty": 5, "tags": ["x"], "marks": {"a": 1, "b": 2}}, {"command": "publish"}),
        ("7", world.framed(record(("id", "long"), name="Key"), {"id": 7}), {"remove": '["/qty","/marks/a","/tags"]'}),
    ])  # fmt: skip
    driver.commit()
    codec = driver._codec
    delta, value = driver.read_output("delta")[-1], codec.decode(driver.read_output("sow")[-1].value)
    assert (value["qty"], value["tags"], value["marks"]) == (1, [], {"b": 2})
    assert codec.decode_command(delta.value, delta.headers, is_delta=True) == {"id": 7, "qty": 1, "tags": []}
    assert json.loads(header_text(delta.headers, "removed")) == ["/marks/a"]
    driver.close()
