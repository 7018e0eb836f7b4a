"""Messages of every type that can do deltas, written and read with common libraries and without Sowstream's codecs.

A record has a key, a field `v` with a rule, and a field `x` next to it.
"""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import bson
import fastavro
import msgpack
from bson.codec_options import CodecOptions, DatetimeConversion

Body = dict[str, Any]
"""The fields of a message: `id`, `v` and `x`, each of which may be missing."""

SOH = "\x01"
BSON_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True, tzinfo=UTC, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


@dataclass(frozen=True)
class World:
    """A message type with functions that write and read its messages."""

    write: Callable[[Body], bytes]
    read: Callable[[bytes], Body]
    settings: dict[str, Any]
    """The topic's settings."""
    paths: dict[str, str] = field(default_factory=lambda: {"v": "/v", "x": "/x"})
    """The JSON Pointer of each field."""
    x: tuple[Any, Any] = (1, 2)
    """Two values of `x`."""
    headers: Callable[[Body], dict[str, str]] = lambda _body: {}
    """The headers of a delta."""
    write_whole: Callable[[Body], bytes] | None = None
    """The function that writes a full record, if it differs from the one for deltas."""


def json_text(value: Any) -> str:
    """JSON text with every digit of a Decimal."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{json_text(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


def read_json(data: bytes) -> Body:
    """The value of a JSON text, its fractions as Decimals."""
    body: Body = json.loads(data, parse_float=Decimal)
    return body


def fields_text(body: Body, tags: dict[str, str]) -> bytes:
    """The text of `name=value` fields; an array repeats its name."""
    pairs = [
        f"{tags.get(name, name)}={one}{SOH}"
        for name, value in body.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    return "".join(pairs).encode()


def read_fields(data: bytes, tags: dict[str, str]) -> Body:
    """The body in a text of `name=value` fields."""
    names = {tag: name for name, tag in tags.items()}
    values_by_name: dict[str, list[str]] = {}
    for pair in data.decode().split(SOH)[:-1]:
        tag, _, value = pair.partition("=")
        values_by_name.setdefault(names.get(tag, tag), []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in values_by_name.items()}


def xml_text(body: Body) -> bytes:
    """The XML text of an order with its key as an attribute."""

    def element(name: str, value: Any) -> str:
        if isinstance(value, list):
            return "".join(element(name, one) for one in value)
        if isinstance(value, dict):
            return f"<{name}>" + "".join(element(*member) for member in value.items()) + f"</{name}>"
        return f"<{name}>{escape(value)}</{name}>"

    return ("<order id='1'>" + "".join(element(n, v) for n, v in body.items() if n != "id") + "</order>").encode()


def read_xml(data: bytes) -> Body:
    """The body in the XML text of an order."""

    def value(element: ET.Element) -> Any:
        return {child.tag: value(child) for child in element} if len(element) else element.text

    values_by_name: dict[str, list[Any]] = {}
    for child in ET.fromstring(data):
        values_by_name.setdefault(child.tag, []).append(value(child))
    return {name: values if len(values) > 1 else values[0] for name, values in values_by_name.items()}


def _framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def composite(world: World, part: str) -> World:
    """A composite message type: the first part has the key, the second one these fields and is never empty."""

    def read(data: bytes) -> Body:
        size = int.from_bytes(data[:4], "big")
        return world.read(data[8 + size :])

    return World(
        lambda body: _framed(b'{"id":"1"}', world.write({**body, "id": "part"})),
        read,
        {"message_type": "composite-local", "parts": ["json", part], "key": ["/0/id"]},
        {name: "/1" + path for name, path in world.paths.items()},
        world.x,
    )


def avro(type_of_v: Any, folder: Path) -> World:
    """Avro messages without a registry; the schema of a delta allows null for every field."""
    fields = [("id", "string"), ("v", type_of_v), ("x", "int")]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": "string"} if name == "id" else _optional(name, of) for name, of in fields],
    }
    delta = {"type": "record", "name": "R", "fields": [_optional(name, of) for name, of in fields]}
    folder.joinpath("schema.avsc").write_text(json.dumps(schema))

    def writer(of: Body) -> Callable[[Body], bytes]:
        def write(body: Body) -> bytes:
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, fastavro.parse_schema(of), {"id": None, "v": None, "x": None, **body})
            return buffer.getvalue()

        return write

    def read(data: bytes) -> Body:
        record = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)
        assert isinstance(record, dict)
        return record

    return World(
        writer(delta),
        read,
        {"message_type": "avro", "schema": str(folder / "schema.avsc")},
        headers=lambda body: {"fields": json.dumps([f"/{name}" for name in body])},
        write_whole=writer(schema),
    )


def _optional(name: str, of: Any) -> Body:
    return {"name": name, "type": ["null", *(of if isinstance(of, list) else [of])], "default": None}


FIX_TAGS = {"id": "11", "v": "44", "x": "38"}
JSON = World(lambda body: json_text(body).encode(), read_json, {"message_type": "json"})
NVFIX = World(
    lambda body: fields_text(body, {}), lambda data: read_fields(data, {}), {"message_type": "nvfix"}, x=("1", "2")
)
MSGPACK = World(msgpack.packb, msgpack.unpackb, {"message_type": "msgpack"})

WORLDS = {
    "json": JSON,
    "nvfix": NVFIX,
    "fix": World(
        lambda body: fields_text(body, FIX_TAGS),
        lambda data: read_fields(data, FIX_TAGS),
        {"message_type": "fix", "key": ["/11"]},
        {name: f"/{tag}" for name, tag in FIX_TAGS.items()},
        ("1", "2"),
    ),
    "xml": World(
        xml_text,
        read_xml,
        {"message_type": "xml", "key": ["/order/@id"]},
        {"v": "/order/v", "x": "/order/x"},
        ("1", "2"),
    ),
    "msgpack": MSGPACK,
    "bson": World(
        lambda body: bson.encode(body, codec_options=BSON_OPTIONS),
        lambda data: bson.decode(data, codec_options=BSON_OPTIONS),
        {"message_type": "bson"},
    ),
    "composite-local of json": composite(JSON, "json"),
    "composite-local of nvfix": composite(NVFIX, "nvfix"),
    "composite-local of msgpack": composite(MSGPACK, "msgpack"),
}
"""The message types without a schema, by name; `avro` returns one for a schema."""
