"""An Avro schema, parsed and checked: every name is full, every named type is known, reading by it comes to an end.

Also Python's types of its values, among them those of unions, which keep their branch where Python's type alone leaves
it open. The first branch of a kind has plain values; a value of a further one is of a subclass made here and has its
number, from 1. Where two branches are objects (records, maps), both have marked ones: they never merge, they replace.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import fastavro

from processor.codec.avro.scalar import logical_of
from processor.codec.schema_registry.topic_schema import UnusableSchema
from processor.values.kinds import FieldType, ValueKind

Node: TypeAlias = Any
"""A schema as JSON has it: a name, a union's list, or an object."""

DEPTH_ENDLESS: Final = 1 << 30
"""The depth of a schema that contains itself."""

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))

_SIZES_MIN: Final = {"null": 0, "float": 4, "double": 8}
"""Bytes of the shortest value, where that is not one."""


class BadSchema(UnusableSchema):
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
            self.depth = self._depth_of(root, {}, {})
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

    def _size_min(self, node: Node, sizes: dict[str, int | None]) -> int:
        """Bytes of the shortest value; `sizes` are those of records by name, None for one that this one is in."""
        word, body = self.shape(node)
        if word == "fixed":
            return int(body["size"])
        if word != "record":
            return _SIZES_MIN.get(word, 1)
        name = body["name"]
        if name not in sizes:
            sizes[name] = None
            sizes[name] = sum(self._size_min(field["type"], sizes) for field in body["fields"])
        if (size := sizes[name]) is None:
            raise BadSchema(f"{name} contains itself, always")
        return size

    def _depth_of(self, node: Node, depths: dict[str, int], sizes: dict[str, int | None]) -> int:
        """Depth of the deepest value; `depths` are those of records by name, endless for one that this one is in."""
        word, body = self.shape(node)
        if word not in _KNOWN:
            raise BadSchema(f"{word!r} is not a type of a value")
        if word == "record":
            self._size_min(node, sizes)
            if body["name"] in depths:
                return depths[body["name"]]
            depths[body["name"]] = DEPTH_ENDLESS
        depth = max((self._depth_of(child, depths, sizes) for child in self._children(word, body)), default=0)
        if word == "array" and self._size_min(body["items"], sizes) == 0:
            # A few bytes could announce 2**62 of them.
            raise BadSchema("an array's items must take room: nulls and empty records do not")
        if word in _NESTING:
            depth = min(depth + 1, DEPTH_ENDLESS)
        if word == "record":
            depths[body["name"]] = depth
        return depth


_NESTING: Final = frozenset(("record", "array", "map"))
_KNOWN: Final = _NESTING | {"union", "enum", "fixed"} | PRIMITIVES

PYTHON_TYPES: Final[Mapping[str, type]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "enum": str,
    "fixed": bytes,
    "record": dict,
    "map": dict,
    "array": list,
}
"""Python's types of the values of Avro's types, except logical ones."""

_MARKED: Final = frozenset((dict, str, bytes, int, float, Decimal))
"""Kinds of values that are distinguished. Of others (UUID, time) the first branch that holds the value is written."""


def kind_of(schema: Schema, node: Node) -> type:
    """Python's type of a schema's plain values."""
    word, body = schema.shape(node)
    logical = logical_of(word, body)
    return PYTHON_TYPES[word] if logical is None else logical.kind


def classes(schema: Schema, union: list[Node]) -> list[type]:
    """The class that marks each branch of a union."""
    kinds = [kind_of(schema, branch) for branch in union]
    count = Counter(kinds)
    # Nulls do not count: a schema of deltas has one more, or has it elsewhere.
    numbers = itertools.accumulate(kind is not type(None) for kind in kinds)
    return [
        marked(kind, number)
        if kind in _MARKED and (kind in kinds[:index] or (kind is dict and count[dict] > 1))
        else kind
        for index, (kind, number) in enumerate(zip(kinds, numbers, strict=True))
    ]


@functools.cache
def marked(kind: type, index: int) -> type:
    """The class of the values of one kind and one branch. It has another `repr`: two branches are two values."""
    plain_repr: Callable[..., str] = kind.__repr__

    def shown(self: Any) -> str:
        return f"{plain_repr(self)} of branch {index}"

    def reduced(self: Any) -> tuple[Any, ...]:
        return _value_of, (kind, index, kind(self))

    members = {"__slots__": (), "BRANCH": index, "__repr__": shown, "__reduce__": reduced}
    return type(f"{kind.__name__.capitalize()}OfBranch{index}", (kind,), members)


def _value_of(kind: type, index: int, value: Any) -> Any:
    return marked(kind, index)(value)


def is_marked(kind: type) -> bool:
    """Return whether a class is one of those made here."""
    return hasattr(kind, "BRANCH")


def replaces_whole(kind: type) -> bool:
    """Return whether the values of a branch are objects that never merge: one of several records or maps."""
    return is_marked(kind) and issubclass(kind, dict)


_VALUE_KINDS: Final[Mapping[type, ValueKind]] = {
    bool: "boolean",
    int: "number",
    float: "number",
    Decimal: "number",
    bytes: "bytes",
    str: "text",
    dict: "object",
    list: "array",
    UUID: "other",
}
"""By Python's type of the plain values; the rest are dates and times."""


def field_type(schema: Schema, path: tuple[str, ...]) -> FieldType:
    """The type of the field at a path of names. It has no kinds where the schema has no field that merges there.

    A record in a union with another record or map is replaced whole, so no field inside merges.
    """
    node: Node | None = schema.root
    for name in path:
        node = _member(schema, node, name)
        if node is None:
            return FieldType(frozenset())
    kinds = (kind_of(schema, branch) for branch in _branches(schema, node))
    return FieldType(frozenset(_VALUE_KINDS.get(kind, "time") for kind in kinds if kind is not type(None)))


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
