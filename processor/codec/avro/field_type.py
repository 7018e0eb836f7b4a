"""The kinds of values that a schema allows in a field."""

from __future__ import annotations

from typing import Final

from processor.codec.avro.logical import logical_of
from processor.codec.avro.schema import Node, Schema
from processor.values.field_type import FieldType, ValueKind

_KINDS: Final[dict[str, ValueKind]] = {
    "boolean": "boolean",
    "int": "number",
    "long": "number",
    "float": "number",
    "double": "number",
    "bytes": "bytes",
    "fixed": "bytes",
    "string": "text",
    "enum": "text",
    "record": "object",
    "map": "object",
    "array": "array",
}
_LOGICAL_KINDS: Final[dict[str, ValueKind]] = {"Decimal": "number", "UUID": "other"}
"""By the name of Python's type; the rest are dates and times."""


def field_type(schema: Schema, path: tuple[str, ...]) -> FieldType:
    """The type of the field at a path of names. It has no kinds where the schema has no field that merges there.

    A record in a union with another record or map is replaced whole, so no field inside merges.
    """
    node: Node | None = schema.root
    for name in path:
        node = _member(schema, node, name)
        if node is None:
            return FieldType(frozenset())
    return FieldType(frozenset(_kinds(schema, node)))


def _member(schema: Schema, node: Node, name: str) -> Node | None:
    """The schema of a member of an object; None if there is none."""
    objects = [shape for shape in map(schema.shape, _branches(schema, node)) if shape[0] in {"record", "map"}]
    if len(objects) != 1:
        return None
    [(word, body)] = objects
    if word == "map":
        return body["values"]
    return next((field["type"] for field in body["fields"] if field["name"] == name), None)


def _branches(schema: Schema, node: Node) -> list[Node]:
    word, body = schema.shape(node)
    return schema.branches(body) if word == "union" else [node]


def _kinds(schema: Schema, node: Node) -> list[ValueKind]:
    kinds: list[ValueKind] = []
    for word, body in map(schema.shape, _branches(schema, node)):
        logical = logical_of(word, body)
        if logical is not None:
            kinds.append(_LOGICAL_KINDS.get(logical.kind.__name__, "time"))
        elif word != "null":
            kinds.append(_KINDS[word])
    return kinds
