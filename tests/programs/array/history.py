"""Random input for the topic of a row, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.programs.array.layout import MAX_BYTES, MAX_DEPTH, Layout, is_flat
from tests.programs.oracle.values import Path, pointer_of, with_value

Object = dict[str, Any]

NAMES: Final = (("1", "x"), ("2", "x"), ("3", "y"), ("4", "y"))
"""The keys, each with its key fields as texts."""
_UNDECODABLE: Final = {
    "json": b'{"id":', "avro": b"\x02", "msgpack": b"\x81\xa2id", "bson": b"\x10\0\0\0junk", "nvfix": b"no field",
    "fix": b"no field", "xml": b"<order>", "composite-local": b"\0\0\0\x09{}",
}  # fmt: skip


class Message(NamedTuple):
    """One record of the input topic."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


class Turn(NamedTuple):
    """A few input records that arrive together, and the events that follow them."""

    messages: list[Message]
    is_disturbed: bool
    """Whether the open transaction is rolled back, or the worker killed."""
    advance_ms: int
    """Time by which the clock moves afterwards."""


def history(layout: Layout, seed: str, turns: int) -> Iterator[Turn]:
    """The turns of a history."""
    return _Publishers(layout, random.Random(seed)).turns(turns)


class _Publishers:
    """Publishers of the topic that are independent of each other."""

    def __init__(self, layout: Layout, rng: random.Random) -> None:
        self._layout = layout
        self._row = layout.row
        self._rng = rng
        self._tick = 0
        self._sequence = 0
        self._sent: list[Message] = []

    def turns(self, count: int) -> Iterator[Turn]:
        """The given number of turns."""
        for _ in range(count):
            messages = [self._message() for _ in range(self._rng.randrange(1, 6))]
            advance_ms = self._rng.choice([0, 100, 400, 1000, 2500])
            yield Turn(messages, self._rng.random() < 0.5, advance_ms)

    def _message(self) -> Message:
        row, rng = self._row, self._rng
        if row["sequence"] == "repeats" and self._sent and rng.random() < 0.25:
            return rng.choice(self._sent)
        names = rng.choice(NAMES)
        headers = self._headers()
        is_whole, is_delete = self._command(headers)
        key, body = self._key(names, headers), self._body(is_whole=is_whole)
        if self._has_key_fields(key, is_whole=is_whole, is_delete=is_delete):
            body = self._with_key(body, names)
        value = self._value(body, headers, is_whole=is_whole)
        if is_delete and rng.random() < 0.5:
            value = None
        message = Message(key, value, headers)
        if "sequence" in headers:
            self._sent.append(message)
        return message

    def _headers(self) -> dict[str, str]:
        row, rng, headers = self._row, self._rng, {}
        if rng.random() < 0.1:
            headers["trace"] = "t1"
        if row["sequence"] == "repeats":
            self._sequence += 1
            headers |= {"client": rng.choice(["desk", "pricer"]), "sequence": str(self._sequence)}
        if row["correlation"] == "some" and rng.random() < 0.5:
            headers["correlation_id"] = rng.choice(["abc=", "req42"])
        if row["expectation"] == "some" and rng.random() < 0.4:
            # Versions stay small where records are deleted, so many of these hold.
            headers |= {"expect_version": str(rng.randrange(5)), "ack_type": "processed", "command_id": str(self._tick)}
        if row["expiration"] == "own" and rng.random() < 0.5:
            headers["expiration"] = rng.choice(["1", "3", "0", "1.5"])
        if row["expiration"] == "topic" and rng.random() < 0.15:
            headers["expiration"] = rng.choice(["2", "0"])
        if row["conflation"] == "no_conflate" and rng.random() < 0.25:
            headers["no_conflate"] = "true"
        return headers

    def _command(self, headers: dict[str, str]) -> tuple[bool, bool]:
        """Set the command header; returns whether it is a full publish, and whether it deletes."""
        row, rng = self._row, self._rng
        if rng.random() < 0.12:
            headers["command"] = "sow_delete"
            return False, True
        is_whole = rng.random() < 0.3
        if row["command"].startswith("allow"):
            if not is_whole or rng.random() < 0.5:
                headers[row["command"]] = "false" if is_whole else "true"
        elif is_whole != (row["command"] == "publish") or rng.random() < 0.1:
            headers["command"] = "publish" if is_whole else "delta_publish"
        if row["remove"] == "some" and rng.random() < 0.3:
            headers["remove"] = json.dumps([pointer_of(path) for path in self._removable()])
        return is_whole, False

    def _removable(self) -> list[Path]:
        layout, rng = self._layout, self._rng
        paths = [layout.path(name) for name in ("note", "qty", "log", "px", "gone", "ts")]
        if not is_flat(self._row):
            paths += [layout.path("o"), layout.path("o", "x"), layout.path("o", "z", "u")]
        chosen = rng.sample(paths, rng.randrange(1, 3))
        return [*chosen, *layout.key.paths[:1]] if rng.random() < 0.1 else chosen

    def _key(self, names: tuple[str, ...], headers: dict[str, str]) -> bytes | None:
        row, rng = self._row, self._rng
        if row["key"] == "keyless" and rng.random() < 0.5:
            return None
        if row["key"] == "explicit" and rng.random() < 0.2:
            headers["sow_key"] = names[0]
            return None
        if row["key"] == "spelled" and rng.random() < 0.4:
            return self._layout.spelled(names)
        return self._layout.key_bytes(names)

    def _has_key_fields(self, key: bytes | None, *, is_whole: bool, is_delete: bool) -> bool:
        """Return whether the message carries its key fields. Avro's would be null, which is no key."""
        if key is None or is_delete or self._row["type"] == "avro":
            return self._rng.random() < 0.95 or self._row["type"] == "avro"
        # A full publish that leaves out one of several key fields is not mended (producers.md, rule 6).
        return self._rng.random() < 0.8 or (is_whole and len(self._layout.key.paths) > 1)

    def _with_key(self, body: Object, names: tuple[str, ...]) -> Object:
        if self._rng.random() < 0.04:
            names = self._rng.choice(NAMES)
        if self._row["steps"] in ("preprocess", "both") and self._row["key"] != "number":
            names = tuple(f" {name} " for name in names)
        for path in self._layout.key.paths:
            for depth in range(len(self._layout.prefix) + 1, len(path)):
                # An object that was published without its key is no object at times.
                if not isinstance(_at(body, path[:depth]), dict):
                    body = with_value(body, path[:depth], {})
        return self._layout.with_key(body, names)

    def _body(self, *, is_whole: bool) -> Object:
        """Some of the fields, most of them in a full publish."""
        rng, layout, body = self._rng, self._layout, {}
        self._tick += rng.choice([1, 1, 1, 0, -3])
        if layout.prefix:
            body = with_value(body, layout.prefix, {})
        for name in ("qty", "px", "log", "state", "note", "ts", "o", "k"):
            if rng.random() < (0.75 if is_whole else 0.4) and (name not in ("o", "k") or not is_flat(self._row)):
                value = self._field(name)
                if value is not _NOTHING:
                    body = with_value(body, layout.path(name), value)
        return body

    def _field(self, name: str) -> Any:
        rng, layout, has_null = self._rng, self._layout, self._layout.format.has_null
        if has_null and name not in ("k", "ts") and rng.random() < 0.08:
            return None
        match name:
            case "qty":
                return layout.count(rng.randrange(4))
            case "px":
                return layout.number(rng)
            case "log":
                return self._log()
            case "state":
                return rng.choice(["open", "void", "held"])
            case "note":
                return rng.choice(["n", "m", "n o"])
            case "ts":
                return layout.time(rng, max(self._tick, 0)) if self._row["group"] != "none" else _NOTHING
            case "o":
                return self._object()
        return self._around_key()

    def _log(self) -> Any:
        rng = self._rng
        if self._row["type"] != "avro" and rng.random() < 0.3:
            return rng.choice(["a", "b"])
        return [rng.choice(["a", "b", "c"]) for _ in range(rng.randrange(1, 3))]

    def _object(self) -> Any:
        """An object whose members overlap with other objects, with other kinds of values where the type allows them."""
        rng, count, has_null = self._rng, self._layout.count, self._layout.format.has_null
        choices: list[Any] = [
            {}, {"x": count(1)}, {"x": count(2), "y": "u"}, {"y": "v"}, {"z": {"u": count(1)}},
            {"z": {"u": count(2), "v": count(1)}}, {"x": count(1), "z": {}},
        ]  # fmt: skip
        if has_null:
            choices += [{"x": None}, {"z": None}, {"z": {"u": None}}, {"y": "u", "z": {"v": None}}]
        if self._row["type"] != "avro":
            choices += ["scalar", [{"x": count(1)}], {"z": "scalar"}]
        return rng.choice(choices)

    def _around_key(self) -> Any:
        """A value next to a nested key field, or one that would replace the object of that field."""
        rng, count = self._rng, self._layout.count
        choices: list[Any] = [{"w": count(1)}, {"w": count(2)}, {"j": {"w": count(1)}}, {"j": {}}]
        if self._layout.format.has_null:
            choices += [{"j": None}, {"j": {"w": None}}]
        return rng.choice(choices)

    def _value(self, body: Object, headers: dict[str, str], *, is_whole: bool) -> bytes:
        """The bytes of a message; some are malformed and must be rejected."""
        layout, row = self._layout, self._row
        if row["rejection"] != "none" and self._rng.random() < 0.15:
            if row["rejection"] == "undecodable":
                return _UNDECODABLE[row["type"]]
            if row["rejection"] == "too_large":
                body = with_value(body, layout.path("note"), "x" * MAX_BYTES)
            else:
                body = with_value(body, (*layout.path("o"), *"z" * MAX_DEPTH), "deep")
        if is_whole:
            return layout.format.write(body)
        value, more = layout.format.write_delta(body)
        headers.update(more)
        return value


_NOTHING: Final = object()


def _at(body: Object, path: Path) -> Any:
    for name in path:
        body = body.get(name, {}) if isinstance(body, dict) else {}
    return body
