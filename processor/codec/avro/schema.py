"""An Avro schema, parsed and judged: every name is full, every named type is known, reading by it comes to an end.

Also the kinds of values that it allows in a field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import fastavro

from processor.codec.avro.scalar import logical_of
from processor.values.kinds import FieldType, ValueKind

Node: TypeAlias = Any
"""A schema as JSON has it: a name, a union's list, or an object."""

DEPTH_ENDLESS: Final = 1 << 30
"""The depth of a schema that contains itself."""

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))

_SIZES_MIN: Final = {"null": 0, "float": 4, "double": 8}
"""Bytes of the shortest value, where that is not one."""


class BadSchema(ValueError):
    """A text that is no Avro schema of a record, or one that cannot be read by safely."""


class Schema:
    """One schema of a record."""

    __slots__ = ("depth", "named", "root")

    root: Mapping[str, Any]
    """The record's schema, as fastavro parses it."""
    named: Mapping[str, Any]
    """The schemas of its named types, by full name."""
    depth: int
    """Deepest nesting of objects and arrays that it allows."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """Parse a schema.

        Args:
            text: the schema as JSON.
            references: the schemas that it refers to by name, those first that others need.

        Raises:
            BadSchema: it cannot be used; the message has the reason.
        """
        named: dict[str, Any] = {}
        try:
            for reference in references:
                fastavro.parse_schema(json.loads(reference), named)
            root = fastavro.parse_schema(json.loads(text), named)
            if not isinstance(root, dict) or root.get("type") != "record":
                raise BadSchema("it is not the schema of a record")
            self.root, self.named = root, named
            self.depth = self._judge(root, ())[1]
        except BadSchema:
            raise
        except RecursionError:
            raise BadSchema("nested too deep") from None
        except Exception as error:  # noqa: BLE001 - fastavro answers a bad schema with any error
            raise BadSchema(f"not an Avro schema: {type(error).__name__}: {error}") from None

    def shape(self, node: Node) -> tuple[str, Any]:
        """The type's word, such as `record`, `union` or `long`, and its definition."""
        if isinstance(node, list):
            return "union", node
        if isinstance(node, str):
            if node in PRIMITIVES:
                return node, {}
            node = self.named[node]
        return node["type"], node

    def branches(self, union: list[Node]) -> list[Node]:
        """The branches of a union, without null."""
        return [branch for branch in union if self.shape(branch)[0] != "null"]

    def _children(self, word: str, body: Any) -> Iterator[Node]:
        if word == "union":
            yield from body
        elif word == "record":
            yield from (field["type"] for field in body["fields"])
        elif word in {"array", "map"}:
            yield body["items" if word == "array" else "values"]

    def _judge(self, node: Node, around: tuple[str, ...]) -> tuple[int, int]:
        """Bytes of the shortest value, and depth of the deepest one.

        Args:
            node: the schema.
            around: the records around it; those before an empty text are entered only if the data says so.
        """
        word, body = self.shape(node)
        if word == "record":
            name = body["name"]
            if name in around:
                if "" not in around[around.index(name) :]:
                    raise BadSchema(f"{name} contains itself, always")
                return 1, DEPTH_ENDLESS
            around = (*around, name)
        elif word not in _KNOWN:
            raise BadSchema(f"{word!r} is not a type of a value")
        elif word in _OPTIONAL:
            around = (*around, "")
        judged = [self._judge(child, around) for child in self._children(word, body)]
        if word == "array" and judged[0][0] == 0:
            # A few bytes could announce 2**62 of them.
            raise BadSchema("an array's items must take room: nulls and empty records do not")
        depth = max((depth for _, depth in judged), default=0)
        if word in _NESTING:
            depth = min(depth + 1, DEPTH_ENDLESS)
        if word == "record":
            return sum(size for size, _ in judged), depth
        if word == "fixed":
            return body["size"], depth
        return _SIZES_MIN.get(word, 1), depth


_OPTIONAL: Final = frozenset(("union", "array", "map"))
_NESTING: Final = frozenset(("record", "array", "map"))
_KNOWN: Final = _OPTIONAL | {"enum", "fixed"} | PRIMITIVES

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
