"""What the topics must say, worked out a second time: naively, and without a line of the code under test.

Nothing of `processor.merge` or of the plug-ins is used here on purpose. Everything is taken one record at a time, so
that memory grows with the number of keys and not with the length of the topics.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SHOWN_MAX = 3
"""Differences told of each check."""


class Entry(NamedTuple):
    """One record as a subscriber reads it."""

    key: str
    """The record key."""
    value: bytes | None
    """The message, None for a tombstone."""
    headers: Mapping[str, str]
    """The headers."""
    place: str
    """`topic/partition/offset`."""
    timestamp_ms: int
    """Kafka's record timestamp."""


class Finding(NamedTuple):
    """What one check found."""

    fact: str
    """What must hold, with the numbers that were compared."""
    wrong: tuple[str, ...] = ()
    """The first few things that are not so; nothing: it holds."""


class State:
    """Records by key, each with its version."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.versions: dict[str, int] = {}
        self.taken = 0
        """Records seen so far."""

    def put(self, key: str, record: Any, version: int) -> None:
        """A key has a record."""
        self.records[key], self.versions[key] = record, version

    def drop(self, key: str) -> None:
        """A key has none any more."""
        self.records.pop(key, None)
        self.versions.pop(key, None)


class Published(State):
    """The oracle: what everything on a publish topic, in order, makes of the state of the world."""

    def __init__(self, key_field: str) -> None:
        super().__init__()
        self._key_field = key_field
        self.rejected: list[str] = []
        """Places of the records that nobody can merge."""
        self.idle = 0
        """Deletes of what was not there."""

    def take(self, entry: Entry) -> None:
        """The next publication."""
        self.taken += 1
        command = entry.headers.get("command", "delta_publish")
        if entry.value is None or command == "sow_delete":
            self.idle += entry.key not in self.records
            self.drop(entry.key)
            return
        try:
            body = json.loads(entry.value)
        except ValueError:
            self.rejected.append(entry.place)
            return
        if not isinstance(body, dict) or str(body.get(self._key_field, entry.key)) != entry.key:
            self.rejected.append(entry.place)
            return
        old = self.records.get(entry.key) if command == "delta_publish" else None
        record = body if command == "publish" else _merged(old, body)
        self.put(entry.key, record, self.versions.get(entry.key, 0) + 1)


class Sow(State):
    """What a SOW topic says: the last record of each key counts. Compaction may have thinned out the others."""

    def __init__(self) -> None:
        super().__init__()
        self.backward: list[str] = []
        """Records whose version is not above the one before."""

    def take(self, entry: Entry) -> None:
        """The next record."""
        self.taken += 1
        before, version = self.versions.get(entry.key, 0), int(entry.headers["version"])
        if version <= before:
            self.backward.append(f"{entry.place}: key {entry.key} was at version {before}, this is {version}")
        if entry.value is None:
            self.drop(entry.key)
        else:
            self.put(entry.key, json.loads(entry.value), version)


class Replay(State):
    """What a subscriber has who saw nothing but the delta topic."""

    def __init__(self, interval_s: float | None = None) -> None:
        super().__init__()
        self._interval_ms = None if interval_s is None else interval_s * 1000
        self._since: dict[str, tuple[int, int]] = {}
        self.gaps: list[str] = []
        """Deltas that do not follow the one before."""
        self.hasty: list[str] = []
        """Deltas that came before their key's interval was over."""

    def take(self, entry: Entry) -> None:
        """The next delta."""
        self.taken += 1
        if self._interval_ms is not None:
            self._watch_haste(entry, self._interval_ms)
        have, version = self.versions.get(entry.key, 0), int(entry.headers["version"])
        base, kind = int(entry.headers.get("delta_base", version - 1)), entry.headers.get("kind", "update")
        if base != have:
            self.gaps.append(f"{entry.place}: key {entry.key} goes from version {base}, but was at {have}")
        if (kind == "insert") != (have == 0):
            self.gaps.append(f"{entry.place}: key {entry.key} was at version {have}, but this is its {kind}")
        if kind in ("delete", "expire"):
            self.drop(entry.key)
            return
        assert entry.value is not None, f"{entry.place}: a delta has a value"
        record = _set(self.records.get(entry.key, {}), json.loads(entry.value))
        for pointer in json.loads(entry.headers.get("removed", "[]")):
            _remove(record, pointer)
        self.put(entry.key, record, version)

    def drop(self, key: str) -> None:
        """A key has no record any more."""
        super().drop(key)
        self._since.pop(key, None)

    def _watch_haste(self, entry: Entry, interval_ms: float) -> None:
        """Counted from a key's first delta on: a hiccup excuses half an interval once, not each time."""
        count, first_ms = self._since.get(entry.key, (0, entry.timestamp_ms))
        passed_ms = entry.timestamp_ms - first_ms
        if count * interval_ms > passed_ms + interval_ms / 2:
            self.hasty.append(f"{entry.place}: key {entry.key} changed {count + 1} times in {passed_ms} ms")
        self._since[entry.key] = count + 1, first_ms


