"""The schemas of records and examples, and of what the demo publishes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from random import Random
from typing import Any, get_args

import fastavro
import pytest
from fastavro.schema import load_schema
from jsonschema import Draft202012Validator

from processor.record import RejectReason, is_reject_reason
from processor.trial.demo.feeds import OrderDesk, PriceFeed, Publication

SCHEMAS = Path(__file__).parents[2] / "schemas"
RECORDS = sorted(path.name.removesuffix(".schema.json") for path in SCHEMAS.glob("*.schema.json"))
EXAMPLES = sorted(path.name.removesuffix(".json") for path in (SCHEMAS / "examples").glob("*.json"))
FULL_EXAMPLES = [name for name in EXAMPLES if not name.endswith(".delta")]
# The Avro type of each scalar type of JSON Schema.
AVRO_OF_JSON = {"integer": "long", "number": "double", "string": "string", "boolean": "boolean"}


def record_of(name: str) -> str:
    """The record of an example: `order.new` is an example of `order`."""
    return name.partition(".")[0]


def json_schema(record: str) -> dict[str, Any]:
    """A record's JSON Schema."""
    return json.loads((SCHEMAS / f"{record}.schema.json").read_text(encoding="utf-8"))


def avro_schema(record: str) -> dict[str, Any]:
    """A record's Avro schema."""
    return load_schema(str(SCHEMAS / f"{record}.avsc"))


def example(name: str) -> dict[str, Any]:
    """An example's value."""
    return json.loads((SCHEMAS / "examples" / f"{name}.json").read_text(encoding="utf-8"))


def faults(record: str, value: object, *, delta: bool = False) -> list[str]:
    """The errors of JSON Schema for a value; none if it is valid."""
    schema = json_schema(record)
    if delta:
        schema = {"$ref": "#/$defs/delta", "$defs": schema["$defs"]}
    return [error.message for error in Draft202012Validator(schema).iter_errors(value)]


def changed(name: str, **fields: object) -> dict[str, Any]:
    """An example with other fields."""
    return example(name) | fields


def without(name: str, *fields: str) -> dict[str, Any]:
    """An example with fields missing."""
    return {field: value for field, value in example(name).items() if field not in fields}


def through_avro(schema: dict[str, Any], value: dict[str, Any], read_with: dict[str, Any] | None = None) -> Any:
    """A value written as Avro and read again, its nulls left out as in JSON."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, value)
    buffer.seek(0)
    read = fastavro.schemaless_reader(buffer, schema, read_with)
    return {name: item for name, item in read.items() if item is not None}


def test_every_record_has_both_schemas_and_an_example() -> None:
    """Every record has a JSON Schema, an Avro schema and an example."""
    assert {path.stem for path in SCHEMAS.glob("*.avsc")} == set(RECORDS)
    assert {record_of(name) for name in FULL_EXAMPLES} == set(RECORDS)


@pytest.mark.parametrize("record", RECORDS)
def test_schema_is_json_schema_2020_12(record: str) -> None:
    """Each file is valid by the JSON Schema draft that it names."""
    schema = json_schema(record)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:sowstream:schema:{record}"
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_valid(name: str) -> None:
    """Every example is valid by its schema, and a `.delta` example by the schema's delta part."""
    assert faults(record_of(name), example(name), delta=name.endswith(".delta")) == []


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.endswith(".delta")])
def test_delta_is_not_a_full_record(name: str) -> None:
    """The full schema refuses a delta, so the two can be distinguished."""
    assert faults(record_of(name), example(name))


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ("order", without("order.new", "id")),
        ("order", without("order.new", "customer")),
        ("order", changed("order.new", id="17")),
        ("order", changed("order.new", id=2**63)),
        ("order", changed("order.new", qty=-1)),
        ("order", changed("order.new", qty=2.5)),
        ("order", changed("order.new", state=None)),
        ("order", changed("order.new", inventory={"reserved": 3})),
        ("order", changed("order.new", inventory=None)),
        ("order", changed("order.new", credit={"limit_ok": 1, "score": 0.5})),
        ("order", [example("order.new")]),
        ("price", without("price.quoted", "pair")),
        ("price", changed("price.quoted", pair="EUR/USD")),
        ("price", changed("price.quoted", bid="1.0841")),
        ("price", changed("price.quoted", updated="2026-01-01T00:00:00Z")),
        ("ack", changed("ack.persisted", status="maybe")),
        ("ack", changed("ack.persisted", ack_type="received,persisted")),
        ("ack", changed("ack.persisted", client=None)),
        ("ack", changed("ack.persisted", reason="it went well")),
        ("ack", without("ack.failed", "reason")),
        ("dlq", without("dlq.undecodable", "source")),
        ("dlq", changed("dlq.undecodable", dlq_reason="Bad luck")),
        ("dlq", changed("dlq.undecodable", source="orders.publish:2:90113")),
        ("dlq", changed("dlq.undecodable", traceparent=7)),
        ("dlq", without("dlq.truncated", "dlq_sha256")),
        ("dlq", changed("dlq.truncated", dlq_bytes="many")),
    ],
)
def test_wrong_record_is_refused(record: str, value: object) -> None:
    """A missing field, a wrong type, a value out of range and a broken rule are each an error."""
    assert faults(record, value)


