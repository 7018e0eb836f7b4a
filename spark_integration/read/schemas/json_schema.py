"""The error for a part of a schema without a type in Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from processor.errors import ConfigurationError
from processor.record import Value


class Unmapped(ConfigurationError):
    """A part of a schema has no type in Spark; a column of another type could not hold its values."""

    def __init__(self, path: Sequence[str], what: str) -> None:
        """Create the error for a path; `what` describes its type."""
        self.what = f"{''.join(f'/{name}' for name in path) or 'the record'} is {what}"
        super().__init__(
            f"{self.what}: Spark has no type for it; give the columns yourself, without that one: "
            "schema='id LONG, name STRING'"
        )


_Nodes: TypeAlias = Sequence[tuple[Value, tuple[str, ...]]]
"""Schemas that all apply to one value, each with the references that led to it."""

_WORDS: Final[dict[str, DataType]] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
_WORD_OF: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def json_schema_struct(document: Value) -> StructType:
    """Convert a JSON Schema to columns, all of them nullable.

    `$ref` within the document, `allOf`, and `anyOf` or `oneOf` of null and one type are followed. `integer` is a long,
    `number` a double; formats are ignored: a `date-time` is a text.

    Raises:
        Unmapped: Spark has no single type for a part of it; the error names the part.
    """
    data_type = _Reader(document).type([(document, ())], ())
    if not isinstance(data_type, StructType):
        raise Unmapped((), f"{data_type.simpleString()}, and no object with properties")
    return data_type


class _Reader:
    def __init__(self, document: Value) -> None:
        self._document = document

    def type(self, nodes: _Nodes, path: tuple[str, ...]) -> DataType:
        """The type of a value to which all these schemas apply."""
        nodes = [applied for node, refs in nodes for applied in self._applied(node, refs, path)]
        word = self._word(nodes, path)
        if word in _WORDS:
            return _WORDS[word]
        if word == "array":
            items = _members(nodes, "items")
            if not items:
                raise Unmapped(path, "an array that does not say of what")
            return ArrayType(self.type(items, path))
        properties: dict[str, list[tuple[Value, tuple[str, ...]]]] = {}
        for node, refs in nodes:
            for name, member in node.get("properties", {}).items():
                properties.setdefault(name, []).append((member, refs))
        if properties:
            types = ((name, self.type(members, (*path, name))) for name, members in properties.items())
            return StructType([StructField(name, data_type) for name, data_type in types])
        values = [(node, refs) for node, refs in _members(nodes, "additionalProperties") if isinstance(node, dict)]
        if not values:
            raise Unmapped(path, "an object that does not say of what")
        return MapType(StringType(), self.type(values, path))

    def _applied(
        self, node: Value, refs: tuple[str, ...], path: tuple[str, ...]
    ) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        """A schema with all others that it includes; those that it refers to come first."""
        if not isinstance(node, dict):
            if node is not True:
                raise Unmapped(path, f"described by {node!r:.50}, which is no schema of a value")
            return
        if (ref := node.get("$ref")) is not None:
            if ref in refs:
                raise Unmapped(path, f"described by {ref} inside of itself")
            yield from self._applied(self._referred(ref, path), (*refs, ref), path)
        for also in node.get("allOf", ()):
            yield from self._applied(also, refs, path)
        yield node, refs
        for choice in ("anyOf", "oneOf"):
            if choice in node:
                branches = [one for one in node[choice] if one != {"type": "null"}]
                if len(branches) != 1:
                    raise Unmapped(path, f"one of several types ({choice})")
                yield from self._applied(branches[0], refs, path)

    def _referred(self, ref: str, path: tuple[str, ...]) -> Value:
        node = self._document
        if not ref.startswith("#"):
            raise Unmapped(path, f"described by {ref}, which is not in the same document")
        for part in ref[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or name not in node:
                raise Unmapped(path, f"described by {ref}, which is not there")
            node = node[name]
        return node

    def _word(self, nodes: _Nodes, path: tuple[str, ...]) -> str:
        """The one type that is not null."""
        words: set[str] | None = None
        for node, _ in nodes:
            allowed = _allowed_types(node)
            if allowed is None:
                continue
            # Every integer is a number too.
            both = allowed if words is None else {w for w in words | allowed if _fits(w, words) and _fits(w, allowed)}
            words = both
        if words == {"integer", "number"}:
            return "number"
        if not words:
            raise Unmapped(path, "of no type that its schema says")
        if len(words) > 1:
            raise Unmapped(path, f"one of several types ({', '.join(sorted(words))})")
        return words.pop()


def _allowed_types(node: dict[str, Any]) -> set[str] | None:
    """The types that a schema allows, without null; None where it does not restrict them."""
    if (allowed := node.get("type")) is not None:
        return {allowed} - {"null"} if isinstance(allowed, str) else {*allowed} - {"null"}
    if "enum" in node or "const" in node:
        values = node.get("enum", [node.get("const")])
        return {_WORD_OF[type(value)] for value in values if value is not None}
    if "properties" in node or "additionalProperties" in node:
        return {"object"}
    return {"array"} if "items" in node else None


def _fits(word: str, words: set[str]) -> bool:
    return word in words or (word == "integer" and "number" in words)


def _members(nodes: _Nodes, name: str) -> list[tuple[Value, tuple[str, ...]]]:
    return [(node[name], refs) for node, refs in nodes if name in node]
