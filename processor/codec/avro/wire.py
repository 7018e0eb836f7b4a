"""Avro's bytes ⇄ raw values, by fastavro, as told by a schema of the same bytes that says more than the given one.

Each branch of a union of several types becomes a record of one field, which takes no bytes, so that fastavro says which
branch it read; logical types are left out; an enum is its number. A raw value of a branch is `(name, {"v": value})`.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro

from processor.codec.avro.branch import classes, is_marked
from processor.codec.avro.schema import Node, Schema
from processor.codec.avro.skim import CONTAINERS_FREE, compile_skim, may_hold_many
from processor.codec.contract import empty_message
from processor.errors import RecordRejected


class Wire:
    """The reader and writer of one schema's bytes."""

    __slots__ = ("_name", "_skim", "_skim_above_bytes", "_wire", "branch_names", "whole")

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
                    stream, self._wire, None, return_record_name=True, return_record_name_override=True
                )
            else:
                raw = fastavro.schemaless_reader(stream, self._wire, None)
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


class _Emitter:
    """Rewrites a schema; a named type is defined where it is met first."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._names: dict[str, str] = {}
        self.branch_names: dict[int, list[str]] = {}
        self.whole: list[str] = []

    def node(self, node: Node) -> Node:
        word, body = self._schema.shape(node)
        if word == "union":
            return self._union(body)
        if word == "enum":
            return "int"
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
        self.whole += [
            name for name, kind in zip(names, kinds, strict=True) if issubclass(kind, dict) and is_marked(kind)
        ]
        return [
            {"type": "record", "name": name, "fields": [{"name": "v", "type": self.node(branch)}]}
            for name, branch in zip(names, union, strict=True)
        ]
