"""The expected state of the world: a naive fold of the input, written without looking at `processor.merge`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Seen(NamedTuple):
    """One record of a topic, as an independent reader sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    timestamp_ms: int = 0
    """Kafka's record timestamp; 0: unknown to the reader."""


def fold(records: list[Seen]) -> dict[str, Any]:
    """Compute the last record of every key after these commands, in partition order (with default policies)."""
    world: dict[str, Any] = {}
    for record in records:
        assert record.key is not None
        key = record.key.decode()
        command = record.headers.get("command", "delta_publish")
        if record.value is None or command == "sow_delete":
            world.pop(key, None)
        elif command == "publish":
            world[key] = json.loads(record.value)
        else:
            world[key] = merged(world.get(key), json.loads(record.value))
    return world


def merged(old: Any, delta: Any) -> Any:
    """Merge a delta into a copy of a record, which shares unchanged members with the old one."""
    if not isinstance(delta, dict):
        return delta
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in delta.items():
        if value is not None:
            new[name] = merged(new.get(name), value)
    return new


def last_per_key(records: list[Seen]) -> dict[str, Any]:
    """Compute the state of the world that a SOW topic holds."""
    world: dict[str, Any] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            world.pop(record.key.decode(), None)
        else:
            world[record.key.decode()] = json.loads(record.value)
    return world


def replay(records: list[Seen], parse: Callable[[Seen], Any] | None = None) -> dict[str, Any]:
    """Compute the state of the world from a delta topic, and check its versions. `parse`: for types other than JSON."""
    world: dict[str, Any] = {}
    versions: dict[str, int] = {}
    last_versions: dict[str, int] = {}
    for record in records:
        assert record.key is not None
        key, headers = record.key.decode(), record.headers
        version = int(headers["version"])
        base = int(headers.get("delta_base", 0 if headers.get("kind") == "insert" else version - 1))
        assert version > last_versions.get(key, 0), f"{key}: version {version} after {last_versions[key]}"
        last_versions[key] = version
        assert base == versions.get(key, 0), f"{key}: delta for version {base} met version {versions.get(key, 0)}"
        if headers.get("kind") in ("delete", "expire"):
            del world[key], versions[key]
            continue
        versions[key] = version
        assert record.value is not None
        delta = json.loads(record.value) if parse is None else parse(record)
        world[key] = applied(world.get(key, {}), delta)
        for pointer in json.loads(headers.get("removed", "[]")):
            remove(world[key], pointer)
    return world


def applied(old: Any, delta: Any) -> Any:
    """Apply a delta to a record as a subscriber does."""
    if not isinstance(delta, dict) or not isinstance(old, dict):
        return delta
    new = dict(old)
    for name, value in delta.items():
        new[name] = applied(new[name], value) if name in new else value
    return new


def remove(record: Any, pointer: str) -> None:
    """Remove the member at a JSON Pointer from a record; KeyError if it does not exist."""
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for name in path:
        record = record[name]
    del record[last]
