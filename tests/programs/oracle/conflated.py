"""The model of a conflated topic (conflation.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tests.programs.oracle.filters import Filter
from tests.programs.oracle.formats import Format
from tests.programs.oracle.keys import Key
from tests.programs.oracle.topic import OURS, TRAVELLING
from tests.programs.oracle.values import Path, applied, difference, leaves, with_value

Object = dict[str, Any]


class SowRecord(NamedTuple):
    """A record of the SOW topic under it."""

    key: bytes
    record: Object | None
    headers: dict[str, str]
    offset: int
    timestamp_ms: int


class Delivery(NamedTuple):
    """One delivery of a key at the end of an interval."""

    key: bytes
    record: Object | None
    delta: Object
    removed: frozenset[Path]
    is_empty: bool
    sow_headers: dict[str, str]
    delta_headers: dict[str, str]


@dataclass
class _Waiting:
    """A key with a running interval."""

    began_ms: int
    updates: list[SowRecord] = field(default_factory=list)


class ConflatedTopic:
    """One partition of a conflated topic."""

    def __init__(self, format_: Format, key: Key, interval_ms: int, selection: Filter | None, underlying: str) -> None:
        self._format = format_
        self._key = key
        self._interval_ms = interval_ms
        self._selection = selection
        self._underlying = underlying
        self._delivered: dict[bytes, SowRecord] = {}
        """The update delivered last of each key that the copy has."""
        self._waiting: dict[bytes, _Waiting] = {}
        self._done: list[SowRecord] = []
        """Updates whose interval has ended."""

    def take(self, update: SowRecord, now_ms: int) -> list[Delivery]:
        """Begin the key's interval, or replace its pending update; `no_conflate` ends the interval."""
        if self._selection is not None and update.record is not None and not self._selection.matches(update.record):
            # A record that no longer matches leaves the copy as if deleted.
            update = update._replace(record=None)
        self._waiting.setdefault(update.key, _Waiting(now_ms)).updates.append(update)
        return self._deliver([update.key]) if update.headers.get("no_conflate") == "true" else []

    def advance(self, now_ms: int) -> list[Delivery]:
        """Deliver the keys whose interval has ended, in the order in which the intervals began."""
        due = [key for key, waiting in self._waiting.items() if waiting.began_ms + self._interval_ms <= now_ms]
        return self._deliver(sorted(due, key=lambda key: self._waiting[key].began_ms))

    def restart(self, now_ms: int) -> None:
        """After a crash the input is read again from the oldest pending update on, and intervals begin again.

        No update is delivered twice, as the copy's record names the last one of its key. A deleted key has no such
        record; its updates are read again, and count if the key is inserted again.
        """
        pending = sorted((update for waiting in self._waiting.values() for update in waiting.updates), key=_offset)
        again = [
            update
            for update in self._done
            if pending and update.offset >= pending[0].offset and update.key not in self._delivered
        ]
        self._waiting = {}
        self._done = [update for update in self._done if update not in again]
        for update in sorted([*pending, *again], key=_offset):
            self._waiting.setdefault(update.key, _Waiting(now_ms)).updates.append(update)

    def _deliver(self, keys: list[bytes]) -> list[Delivery]:
        deliveries = [self._ended(key, self._waiting.pop(key).updates) for key in keys]
        return [delivery for delivery in deliveries if delivery is not None]

    def _ended(self, key: bytes, updates: list[SowRecord]) -> Delivery | None:
        last = updates[-1]
        version = int(last.headers["version"])
        delivered = self._delivered.pop(key, None)
        before, base = (None, 0) if delivered is None else (delivered.record, int(delivered.headers["version"]))
        record = last.record
        self._done += updates
        if record is None and before is None:
            return None  # The record was inserted and deleted within the interval.
        headers = self._headers(updates, before)
        delta_headers = headers if base == version - 1 else headers | {"delta_base": str(base)}
        if record is None:
            assert before is not None
            return Delivery(key, None, self._key.only(before), frozenset(), False, headers, delta_headers)
        self._delivered[key] = last
        fields = self._key.only(record)
        if before is None:
            moved, gone = record, []
        else:
            moved = _touched(record, [before, *[update.record for update in updates]])
            gone = difference(before, record)[1]
        is_empty = not moved and not gone
        if "expires_at" in last.headers:
            headers = headers | {"expires_at": last.headers["expires_at"]}
        return Delivery(key, record, applied(fields, moved, []), frozenset(gone), is_empty, headers, delta_headers)

    def _headers(self, updates: list[SowRecord], before: Object | None) -> dict[str, str]:
        """The last update's headers, and number and time of the folded updates (conflation.md, "Headers")."""
        last = updates[-1]
        headers_out = {name: text for name, text in last.headers.items() if name in TRAVELLING or name not in OURS}
        for name in ("version", "correlation_id"):
            if name in last.headers:
                headers_out[name] = last.headers[name]
        if len(updates) > 1:
            headers_out["conflated"] = str(len(updates))
        headers_out["first_timestamp"] = str(updates[0].timestamp_ms)
        headers_out["source"] = f"{self._underlying}.sow/0/{last.offset}"
        if last.record is None:
            headers_out["kind"] = "expire" if last.headers.get("kind") == "expire" else "delete"
        elif before is None:
            headers_out["kind"] = "insert"
        return headers_out


def _offset(update: SowRecord) -> int:
    return update.offset


def _touched(final: Object, states: list[Object | None]) -> Object:
    """The members of the final record that any step between two states touched, and those that differ in the end.

    A record that was deleted and came back is touched everywhere.
    """
    if None in states:
        return final
    places: set[Path] = set()
    for before, after in [*pairwise(states), (states[0], final)]:
        assert before is not None
        assert after is not None
        changed, gone = difference(before, after)
        places |= {*leaves(changed), *gone}
    moved: Object = {}
    for path, value in leaves(final).items():
        if any(path[: len(place)] == place for place in places):
            moved = with_value(moved, path, value)
    return moved