def same_state(fact: str, expected: State, found: State) -> Finding:
    """Two states that must be one: the same keys, values to the letter, and versions."""
    wrong = []
    for key in sorted(expected.records.keys() | found.records.keys()):
        want, have = (_shown(state, key) for state in (expected, found))
        if want != have:
            wrong.append(f"key {key}: expected {want}, found {have}")
    return Finding(f"{fact}: {len(expected.records):,} records", _few(wrong))


def all_accounted(name: str, sent: int, published: Published, merged: int, rejected: Iterable[str]) -> Finding:
    """Everything sent was published, and then merged, rejected for a reason that the oracle sees too, or idle."""
    found = Counter(rejected)
    wanted = Counter(published.rejected)
    wrong = [f"rejected, but good, or twice: {place}" for place in found - wanted]
    wrong += [f"not in the DLQ: {place}" for place in wanted - found]
    if left := published.taken - merged - found.total() - published.idle:
        wrong.insert(0, f"the difference is {left:,}")
    if sent != published.taken:
        wrong.insert(0, f"{sent:,} were sent, {name}.publish has {published.taken:,}")
    fact = f"{name}: {sent:,} sent = {merged:,} merged + {found.total():,} rejected"
    return Finding(f"{fact} + {published.idle:,} with nothing to do" if published.idle else fact, _few(wrong))


def none_of(fact: str, wrong: list[str]) -> Finding:
    """A list that must be empty."""
    return Finding(fact, _few(wrong))


def _merged(record: Any, delta: dict[str, Any]) -> dict[str, Any]:
    """The rules for a delta as a publisher sends it: objects merge, all else replaces, null is the same as missing."""
    merged = dict(record) if isinstance(record, dict) else {}
    for name, value in delta.items():
        if isinstance(value, dict):
            merged[name] = _merged(merged.get(name), value)
        elif value is not None:
            merged[name] = value
    return merged


def _set(record: Any, delta: dict[str, Any]) -> dict[str, Any]:
    """The rules for a delta as a subscriber gets it: the same, but null is a value."""
    changed = dict(record) if isinstance(record, dict) else {}
    for name, value in delta.items():
        changed[name] = _set(changed.get(name), value) if isinstance(value, dict) else value
    return changed


def _remove(record: Any, pointer: str) -> None:
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for part in path:
        record = record.get(part, {})
    record.pop(last, None)


def _shown(state: State, key: str) -> str:
    """A record so that 1, 1.0 and true differ, and the order of fields does not matter."""
    if key not in state.records:
        return "nothing"
    return f"version {state.versions[key]} {json.dumps(state.records[key], sort_keys=True)}"


def _few(wrong: list[str]) -> tuple[str, ...]:
    more = len(wrong) - _SHOWN_MAX
    return (*wrong[:_SHOWN_MAX], *((f"and {more:,} more",) if more > 0 else ()))
