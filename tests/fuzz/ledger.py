"""Accounts for every input record by what an independent reader finds in the output topics."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from confluent_kafka import Message


@dataclass
class Ledger:
    """One family of topics with `source_header`, read record by record: input first, then delta, DLQ and SOW."""

    inputs: dict[str, str] = field(default_factory=dict)
    """Each input record by its place, and why it may have left no trace; `must` where it may not."""
    fates: Counter[str] = field(default_factory=Counter)
    """How many were merged, rejected for each reason, or left no trace for each allowed cause."""
    wrong: list[str] = field(default_factory=list)
    """What does not add up."""
    _seen: set[str] = field(default_factory=set)
    _world: dict[bytes, Any] = field(default_factory=dict)
    _versions: dict[bytes, int] = field(default_factory=dict)
    _sow: dict[bytes, Any] = field(default_factory=dict)

    def take_input(self, message: Message) -> None:
        """An input record: what may become of it."""
        headers = dict(message.headers() or ())
        if message.key() is None:
            trace = "rekeyed"
        elif "sequence" in headers:
            trace = "duplicate"
        elif message.value() is None or headers.get("command") == b"sow_delete":
            trace = "delete_of_nothing"
        else:
            trace = "must"
        self.inputs[_place(message)] = trace

    def take_delta(self, message: Message) -> None:
        """A merged record; replayed as a subscriber would."""
        headers = _texts(message)
        if headers.get("kind") == "expire":
            self.fates["expired by the clock"] += 1
        else:
            self._account(headers["source"], "merged")
        key, version = message.key() or b"", int(headers["version"])
        base = int(headers.get("delta_base", version - 1))
        if base != self._versions.get(key, 0):
            self.wrong.append(f"{_place(message)}: delta for version {base} met {self._versions.get(key, 0)}")
        if headers.get("kind") in ("delete", "expire"):
            self._world.pop(key, None)
            self._versions.pop(key, None)
            return
        self._versions[key] = version
        record = _apply(self._world.get(key, {}), _parse(message.value()))
        for pointer in json.loads(headers.get("removed", "[]")):
            *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
            holder = record
            for name in path:
                holder = holder[name]
            del holder[last]
        self._world[key] = record

    def take_dlq(self, message: Message) -> None:
        """A rejected record."""
        headers = _texts(message)
        self._account(headers["source"], f"rejected: {headers['dlq_reason']}")
        if headers["dlq_reason"] == "plugin_failed":
            self.wrong.append(f"{headers['source']}: the processor itself failed: {headers['dlq_detail']}")

    def take_sow(self, message: Message) -> None:
        """A record of the state of the world."""
        if message.value() is None:
            self._sow.pop(message.key() or b"", None)
        else:
            self._sow[message.key() or b""] = _parse(message.value())

    def close(self, counted: dict[str, int]) -> None:
        """Everything was read: does it add up?

        Args:
            counted: what the worker itself counted, by event.
        """
        left: Counter[str] = Counter(trace for place, trace in self.inputs.items() if place not in self._seen)
        lost = [place for place, trace in self.inputs.items() if trace == "must" and place not in self._seen]
        del left["must"]
        if lost:
            self.wrong.append(f"{len(lost)} input records left no trace, such as {lost[0]}")
        traces = {name: counted.get(name, 0) for name in ("rekeyed", "duplicate", "delete_of_nothing")}
        if sum(left.values()) != sum(traces.values()):
            self.wrong.append(f"{dict(left)} left no trace, the worker counted {traces}")
        self.fates.update({name: count for name, count in traces.items() if count})
        differ = [
            key for key in self._world.keys() | self._sow.keys() if not _same(self._world.get(key), self._sow.get(key))
        ]
        if differ:
            self.wrong.append(f"{len(differ)} keys: delta replay is not SOW, such as {differ[0]!r}")

    def _account(self, place: str, fate: str) -> None:
        if place in self._seen:
            self.wrong.append(f"{place} is accounted for twice")
        if place not in self.inputs:
            self.wrong.append(f"{place} is no input record")
        self._seen.add(place)
        self.fates[fate] += 1


def _place(message: Message) -> str:
    return f"{message.topic()}/{message.partition()}/{message.offset()}"


def _texts(message: Message) -> dict[str, str]:
    """Headers as text; the last of a name counts, as the worker's own come last."""
    return {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}


def _parse(data: bytes | None) -> Any:
    return json.loads(data or b"", parse_float=Decimal)


def _apply(old: Any, delta: Any) -> Any:
    if not isinstance(delta, dict):
        return delta
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in delta.items():
        new[name] = _apply(new.get(name), value)
    return new


def _same(one: Any, other: Any) -> bool:
    """Strict: 1, 1.0 and true are three values; the order of members is no difference."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and str(one) == str(other)