@pytest.mark.parametrize("record", ["order", "price"])
def test_delta_needs_its_key_only(record: str) -> None:
    """A delta requires its key and no other field."""
    (key,) = json_schema(record)["$defs"]["delta"]["required"]
    assert faults(record, {}, delta=True)
    assert faults(record, {key: next(example(n)[key] for n in EXAMPLES if n.startswith(record))}, delta=True) == []


@pytest.mark.parametrize("name", FULL_EXAMPLES)
def test_avro_round_trip(name: str) -> None:
    """A full example is read back from Avro unchanged, with null for a missing field and without foreign headers."""
    record = record_of(name)
    described = set(fields_in_avro(avro_schema(record)))
    value = {field: item for field, item in example(name).items() if field in described}
    assert through_avro(avro_schema(record), value) == value


@pytest.mark.parametrize("record", RECORDS)
def test_avro_and_json_schema_describe_the_same_fields(record: str) -> None:
    """Names, order, types and optional fields are the same in both schemas, at every depth."""
    assert fields_in_json(json_schema(record)) == fields_in_avro(avro_schema(record))


def test_dead_letter_reasons_are_the_codes() -> None:
    """The schema lists Sowstream's own rejection reasons, and accepts every reason that a plug-in may use."""
    reason = json_schema("dlq")["properties"]["dlq_reason"]
    assert tuple(reason["examples"]) == get_args(RejectReason)
    for text in ("no_price", "x" * 64, "x" * 65, "No", "no price", "", "7"):
        assert (re.search(reason["pattern"], text) is not None) == is_reject_reason(text)


@pytest.mark.parametrize("record", RECORDS)
def test_added_optional_field_reads_old_records(record: str) -> None:
    """A new field with a default can be read from older records, as the README requires."""
    old = avro_schema(record)
    new = json.loads((SCHEMAS / f"{record}.avsc").read_text(encoding="utf-8"))
    new["fields"].append({"name": "added_later", "type": ["null", "string"], "default": None})
    value = {k: v for k, v in example(next(n for n in FULL_EXAMPLES if n.startswith(record))).items() if v is not None}
    assert through_avro(old, value, fastavro.parse_schema(new)) == value


def fields_in_json(schema: dict[str, Any], inside: dict[str, Any] | None = None) -> dict[str, Any]:
    """`{name: (type, required)}` of a JSON Schema; an object's type is such a table, an enumeration's its values."""
    part = schema if inside is None else inside
    full = part
    if part.get("$ref") == "#/$defs/delta":
        part = schema["$defs"]["delta"]
    table = {}
    for name, field in part["properties"].items():
        resolved = schema["$defs"]["long"] | field if "$ref" in field else field
        if "enum" in resolved:
            kind: Any = tuple(resolved["enum"])
        elif resolved["type"] == "object":
            kind = fields_in_json(schema, resolved | full["properties"].get(name, {}))
        else:
            kind = AVRO_OF_JSON[resolved["type"]]
        table[name] = (kind, name in full.get("required", ()))
    return table


def fields_in_avro(schema: dict[str, Any]) -> dict[str, Any]:
    """The same table of an Avro schema, where an optional field is a union with null and the default null."""
    table = {}
    for field in schema["fields"]:
        kind = field["type"]
        required = not isinstance(kind, list)
        if not required:
            null, kind = kind
            assert (null, field["default"]) == ("null", None)
        if isinstance(kind, dict):
            kind = tuple(kind["symbols"]) if kind["type"] == "enum" else fields_in_avro(kind)
        table[field["name"]] = (kind, required)
    return table


FEEDS = {"order": OrderDesk, "price": PriceFeed}


def feed_faults(record: str, publication: Publication, value: Any) -> list[str]:
    """The schema errors of a publication: a full publish is a full record, every other one a delta."""
    schema = json.loads((SCHEMAS / f"{record}.schema.json").read_text(encoding="utf-8"))
    if publication.command != "publish":
        schema = {"$ref": "#/$defs/delta", "$defs": schema["$defs"]}
    return [error.message for error in Draft202012Validator(schema).iter_errors(value)]


def known_fields(record: str) -> set[str]:
    """The fields in the schema, nested ones as `outer/inner`."""
    properties = json.loads((SCHEMAS / f"{record}.schema.json").read_text(encoding="utf-8"))["$defs"]["delta"][
        "properties"
    ]
    inner = {f"{name}/{field}" for name, schema in properties.items() for field in schema.get("properties", ())}
    return set(properties) | inner


def fields(value: dict[str, Any]) -> set[str]:
    """The fields of a value, nested ones as `outer/inner`."""
    inner = {f"{name}/{field}" for name, item in value.items() if isinstance(item, dict) for field in item}
    return set(value) | inner


@pytest.mark.parametrize("seed", [20261])
@pytest.mark.parametrize("record", sorted(FEEDS))
def test_everything_published_is_valid_and_every_field_occurs(record: str, seed: int) -> None:
    """Each of two thousand publications is valid, and together they have all fields of the schema and no others."""
    feed = FEEDS[record](Random(seed))
    seen: set[str] = set()
    for _ in range(2_000):
        publication = feed.next()
        if publication.value is None:
            continue
        try:
            value = json.loads(publication.value)
        except ValueError:
            continue  # The desk sometimes sends a broken order, for the dead-letter topic.
        assert feed_faults(record, publication, value) == [], value
        seen |= fields(value)
    assert seen == known_fields(record)
