"""The schema of deltas, derived from the one of records: every field may be left out.

A field becomes a union with null, default null; so do the fields of the records in it that merge. What replaces whole,
in arrays and in unions of several records, keeps its schema.
"""

from __future__ import annotations

import json
from typing import Any

from processor.codec.avro.branch import classes, is_marked
from processor.codec.avro.schema import Node, Schema

SUFFIX = "Delta"
"""The end of a record's name when its fields may be left out."""


def delta_schema_text(schema: Schema) -> str:
    """The schema of a topic's deltas, as JSON."""
    return json.dumps(_Emitter(schema).node(schema.root, partial=True), separators=(",", ":"))


def whole_schema_text(schema: Schema) -> str:
    """A schema that refers to no other one, as JSON: what it referred to is in it."""
    return json.dumps(_Emitter(schema).node(schema.root, partial=False), separators=(",", ":"))


class _Emitter:
    """Rewrites a schema; a named type is defined where it is met first."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._seen: set[str] = set()
        self._renamed: dict[str, str] = {}
        self._has_namespace = any("." in name for name in schema.named)

    def node(self, node: Node, *, partial: bool) -> Node:
        word, body = self._schema.shape(node)
        if word == "union":
            return self._union(body, partial=partial)
        if word == "record":
            return self._record(body, partial=partial)
        if word == "array":
            return {**body, "items": self.node(body["items"], partial=False)}
        if word == "map":
            return {**body, "values": self.node(body["values"], partial=partial)}
        if word not in {"enum", "fixed"}:
            return body or word
        name = self._full(body["name"])
        return {**body, "name": name} if self._first(name) else name

    def _union(self, union: list[Node], *, partial: bool) -> list[Node]:
        whole = [is_marked(kind) and issubclass(kind, dict) for kind in classes(self._schema, union)]
        return [self.node(branch, partial=partial and not kept) for branch, kept in zip(union, whole, strict=True)]

    def _record(self, body: Any, *, partial: bool) -> Node:
        name = self._delta_name(body["name"]) if partial else self._full(body["name"])
        if not self._first(name):
            return name
        fields = [self._optional(field) if partial else self._kept(field) for field in body["fields"]]
        return {"type": "record", "name": name, "fields": fields}

    def _optional(self, field: Any) -> Any:
        emitted = self.node(field["type"], partial=True)
        several = emitted if isinstance(emitted, list) else [emitted]
        return {
            "name": field["name"],
            **({"aliases": field["aliases"]} if field.get("aliases") else {}),
            "type": ["null", *(branch for branch in several if branch not in ("null", {"type": "null"}))],
            "default": None,
        }

    def _kept(self, field: Any) -> Any:
        return {**field, "type": self.node(field["type"], partial=False)}

    def _full(self, name: str) -> str:
        """A name without a namespace would mean another one inside of a record that has one."""
        return name if "." in name or not self._has_namespace else f"sowstream.{name}"

    def _first(self, name: str) -> bool:
        first = name not in self._seen
        self._seen.add(name)
        return first

    def _delta_name(self, name: str) -> str:
        """A name that no other type of the schema has."""
        if name not in self._renamed:
            renamed = self._full(name) + SUFFIX
            while renamed in map(self._full, self._schema.named) or renamed in self._renamed.values():
                renamed += "_"
            self._renamed[name] = renamed
        return self._renamed[name]
