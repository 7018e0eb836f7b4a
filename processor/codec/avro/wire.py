"""Avro's bytes ⇄ raw values, by fastavro, with a schema of the same bytes that says more than the original.

Each branch of a union of several types becomes a record of one field, which takes no bytes, so that fastavro says which
branch it read; logical types are left out; an enum is its number. A raw value of a branch is `(name, {"v": value})`.

fastavro takes some malformed bytes for values. A boolean of any byte but 0 is true to it, so a boolean is read as an
int: 0 or -1. It counts branches of a union from the end by a negative number: see `_strict`.

Before that, bytes may be walked over without making values: how deep they nest, and how many containers there are.
fastavro recurses in C, without a limit: five thousand levels of a schema that contains itself end the process. And a
container (an object, an array, the branch of a union of several types) is an object of Python's, made by functions of
Python's: a mebibyte of containers of a byte each would take seconds. Only messages of schemas that allow more than
`max_depth` come here, and large ones of schemas whose messages contain the number of containers.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, TypeAlias

import fastavro

from processor.codec.avro.schema import Node, Schema, classes, replaces_whole
from processor.codec.contract import empty_message
from processor.errors import RecordRejected

CONTAINERS_FREE: Final = 100_000
"""So many containers any message may have; a larger one has one for every `CONTAINER_BYTES` of its own."""
CONTAINER_BYTES: Final = 8
"""Bytes of a message for each container, where there are more than `CONTAINERS_FREE`."""

Skim: TypeAlias = Callable[[bytes, int, int, list[int]], int]
"""`(data, position, levels left, [containers left]) -> position after the value`."""

_VARINTS: Final = frozenset(("int", "long", "enum"))
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def compile_skim(schema: Schema, max_depth: int) -> Callable[[bytes, int], None]:
    """A function that raises for data nested deeper than so many objects and arrays, or with too many containers.

    It raises RecordRejected: `too_deep` or `undecodable`. Bytes that end too soon are no business of its: an
    IndexError, or nothing.
    """
    compiler = _Compiler(schema, max_depth)
    record = compiler.node(schema.root)

    def skim(data: bytes, start: int) -> None:
        left = [max(CONTAINERS_FREE, (len(data) - start) // CONTAINER_BYTES)]
        record(data, start, max_depth, left)

    return skim


def may_hold_many(schema: Schema) -> bool:
    """Return whether a message of a schema contains the number of its containers: some are in an array or a map."""
    return _Compiler(schema, 1).may_hold_many(schema.root, {})


class _Compiler:
    def __init__(self, schema: Schema, max_depth: int) -> None:
        self._schema = schema
        self._max_depth = max_depth
        self._records: dict[str, Skim] = {}

    def node(self, node: Node) -> Skim:
        word, body = self._schema.shape(node)
        if word in _VARINTS:
            return _skim_varint
        if word in {"bytes", "string"}:
            return _skim_text
        if word == "record":
            return self._record(body)
        if word == "union":
            return self._union(body)
        if word in {"array", "map"}:
            return self._blocks(self.node(body["items" if word == "array" else "values"]), keyed=word == "map")
        size = body["size"] if word == "fixed" else _SIZES[word]
        return lambda _data, at, _left, _containers: at + size

    def may_hold_many(self, node: Node, records: dict[str, bool]) -> bool:
        """True if values of a schema hold arrays or maps of containers; `records` are the answers for records.

        A record that contains itself holds many.
        """
        word, body = self._schema.shape(node)
        if word == "record":
            name = body["name"]
            if name not in records:
                records[name] = True
                records[name] = any(self.may_hold_many(field["type"], records) for field in body["fields"])
            return records[name]
        if word == "union":
            return any(self.may_hold_many(branch, records) for branch in body)
        if word in {"array", "map"}:
            return self._is_container(body["items" if word == "array" else "values"])
        return False

    def _is_container(self, node: Node) -> bool:
        word, body = self._schema.shape(node)
        if word == "union":
            return len(self._schema.branches(body)) > 1 or any(map(self._is_container, body))
        return word in {"record", "array", "map"}

    def _refuse(self) -> RecordRejected:
        return RecordRejected("too_deep", f"nested deeper than {self._max_depth} objects and arrays")

    def _record(self, body: Any) -> Skim:
        name = body["name"]
        if name in self._records:
            return self._records[name]
        fields: list[Skim] = []

        def skim(data: bytes, at: int, left: int, containers: list[int]) -> int:
            if left == 0:
                raise self._refuse()
            _count(containers, data)
            for field in fields:
                at = field(data, at, left - 1, containers)
            return at

        self._records[name] = skim
        fields.extend(self.node(field["type"]) for field in body["fields"])
        return skim

    def _union(self, union: list[Node]) -> Skim:
        branches = [self.node(branch) for branch in union]
        is_container = len(self._schema.branches(union)) > 1

        def skim(data: bytes, at: int, left: int, containers: list[int]) -> int:
            if is_container:
                _count(containers, data)
            index, at = _varint(data, at)
            if index < 0:
                raise IndexError("a negative branch of a union")
            return branches[index](data, at, left, containers)

        return skim

    def _blocks(self, item: Skim, *, keyed: bool) -> Skim:
        def skim(data: bytes, at: int, left: int, containers: list[int]) -> int:
            if left == 0:
                raise self._refuse()
            _count(containers, data)
            while True:
                count, at = _varint(data, at)
                if count == 0:
                    return at
                if count < 0:
                    _, at = _varint(data, at)
                for _ in range(abs(count)):
                    if keyed:
                        at = _skim_text(data, at, left, containers)
                    at = item(data, at, left - 1, containers)
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
            if number >> 64:
                raise IndexError("a number of more than 64 bits")
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than ten bytes")


def _skim_varint(data: bytes, at: int, _left: int, _containers: list[int]) -> int:
    """Skip a number; most have one byte, and a message may consist of them."""
    return at + 1 if data[at] < 0x80 else _varint(data, at)[1]


def _count(containers: list[int], data: bytes) -> None:
    """One container more.

    Raises:
        RecordRejected: `undecodable`: too many for so short a message.
    """
    containers[0] -= 1
    if containers[0] < 0:
        raise RecordRejected(
            "undecodable",
            f"{len(data)} bytes with more than {CONTAINERS_FREE} objects, arrays and branches of unions, which is more "
            f"than one for {CONTAINER_BYTES} bytes",
        )


def _skim_text(data: bytes, at: int, _left: int, _containers: list[int]) -> int:
    length, at = _varint(data, at)
    if length < 0:
        raise IndexError("a negative length")
    return at + length


class Wire:
    """The reader and writer of one schema's bytes."""

    __slots__ = ("_name", "_read_wire", "_skim", "_skim_above_bytes", "_wire", "branch_names", "whole")

    branch_names: dict[int, list[str]]
    """The names of the branches of each union that has several types, by the identity of its list in the schema."""
    whole: frozenset[str]
    """Those of them whose objects replace whole."""

    def __init__(self, schema: Schema, max_depth: int) -> None:
        """Make the wire schema, once.

        Args:
            schema: the schema.
            max_depth: deepest nesting of objects and arrays to read.
        """
        emitter = _Emitter(schema)
        self._wire = fastavro.parse_schema(emitter.node(schema.root))
        self.branch_names = emitter.branch_names
        self.whole = frozenset(emitter.whole)
        self._name = schema.root["name"]
        self._read_wire = _strict(fastavro.parse_schema(_Emitter(schema, boolean="int").node(schema.root)))
        self._skim: Callable[[bytes, int], None] | None = None
        self._skim_above_bytes = -1
        if schema.depth > max_depth:
            self._skim = compile_skim(schema, max_depth)
        elif may_hold_many(schema):
            self._skim = compile_skim(schema, max_depth)
            self._skim_above_bytes = CONTAINERS_FREE  # A container has a byte at least.

    def read(self, data: bytes, start: int = 0) -> Any:
        """Read one record, from a byte on to the end.

        Raises:
            RecordRejected: `undecodable` or `too_deep`, with the position.
        """
        stream = BytesIO(data)
        stream.seek(start)
        try:
            if self._skim is not None and len(data) > self._skim_above_bytes:
                self._skim(data, start)
            if self.branch_names:
                raw: Any = fastavro.schemaless_reader(
                    stream, self._read_wire, None, return_record_name=True, return_record_name_override=True
                )
            else:
                raw = fastavro.schemaless_reader(stream, self._read_wire, None)
        except RecordRejected:
            raise
        except RecursionError:
            raise RecordRejected("too_deep", f"nested deeper than can be read, by the schema {self._name}") from None
        except Exception as error:  # noqa: BLE001 - fastavro answers bad bytes with any error
            if not data:
                raise empty_message() from None
            raise RecordRejected(
                "undecodable",
                f"not Avro of the schema {self._name}: {type(error).__name__} at byte {stream.tell()} of {len(data)}: "
                f"{error!s:.200}",
            ) from None
        if stream.tell() != len(data):
            raise RecordRejected(
                "undecodable", f"the record of schema {self._name} ends at byte {stream.tell()} of {len(data)}"
            )
        return raw

    def write(self, raw: Any, prefix: bytes) -> bytes:
        """Write one record behind a prefix; any error of fastavro's where the value does not fit.

        Raises:
            TypeError: it would not be read back: too deep, or too many containers.
        """
        stream = BytesIO()
        stream.write(prefix)
        fastavro.schemaless_writer(stream, self._wire, raw)
        data = stream.getvalue()
        # What would be refused when it is read must not be stored.
        if self._skim is not None and len(data) > max(self._skim_above_bytes, CONTAINERS_FREE):
            try:
                self._skim(data, len(prefix))
            except RecordRejected as error:
                raise TypeError(error.detail) from None
        return data


