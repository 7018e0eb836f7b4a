"""The specimens of all message types: settings to test each with, values, and the bodies of its records and deltas."""

from __future__ import annotations

import atexit
import tempfile
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import bson
import msgpack
import pytest
from google.protobuf import descriptor_pb2, text_format
from hypothesis import strategies as st

from processor.codec import Codec, CodecOptions, codec_options, load_codec
from processor.codec.nvfix import DATA_TAGS, MESSAGE_ENCODING
from processor.codec.protobuf.messages import WholeMessage
from processor.config import TopicConfig
from processor.errors import RecordRejected

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
FLOATS = st.floats(width=64)
INTS = st.integers(-(2**63), 2**64 - 1)


class Specimen(NamedTuple):
    """One message type under test."""

    settings: dict[str, Any]
    """Topic settings besides `message_type`."""
    values: st.SearchStrategy
    """Values that are read back as they were written."""
    bodies: st.SearchStrategy | None = None
    """Records and deltas without their key field; None for a type that cannot do deltas."""
    key: str = "/id"
    """The JSON Pointer of the key field in the tests' records."""


def topic_of(name: str, **settings: Any) -> TopicConfig:
    """Return the topic of a specimen."""
    specimen = SPECIMENS[name]
    return TopicConfig(**{"message_type": name, "key": [specimen.key], **specimen.settings, **settings})


def codec_of(name: str, **settings: Any) -> Codec:
    """Return the codec of a specimen."""
    return load_codec(topic_of(name).message_type, options_of(name, **settings))


def options_of(name: str, **settings: Any) -> CodecOptions:
    """Return the codec options that follow from a specimen's topic."""
    return codec_options(topic_of(name, **settings), name="orders")


def strict(value: Any) -> Any:
    """A comparable form of a value in which 1, 1.0 and True differ and the order of members does not matter."""
    if isinstance(value, dict):
        return "dict", sorted((name, strict(member)) for name, member in value.items())
    if isinstance(value, list):
        return "list", [strict(item) for item in value]
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return "int", str(value)  # JSON writes `5.1602859463448816e16`, which no double holds, as an integer.
    return type(value).__name__, repr(value)


def nested(leaves: st.SearchStrategy, names: st.SearchStrategy = TEXTS) -> st.SearchStrategy:
    """Objects and arrays with the given leaves."""
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
    )


def objects(leaves: st.SearchStrategy, names: st.SearchStrategy = TEXTS) -> st.SearchStrategy:
    """Objects whose members are objects, arrays and leaves."""
    return st.dictionaries(names, nested(leaves, names), max_size=3)


NAMES = st.sampled_from(["a", "b", "c"])

JSON = st.none() | st.booleans() | TEXTS | INTS | st.floats(allow_nan=False, allow_infinity=False)

FIELD_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01"), max_size=6)
FIELD_NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\x01=\ufeff"), min_size=1, max_size=4
)
TAGS = st.integers(0, 99_999).map(str).filter(lambda tag: tag not in {MESSAGE_ENCODING, *DATA_TAGS})


def fields(names: st.SearchStrategy) -> st.SearchStrategy:
    """Records of the `name=value` message types."""
    return st.dictionaries(names, FIELD_TEXTS | st.lists(FIELD_TEXTS, min_size=2, max_size=3), max_size=4)


MSGPACK = (
    st.none() | st.booleans() | INTS | FLOATS | TEXTS | st.binary(max_size=4)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
    | st.builds(msgpack.Timestamp, st.integers(-(2**63), 2**63 - 1), st.integers(0, 999_999_999))
)  # fmt: skip

BSON_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00$"), max_size=4)
BSON = (
    st.none() | st.booleans() | FLOATS | TEXTS | st.binary(max_size=4) | st.uuids()
    | st.integers(-(2**31), 2**31 - 1)
    | st.integers(-(2**63), 2**63 - 1).map(bson.Int64)
    | st.decimals(allow_nan=False, places=3, min_value=-(10**9), max_value=10**9).map(bson.Decimal128)
    | st.binary(min_size=12, max_size=12).map(bson.ObjectId)
    | st.datetimes().map(
        lambda d: d.replace(fold=0, microsecond=d.microsecond // 1000 * 1000, tzinfo=UTC)
    )
    | st.binary(max_size=4).map(lambda data: bson.Binary(data, 128))
    | st.builds(bson.Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
    | st.sampled_from([bson.MinKey(), bson.MaxKey(), bson.Regex("^a", 2), bson.Code("f()"), bson.DBRef("c", 1)])
)  # fmt: skip

XML_TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="".join(map(chr, range(32))) + "\ufffe\uffff")
    | st.sampled_from("\t\n\r &<>\"'"),
    max_size=6,
)
XML_NAMES = st.sampled_from(["a", "b", "x:c", "Ä", "d-1.2"])


