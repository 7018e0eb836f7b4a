"""The expected record after a command: a naive fold with every digit, written without looking at `processor.merge`."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NamedTuple


class Input(NamedTuple):
    """The parts of an input record that are needed until the outputs have shown its outcome."""

    key: bytes
    value: bytes | None
    headers: dict[str, str]
    timestamp_ms: int


def parse(data: bytes | None) -> Any:
    """A message, with every digit of its numbers; rubbish may be one behind a frame of five bytes."""
    text = data or b""
    return json.loads(text[5:] if text[:1] == b"\0" else text, parse_float=Decimal)


def expected(old: Any, message: Input) -> Any:
    """The record after a command, by the default policies, or None if there is none. The old record is not changed."""
    command = command_of(message)
    if message.value is None or command == "sow_delete":
        return None
    new = parse(message.value)
    if command == "delta_publish":
        new = _merge(old, new)
        if old is not None and "id" in old:
            new["id"] = old["id"]
    elif "id" not in new:
        text = message.key.decode()
        new["id"] = old["id"] if old is not None and str(old.get("id")) == text else text
    for pointer in json.loads(message.headers.get("remove", "[]")):
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        holder = new
        for name in path:
            holder = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.pop(last, None)
    return new


def command_of(message: Input) -> str:
    """The command of an input record with a value, on a topic that merges by default."""
    flag = message.headers.get("allow-merge")
    return message.headers.get("command") or ("publish" if flag == "false" else "delta_publish")


def same(one: Any, other: Any, *, as_written: bool) -> bool:
    """Whether two values are strictly the same: 1, 1.0 and true are three values; the order of members does not count.

    Args:
        one: a value.
        other: another one.
        as_written: whether 1.10 is another value than 1.1.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(value, other[name], as_written=as_written) for name, value in one.items()
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(
            same(value, its, as_written=as_written) for value, its in zip(one, other, strict=True)
        )
    if isinstance(one, Decimal) and not as_written:
        return one == other and one.is_signed() == other.is_signed()
    return bool(one == other) and str(one) == str(other)


def _merge(old: Any, delta: Any) -> Any:
    if not isinstance(delta, dict):
        return delta
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in delta.items():
        if value is not None:
            merged = _merge(new.get(name), value)
            new[name] = merged
    return new
