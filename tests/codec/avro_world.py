"""Schemas, codecs and random values for the Avro tests, and messages written by fastavro alone."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka.schema_registry import Schema
from hypothesis import strategies as st

from processor.codec import CodecOptions
from processor.codec.avro import AvroCodec
from processor.codec.avro.schema import Schema as Parsed
from processor.codec.avro.schema import classes
from processor.codec.schema_registry.schemas import Registry
from processor.config import SchemaConfig

_numbers = itertools.count()


def record(*fields: tuple[Any, ...], name: str = "Order") -> dict[str, Any]:
    """A record's schema: the name, the type and the optional default of each field."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field[0], "type": field[1], **({"default": field[2]} if len(field) > 2 else {})}
            for field in fields
        ],
    }


class World:
    """One mock registry, with a topic's records in a schema."""

    def __init__(self, schema: Any = None, *, topic: str = "orders") -> None:
        self.settings = {"url": f"mock://world{next(_numbers)}"}
        self.topic = topic
        self.client = Registry(self.settings)._client
        if schema is not None:
            self.evolve(schema)

    def evolve(self, schema: Any) -> None:
        """Register the next version of the topic's schema."""
        self.register(schema, f"{self.topic}.publish-value")

    def register(self, schema: Any, subject: str = "anything") -> int:
        """Register a schema and return its id."""
        return self.client.register_schema(subject, Schema(json.dumps(schema), "AVRO"))

    def codec(self, **options: Any) -> AvroCodec:
        """Return a codec as a worker creates it when it starts."""
        return AvroCodec(CodecOptions(topic=self.topic, registry=self.settings, **options))

    def framed(self, schema: Any, value: Any) -> bytes:
        """Return a framed message as a publisher with this schema sends it, written by fastavro alone."""
        return b"\0" + self.register(schema).to_bytes(4) + plain(schema, value)


def plain(schema: Any, value: Any) -> bytes:
    """Encode a value with fastavro alone."""
    from io import BytesIO

    import fastavro

    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def file_codec(schema: Any, directory: Path, **options: Any) -> AvroCodec:
    """Return a codec that reads its schema from a file and has no registry."""
    file = directory / "schema.avsc"
    file.write_text(json.dumps(schema))
    return AvroCodec(CodecOptions(topic="orders", schema=SchemaConfig(file=file), **options))


# Random schemas: every type, nested a few levels, each named type with a name of its own.
_SCALARS = st.sampled_from(
    [
        "boolean", "int", "long", "float", "double", "bytes", "string",
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        {"type": "string", "logicalType": "uuid"},
        {"type": "int", "logicalType": "date"},
        {"type": "int", "logicalType": "time-millis"},
        {"type": "long", "logicalType": "time-micros"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
    ]
)  # fmt: skip


@st.composite
def _named(draw: Any, kind: str, inner: Any) -> Any:
    name = f"n.T{next(_numbers)}"
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}
    types = draw(st.lists(inner, min_size=1, max_size=4))
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]}


@st.composite
def _union(draw: Any, inner: Any) -> Any:
    branches, seen = [], set()
    for branch in draw(st.lists(inner, max_size=4)):
        word = branch["type"] if isinstance(branch, dict) else branch
        if isinstance(branch, list) or (word in seen and word not in {"record", "enum", "fixed"}):
            continue
        seen.add(word)
        branches.append(branch)
    place = draw(st.integers(0, len(branches)))
    return [*branches[:place], "null", *branches[place:]]


def _nested(inner: Any) -> Any:
    return st.one_of(
        _named("record", inner),
        _union(inner),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "map", "values": values}),
    )


_TYPES = st.recursive(st.one_of(_SCALARS, _named("enum", None), _named("fixed", None)), _nested, max_leaves=8)
SCHEMAS = _named("record", _TYPES)
"""Random Avro schemas of records."""

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_DATES = {"min_value": dt.datetime(1900, 1, 1), "max_value": dt.datetime(2100, 1, 1)}  # noqa: DTZ001
_LOGICAL: dict[str, Any] = {
    "decimal": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda unscaled: Decimal(unscaled).scaleb(-3)),
    "uuid": st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number)),
    "date": st.dates(),
    "time-millis": st.times().map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)),
    "time-micros": st.times(),
    "timestamp-millis": st.datetimes(**_DATES).map(
        lambda stamp: stamp.replace(microsecond=stamp.microsecond // 1000 * 1000, tzinfo=dt.UTC)
    ),
    "timestamp-micros": st.datetimes(**_DATES, timezones=st.just(dt.UTC)),
    "local-timestamp-micros": st.datetimes(**_DATES),
}
_LOGICAL = {  # Avro does not distinguish two equal wall-clock times.
    name: strategy.map(lambda value: value.replace(fold=0)) if "time" in name else strategy
    for name, strategy in _LOGICAL.items()
}
_PLAIN: dict[str, Any] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=5),
    "string": _TEXT,
}


def values(schema: Parsed, node: Any, *, partial: bool = False) -> Any:
    """Random values of a schema; with `partial`, deltas with some of the fields of each record that merges."""
    word, body = schema.shape(node)
    if word == "union":
        kinds = classes(schema, body)
        return st.one_of(
            [_of_branch(schema, branch, kind, partial=partial) for branch, kind in zip(body, kinds, strict=True)]
        )
    if logical := body.get("logicalType"):
        return _LOGICAL[logical]
    if word == "record":
        fields = {field["name"]: values(schema, field["type"], partial=partial) for field in body["fields"]}
        return st.fixed_dictionaries({}, optional=fields) if partial else st.fixed_dictionaries(fields)
    if word == "array":
        return st.lists(values(schema, body["items"]), max_size=3)
    if word == "map":
        return st.dictionaries(
            _TEXT | st.sampled_from(["a/b", "~", ""]), values(schema, body["values"], partial=partial), max_size=3
        )
    if word == "enum":
        return st.sampled_from(body["symbols"])
    return st.binary(min_size=body["size"], max_size=body["size"]) if word == "fixed" else _PLAIN[word]


def _of_branch(schema: Parsed, branch: Any, kind: type, *, partial: bool) -> Any:
    if kind is type(None) or not hasattr(kind, "BRANCH"):
        return values(schema, branch, partial=partial)
    return values(schema, branch, partial=partial and not issubclass(kind, dict)).map(kind)
