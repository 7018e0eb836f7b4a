"""Walks over Avro's bytes without making values: how deep they nest, before fastavro recurses into them.

fastavro recurses in C, without a limit: five thousand levels of a schema that contains itself end the process. Only
messages of schemas that allow more than `max_depth` come here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from processor.codec.avro.schema import Node, Schema
from processor.errors import RecordRejected

Skim: TypeAlias = Callable[[bytes, int, int], int]
"""`(data, position, levels left) -> position after the value`."""

_VARINTS: Final = frozenset(("int", "long", "enum"))
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def compile_skim(schema: Schema, max_depth: int) -> Callable[[bytes, int], None]:
    """A function that raises `too_deep` for data nested deeper than so many objects and arrays.

    Bytes that end too soon are no business of its: an IndexError, or nothing.
    """
    compiler = _Compiler(schema, max_depth)
    record = compiler.node(schema.root)

    def skim(data: bytes, start: int) -> None:
        record(data, start, max_depth)

    return skim


class _Compiler:
    def __init__(self, schema: Schema, max_depth: int) -> None:
        self._schema = schema
        self._max_depth = max_depth
        self._records: dict[str, Skim] = {}

    def node(self, node: Node) -> Skim:
        word, body = self._schema.shape(node)
        if word in _VARINTS:
            return lambda data, at, _left: _varint(data, at)[1]
        if word in {"bytes", "string"}:
            return _skim_text
        if word == "record":
            return self._record(body)
        if word == "union":
            return self._union(body)
        if word in {"array", "map"}:
            return self._blocks(self.node(body["items" if word == "array" else "values"]), keyed=word == "map")
        size = body["size"] if word == "fixed" else _SIZES[word]
        return lambda _data, at, _left: at + size

    def _refuse(self) -> RecordRejected:
        return RecordRejected("too_deep", f"nested deeper than {self._max_depth} objects and arrays")

    def _record(self, body: Any) -> Skim:
        name = body["name"]
        if name in self._records:
            return self._records[name]
        fields: list[Skim] = []

        def skim(data: bytes, at: int, left: int) -> int:
            if left == 0:
                raise self._refuse()
            for field in fields:
                at = field(data, at, left - 1)
            return at

        self._records[name] = skim
        fields.extend(self.node(field["type"]) for field in body["fields"])
        return skim

    def _union(self, union: list[Node]) -> Skim:
        branches = [self.node(branch) for branch in union]

        def skim(data: bytes, at: int, left: int) -> int:
            index, at = _varint(data, at)
            return branches[index](data, at, left)

        return skim

    def _blocks(self, item: Skim, *, keyed: bool) -> Skim:
        def skim(data: bytes, at: int, left: int) -> int:
            if left == 0:
                raise self._refuse()
            while True:
                count, at = _varint(data, at)
                if count == 0:
                    return at
                if count < 0:
                    _, at = _varint(data, at)
                for _ in range(abs(count)):
                    if keyed:
                        at = _skim_text(data, at, left)
                    at = item(data, at, left - 1)
                    if at > len(data):
                        raise IndexError("the bytes end too soon")

        return skim


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, and the position after it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than ten bytes")


def _skim_text(data: bytes, at: int, _left: int) -> int:
    length, at = _varint(data, at)
    if length < 0:
        raise IndexError("a negative length")
    return at + length