def _strict(wire: Node) -> Node:
    """A parsed schema in which a union refuses a negative branch: fastavro takes -1 for the last one.

    Of a list of another class Cython asks `__len__` where it is to count from the end, and then `__getitem__`. Both are
    functions of C here: the look-up takes no longer than that of a list.
    """
    if isinstance(wire, list):
        branches = [_strict(branch) for branch in wire]
        looks_up = {"__getitem__": dict(enumerate(branches)).__getitem__, "__len__": [].__len__}
        return type("Union", (list,), looks_up)(branches)
    if not isinstance(wire, dict):
        return wire
    strict = {name: _strict(part) if name in {"type", "items", "values"} else part for name, part in wire.items()}
    if "fields" in wire:
        strict["fields"] = [_strict(field) for field in wire["fields"]]
    if (named := wire.get("__named_schemas")) is not None:
        strict["__named_schemas"] = {name: _strict(part) for name, part in named.items()}
    return strict


class _Emitter:
    """Rewrites a schema; a named type is defined where it is met first."""

    def __init__(self, schema: Schema, boolean: Node = "boolean") -> None:
        self._schema = schema
        self._boolean = boolean
        self._names: dict[str, str] = {}
        self.branch_names: dict[int, list[str]] = {}
        self.whole: list[str] = []

    def node(self, node: Node) -> Node:
        word, body = self._schema.shape(node)
        if word == "union":
            return self._union(body)
        if word == "enum":
            return "int"
        if word == "boolean":
            return self._boolean
        if word == "array":
            return {"type": "array", "items": self.node(body["items"])}
        if word == "map":
            return {"type": "map", "values": self.node(body["values"])}
        if word not in {"record", "fixed"}:
            return word
        if body["name"] in self._names:
            return self._names[body["name"]]
        # Names of our own: a name without a namespace means another one inside of a record that has one.
        name = self._names[body["name"]] = f"Type{len(self._names)}"
        if word == "fixed":
            return {"type": "fixed", "name": name, "size": body["size"]}
        fields = [{"name": field["name"], "type": self.node(field["type"])} for field in body["fields"]]
        return {"type": "record", "name": name, "fields": fields}

    def _union(self, union: list[Node]) -> Node:
        if len(self._schema.branches(union)) <= 1:
            return [self.node(branch) for branch in union]
        number = len(self.branch_names)
        names = [f"Union{number}Branch{index}" for index in range(len(union))]
        self.branch_names[id(union)] = names
        kinds = classes(self._schema, union)
        self.whole += [name for name, kind in zip(names, kinds, strict=True) if replaces_whole(kind)]
        return [
            {"type": "record", "name": name, "fields": [{"name": "v", "type": self.node(branch)}]}
            for name, branch in zip(names, union, strict=True)
        ]