def elements(texts: st.SearchStrategy, names: st.SearchStrategy) -> st.SearchStrategy:
    """Values of an XML element."""

    def of(inner: st.SearchStrategy) -> st.SearchStrategy:
        members = st.dictionaries(names, inner | st.lists(inner, min_size=1, max_size=3), max_size=3)
        attributes = st.dictionaries(names.map("@{}".format), texts, max_size=2)
        text = texts.map(lambda text: {"#text": text} if text.strip() else {})
        return st.tuples(attributes, text, members).map(lambda parts: {**parts[0], **parts[1], **parts[2]})

    return st.recursive(texts, of, max_leaves=8)


PROTO = """
name: "order.proto" package: "test" syntax: "proto3"
enum_type { name: "Side" value { name: "UNKNOWN" number: 0 } value { name: "BUY" number: 1 } }
message_type {
  name: "Order"
  field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
  field { name: "big" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT64 }
  field { name: "note" number: 3 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 1 proto3_optional: true }
  field { name: "raw" number: 4 label: LABEL_OPTIONAL type: TYPE_BYTES }
  field { name: "price" number: 5 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  field { name: "side" number: 6 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".test.Side" }
  field { name: "tags" number: 7 label: LABEL_REPEATED type: TYPE_STRING }
  field { name: "parent" number: 8 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".test.Order" }
  field { name: "legs" number: 9 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.Order" }
  field { name: "by_n" number: 10 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.Order.ByNEntry" }
  field { name: "cash" number: 11 label: LABEL_OPTIONAL type: TYPE_INT32 oneof_index: 0 }
  field { name: "card" number: 12 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 0 }
  field { name: "ok" number: 13 label: LABEL_OPTIONAL type: TYPE_BOOL }
  oneof_decl { name: "pay" }
  oneof_decl { name: "_note" }
  nested_type {
    name: "ByNEntry"
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".test.Order" }
    options { map_entry: true }
  }
}
"""
PRESENT_PROTO = """
name: "row.proto" package: "test" syntax: "proto3"
message_type {
  name: "Row"
  field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 1 proto3_optional: true }
  field { name: "a" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".test.Row" }
  field { name: "b" number: 3 label: LABEL_OPTIONAL type: TYPE_INT64 oneof_index: 2 proto3_optional: true }
  field { name: "c" number: 4 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.Moment" }
  field { name: "rows" number: 5 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.Row.RowsEntry" }
  field { name: "cash" number: 6 label: LABEL_OPTIONAL type: TYPE_DOUBLE oneof_index: 0 }
  field { name: "card" number: 7 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 0 }
  field { name: "at" number: 8 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".test.Moment" }
  field { name: "n" number: 9 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.Row.NEntry" }
  oneof_decl { name: "pay" }
  oneof_decl { name: "_id" }
  oneof_decl { name: "_b" }
  nested_type {
    name: "RowsEntry"
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".test.Row" }
    options { map_entry: true }
  }
  nested_type {
    name: "NEntry"
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".test.Moment" }
    options { map_entry: true }
  }
}
message_type {
  name: "Moment"
  field { name: "s" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
  field { name: "ns" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "zones" number: 3 label: LABEL_REPEATED type: TYPE_STRING }
}
"""
_folder = tempfile.TemporaryDirectory(prefix="sowstream-specimens-")
atexit.register(_folder.cleanup)
PROTO_FILE = Path(_folder.name) / "order.pb"
PROTO_FILE.write_bytes(
    descriptor_pb2.FileDescriptorSet(
        file=[text_format.Parse(text, descriptor_pb2.FileDescriptorProto()) for text in (PROTO, PRESENT_PROTO)]
    ).SerializeToString()
)

_ORDER_DEFAULTS = {"id": 0, "big": 0, "raw": b"", "price": 0.0, "side": "UNKNOWN", "tags": [], "legs": [], "by_n": {}}


