"""Deltas: their schema, derived from the one of records, and header `fields`, which names what is in one.

In the schema every field may be left out. A field becomes a union with null, default null; so do the fields of the
records in it that merge. What replaces whole, in arrays and in unions of several records, keeps its schema.

The header is a JSON array of JSON Pointers (RFC 6901), as null may be a value. A pointer names a member, with all that
is in it. An empty object has the pointer of its member of no name: nothing of it is there, only itself.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, Final, TypeAlias

import orjson

from processor.codec.avro.schema import Node, Schema, classes, replaces_whole
from processor.errors import RecordRejected
from processor.record import Value
from processor.values import cached_by_text
from processor.wire.headers import FIELDS_NAME

SUFFIX: Final = "Delta"
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
        kinds = classes(self._schema, union)
        return [
            self.node(branch, partial=partial and not replaces_whole(kind))
            for branch, kind in zip(union, kinds, strict=True)
        ]

    def _record(self, body: Any, *, partial: bool) -> Node:
        name = self._delta_name(body["name"]) if partial else self._full(body["name"])
        if not self._first(name):
            return name
        fields = [self._optional(field) if partial else self._full_field(field) for field in body["fields"]]
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

    def _full_field(self, field: Any) -> Any:
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


Tree: TypeAlias = "dict[str, Tree | None]"
"""The members to take of an object; None takes the member whole."""

DEPTH_MAX: Final = 256
"""Longest pointer, in names."""


Merging: TypeAlias = "dict[str, Merging | None]"
"""The members of an object that merges; None for one that has no object which merges."""


class _Values(dict[str, "Merging | None"]):
    """The members of a map: all are of one type."""

    def __init__(self, each: Merging | None) -> None:
        super().__init__()
        self._each = each

    def __missing__(self, name: str) -> Merging | None:
        return self._each


def merging_members(schema: Schema) -> Merging:
    """The members of a schema's record, to any depth: in a union of several records or maps none merges."""
    merging = _merging(schema, schema.root, {})
    assert merging is not None, "a record merges"
    return merging


def _merging(schema: Schema, node: Node, records: dict[str, Merging]) -> Merging | None:
    word, body = schema.shape(node)
    if word == "union":
        kinds = zip(body, classes(schema, body), strict=True)
        return next((_merging(schema, branch, records) for branch, kind in kinds if kind is dict), None)
    if word == "map":
        return _Values(_merging(schema, body["values"], records))
    if word != "record":
        return None
    name = body["name"]
    if name not in records:
        members = records[name] = {}
        members.update((field["name"], _merging(schema, field["type"], records)) for field in body["fields"])
    return records[name]


def fields_header(delta: Value, merging: Merging) -> bytes:
    """The content of the header of a delta: the pointers of its scalars, empty objects, and what replaces whole."""
    pointers: list[str] = []
    _collect(delta, merging, "", pointers)
    return orjson.dumps(pointers)


def _collect(value: Value, merging: Merging, path: str, pointers: list[str]) -> None:
    for name, member in value.items():
        below = merging[name] if type(member) is dict else None
        if "~" in name or "/" in name:
            name = name.replace("~", "~0").replace("/", "~1")  # noqa: PLW2901 - its spelling in a pointer
        if below is None:
            pointers.append(f"{path}/{name}")
        elif member:
            _collect(member, below, f"{path}/{name}", pointers)
        else:
            pointers.append(f"{path}/{name}/")


def read_fields(header: bytes | None) -> Tree | None:
    """The members that the header names; None for the whole message.

    Raises:
        RecordRejected: `bad_header`.
    """
    return _read(header or b"")


@cached_by_text  # A publisher says the same few lists all the time.
def _read(header: bytes) -> Tree | None:
    try:
        pointers = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise _refused(f"it is not JSON: {error}") from None
    if type(pointers) is not list or not all(type(pointer) is str for pointer in pointers):
        raise _refused("it is not a JSON array of texts")
    tree: Tree = {}
    for pointer in pointers:
        if pointer == "":
            return None
        if not pointer.startswith("/"):
            raise _refused(f"{pointer!r:.100} does not start with /")
        *above, last = (part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))
        if len(above) >= DEPTH_MAX:
            raise _refused(f"{pointer!r:.100}… has more than {DEPTH_MAX} names")
        _add(tree, above, last)
    return tree


def _add(tree: Tree, above: list[str], last: str) -> None:
    for name in above:
        below = tree.setdefault(name, {})
        if below is None:  # All of it is taken already.
            return
        tree = below
    tree[last] = None


def pick(raw: Value, tree: Tree, whole: Container[str], path: str = "") -> Value:
    """The fields of an object that a tree names, a new one; a name that is empty and not there names nothing.

    Args:
        raw: the object, as the wire gave it.
        tree: what to take.
        whole: the branches of unions whose objects replace whole.
        path: where the object is.

    Raises:
        RecordRejected: `bad_header`: a name leads nowhere.
    """
    picked = {}
    for name, below in tree.items():
        if name not in raw:
            if name == "" and below is None:
                continue
            raise _refused(f"{path}/{name} is not in the message")
        value = raw[name]
        if below is not None:
            value = _pick_member(value, below, whole, f"{path}/{name}")
        picked[name] = value
    return picked


def _pick_member(value: Value, tree: Tree, whole: Container[str], path: str) -> Value:
    """The same of a member, which may be the object of a union's branch."""
    if type(value) is tuple and value[0] not in whole:
        return value[0], {"v": _pick_member(value[1]["v"], tree, whole, path)}
    if type(value) is not dict:
        raise _refused(f"{path} has no members in the message, or is replaced whole")
    return pick(value, tree, whole, path)


def _refused(problem: str) -> RecordRejected:
    return RecordRejected("bad_header", f"header {FIELDS_NAME}: {problem}")
