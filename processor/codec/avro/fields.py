"""Header `fields` of a delta: a JSON array of JSON Pointers (RFC 6901) to what is in it, as null may be a value.

A pointer names a member, with all that is in it. An empty object has the pointer of its member of no name: nothing of
it is there, only itself.
"""

from __future__ import annotations

import functools
from collections.abc import Container
from typing import Final, TypeAlias

import orjson

from processor.errors import RecordRejected
from processor.record import Value
from processor.wire.headers import FIELDS_NAME

Tree: TypeAlias = "dict[str, Tree | None]"
"""The members to take of an object; None takes the member whole."""

DEPTH_MAX: Final = 256
"""Longest pointer, in names."""


def fields_header(delta: Value) -> bytes:
    """The content of the header of a delta: the pointers of its scalars, arrays and empty objects."""
    pointers: list[str] = []
    _collect(delta, "", pointers)
    return _written(tuple(pointers))


@functools.lru_cache(maxsize=4096)
def _written(pointers: tuple[str, ...]) -> bytes:
    return orjson.dumps(pointers)


def _collect(value: Value, path: str, pointers: list[str]) -> None:
    for name, member in value.items():
        if "~" in name or "/" in name:
            name = name.replace("~", "~0").replace("/", "~1")  # noqa: PLW2901 - its spelling in a pointer
        if type(member) is not dict:
            pointers.append(f"{path}/{name}")
        elif member:
            _collect(member, f"{path}/{name}", pointers)
        else:
            pointers.append(f"{path}/{name}/")


def read_fields(header: bytes | None) -> Tree | None:
    """The members that the header names; None for the whole message.

    Raises:
        RecordRejected: `bad_header`.
    """
    # A publisher says the same few lists all the time; one that does not is not to fill the memory.
    return _read(header) if header is not None and len(header) > 1024 else _read_cached(header or b"")


@functools.lru_cache(maxsize=4096)
def _read_cached(header: bytes) -> Tree | None:
    return _read(header)


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