def orders() -> st.SearchStrategy:
    """Values of test.Order, with every field that has no presence."""
    leaves = st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "big": st.integers(0, 2**64 - 1),
            "raw": st.binary(max_size=3),
            "price": FLOATS,
            "side": st.sampled_from(["UNKNOWN", "BUY", 7]),
            "tags": st.lists(TEXTS, max_size=2),
            "ok": st.booleans(),
        },
        optional={"note": TEXTS},
    ).map(lambda order: {**_ORDER_DEFAULTS, **order})
    paid = st.tuples(leaves, st.sampled_from([{}, {"cash": 0}, {"cash": -1}, {"card": "x"}])).map(
        lambda parts: {**parts[0], **parts[1]}
    )
    return st.recursive(
        paid,
        lambda inner: st.tuples(
            paid,
            st.fixed_dictionaries(
                {"legs": st.lists(inner, max_size=2)},
                optional={"parent": inner, "by_n": st.dictionaries(st.integers(-9, 9).map(str), inner, max_size=2)},
            ),
        ).map(lambda parts: {**parts[0], **parts[1]}),
        max_leaves=4,
    )


MOMENTS = st.tuples(
    st.fixed_dictionaries({"s": st.sampled_from([0, 1, -(2**63)]), "ns": st.sampled_from([0, 5])}),
    st.fixed_dictionaries({}, optional={"zones": st.lists(TEXTS, min_size=1, max_size=2)}),
).map(lambda parts: WholeMessage(parts[0] | parts[1]))


def rows() -> st.SearchStrategy:
    """Values of test.Row, whose fields all have presence: any of them may be absent, and an unknown field may occur."""
    leaves = {
        "b": st.sampled_from([0, 1, 2**63 - 1]),
        "c": st.lists(MOMENTS, min_size=1, max_size=2),
        "at": MOMENTS,
        "n": st.dictionaries(st.sampled_from(["x", "y"]), MOMENTS, min_size=1),
        "77": st.sampled_from([b"\xe8\x04\x01", b"\xea\x04\x01a", b"\xe8\x04\x01\xe8\x04\x02"]),
    }
    paid = st.sampled_from([{}, {}, {"cash": 0.0}, {"cash": 1.5}, {"card": ""}, {"card": "x"}])
    leaf = st.tuples(st.fixed_dictionaries({}, optional=leaves), paid).map(lambda parts: parts[0] | parts[1])
    return st.recursive(
        leaf,
        lambda inner: st.tuples(
            leaf,
            st.fixed_dictionaries(
                {},
                optional={"a": inner, "rows": st.dictionaries(st.sampled_from(["1", "-2"]), inner, min_size=1)},
            ),
        ).map(lambda parts: parts[0] | parts[1]),
        max_leaves=4,
    )


PARTS = st.fixed_dictionaries(
    {}, optional={"0": objects(JSON), "1": fields(FIELD_NAMES).filter(bool), "2": st.binary(min_size=1, max_size=6)}
)

SPECIMENS = {
    "json": Specimen({}, nested(JSON), objects(JSON, NAMES)),
    "json-schema": Specimen({"schema": {"text": "{}"}}, nested(JSON), objects(JSON, NAMES)),
    "nvfix": Specimen({}, fields(FIELD_NAMES), fields(NAMES)),
    "fix": Specimen({}, fields(TAGS), fields(st.sampled_from(["1", "2", "3"])), "/11"),
    "msgpack": Specimen({}, nested(MSGPACK), objects(MSGPACK, NAMES)),
    "bson": Specimen({}, objects(BSON, BSON_NAMES), objects(BSON, NAMES)),
    "xml": Specimen(
        {},
        st.dictionaries(XML_NAMES, elements(XML_TEXTS, XML_NAMES), min_size=1, max_size=1),
        elements(st.sampled_from(["", "x", "y"]), NAMES)
        .filter(lambda value: isinstance(value, dict))
        .map(lambda value: {"order": value}),
        "/order/@id",
    ),
    "composite-local": Specimen({"parts": ["json", "nvfix", "binary"]}, PARTS, PARTS, "/0/id"),
    "composite-global": Specimen({"parts": ["json", "nvfix", "binary"]}, PARTS, key="/0/id"),
    "protobuf": Specimen({"schema": {"file": PROTO_FILE, "message": "test.Order"}}, orders()),
    "protobuf-presence": Specimen(
        {"message_type": "protobuf", "schema": {"file": PROTO_FILE, "message": "test.Row"}}, rows(), rows()
    ),
    "binary": Specimen({"key": "explicit"}, st.binary(max_size=8)),
}


def refused(codec: Codec, data: bytes) -> str:
    """Return the reason and the sentence with which a codec rejects a message."""
    with pytest.raises(RecordRejected) as caught:
        codec.decode(data)
    return str(caught.value)
