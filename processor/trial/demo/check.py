"""Checks the topics against an oracle that computes their contents a second time, without the code under test.

`processor.merge` and the plug-ins are not used here on purpose. Records are processed one at a time, so that memory
grows with the number of keys and not with the length of the topics.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SHOWN_MAX = 3
"""Limit of the differences reported by each check."""


class TopicRecord(NamedTuple):
    """One record as a subscriber reads it."""

    key: str
    """The record key."""
    value: bytes | None
    """The message; None for a tombstone."""
    headers: Mapping[str, str]
    """The headers."""
    place: str
    """`topic/partition/offset`."""
    timestamp_ms: int
    """Kafka's record timestamp."""


class CheckResult(NamedTuple):
    """The result of one check."""

    fact: str
    """The fact that must hold, with the numbers compared."""
    wrong: tuple[str, ...] = ()
    """The first few contradictions; none: it holds."""


class TopicState:
    """Records by key, each with its version."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.versions: dict[str, int] = {}
        self.taken = 0
        """The number of records processed."""

    def put(self, key: str, record: Any, version: int) -> None:
        """Set the record of a key."""
        self.records[key], self.versions[key] = record, version

    def drop(self, key: str) -> None:
        """Remove the record of a key."""
        self.records.pop(key, None)
        self.versions.pop(key, None)


class PublishOracle(TopicState):
    """The oracle: the state of the world computed from a publish topic."""

    def __init__(self, key_field: str) -> None:
        super().__init__()
        self._key_field = key_field
        self.rejected: list[str] = []
        """Places of the records that cannot be merged."""
        self.idle = 0
        """The number of deletes of missing records."""

    def take(self, entry: TopicRecord) -> None:
        """Process the next publication."""
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
        # A life begins above all versions that its key had before: twice the offset of its first command plus one.
        offset = int(entry.place.rpartition("/")[2])
        self.put(entry.key, record, self.versions.get(entry.key, 2 * offset) + 1)


class SowContents(TopicState):
    """The state in a SOW topic: the last record of each key counts. Compaction may have removed others."""

    def __init__(self) -> None:
        super().__init__()
        self.backward: list[str] = []
        """Records whose version is not above the previous one."""

    def take(self, entry: TopicRecord) -> None:
        """Process the next record."""
        self.taken += 1
        before, version = self.versions.get(entry.key, 0), int(entry.headers["version"])
        if version <= before:
            self.backward.append(f"{entry.place}: key {entry.key} was at version {before}, this is {version}")
        if entry.value is None:
            self.drop(entry.key)
        else:
            self.put(entry.key, json.loads(entry.value), version)


class DeltaReplay(TopicState):
    """The state of a subscriber that reads only the delta topic."""

    def __init__(self, interval_s: float | None = None) -> None:
        super().__init__()
        self._interval_ms = None if interval_s is None else interval_s * 1000
        self._since: dict[str, tuple[int, int]] = {}
        self.gaps: list[str] = []
        """Deltas that do not follow the previous one."""
        self.hasty: list[str] = []
        """Deltas that came before the end of their key's interval."""

    def take(self, entry: TopicRecord) -> None:
        """Process the next delta."""
        self.taken += 1
        if self._interval_ms is not None:
            self._watch_haste(entry, self._interval_ms)
        have, version = self.versions.get(entry.key, 0), int(entry.headers["version"])
        kind = entry.headers.get("kind", "update")
        base = int(entry.headers.get("delta_base", 0 if kind == "insert" else version - 1))
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
        """Remove the record of a key."""
        super().drop(key)
        self._since.pop(key, None)

    def _watch_haste(self, entry: TopicRecord, interval_ms: float) -> None:
        """Check the interval, from a key's first delta on: a hiccup excuses half an interval once, not each time."""
        count, first_ms = self._since.get(entry.key, (0, entry.timestamp_ms))
        passed_ms = entry.timestamp_ms - first_ms
        if count * interval_ms > passed_ms + interval_ms / 2:
            self.hasty.append(f"{entry.place}: key {entry.key} changed {count + 1} times in {passed_ms} ms")
        self._since[entry.key] = count + 1, first_ms


def same_state(fact: str, expected: TopicState, actual: TopicState) -> CheckResult:
    """Check that two states are equal: the same keys, values to the letter, and versions."""
    wrong = []
    for key in sorted(expected.records.keys() | actual.records.keys()):
        expected_text, actual_text = (_shown(state, key) for state in (expected, actual))
        if expected_text != actual_text:
            wrong.append(f"key {key}: expected {expected_text}, found {actual_text}")
    return CheckResult(f"{fact}: {len(expected.records):,} records", _few(wrong))


def all_accounted(name: str, sent: int, published: PublishOracle, merged: int, rejected: Iterable[str]) -> CheckResult:
    """Check that everything sent was published, and then merged, rejected for a true reason, or idle."""
    actual = Counter(rejected)
    expected = Counter(published.rejected)
    wrong = [f"rejected, but good, or twice: {place}" for place in actual - expected]
    wrong += [f"not in the DLQ: {place}" for place in expected - actual]
    if left := published.taken - merged - actual.total() - published.idle:
        wrong.insert(0, f"the difference is {left:,}")
    if sent != published.taken:
        wrong.insert(0, f"{sent:,} were sent, {name}.publish has {published.taken:,}")
    fact = f"{name}: {sent:,} sent = {merged:,} merged + {actual.total():,} rejected"
    return CheckResult(f"{fact} + {published.idle:,} with nothing to do" if published.idle else fact, _few(wrong))


def none_of(fact: str, wrong: list[str]) -> CheckResult:
    """Check that a list is empty."""
    return CheckResult(fact, _few(wrong))


def _merged(record: Any, delta: dict[str, Any]) -> dict[str, Any]:
    """Merge a publisher's delta: objects merge, all else replaces, null is the same as missing."""
    merged = dict(record) if isinstance(record, dict) else {}
    for name, value in delta.items():
        if isinstance(value, dict):
            merged[name] = _merged(merged.get(name), value)
        elif value is not None:
            merged[name] = value
    return merged


def _set(record: Any, delta: dict[str, Any]) -> dict[str, Any]:
    """Apply a delta as a subscriber gets it: the same rules, but null is a value."""
    changed = dict(record) if isinstance(record, dict) else {}
    for name, value in delta.items():
        changed[name] = _set(changed.get(name), value) if isinstance(value, dict) else value
    return changed


def _remove(record: Any, pointer: str) -> None:
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for part in path:
        record = record.get(part, {})
    record.pop(last, None)


def _shown(state: TopicState, key: str) -> str:
    """A record as text in which 1, 1.0 and true differ, and the order of fields does not matter."""
    if key not in state.records:
        return "nothing"
    return f"version {state.versions[key]} {json.dumps(state.records[key], sort_keys=True)}"


def _few(wrong: list[str]) -> tuple[str, ...]:
    more = len(wrong) - _SHOWN_MAX
    return (*wrong[:_SHOWN_MAX], *((f"and {more:,} more",) if more > 0 else ()))


@dataclass(slots=True)
class FamilyStates:
    """The states computed from the topics of one family."""

    published: PublishOracle
    """From its publish topic; empty for a conflated topic."""
    replay: DeltaReplay
    """From its delta topic."""
    sow: SowContents = field(default_factory=SowContents)
    """From its SOW topic."""
    rejected: list[str] = field(default_factory=list)
    """The source places of the records in its dead-letter topic."""

    def take(self, role: str, entry: TopicRecord) -> None:
        """Process one record of one of the topics."""
        if role == "publish":
            self.published.take(entry)
        elif role == "sow":
            self.sow.take(entry)
        elif role == "delta":
            self.replay.take(entry)
        elif role == "dlq":
            self.rejected.append(entry.headers.get("source", f"no source at {entry.place}"))


def topic_family(key_field: str) -> FamilyStates:
    """An empty family of a SOW topic."""
    return FamilyStates(PublishOracle(key_field), DeltaReplay())


def conflated_family(interval_s: float) -> FamilyStates:
    """An empty family of a conflated topic."""
    return FamilyStates(PublishOracle(""), DeltaReplay(interval_s))


def view_family() -> FamilyStates:
    """An empty family of a view."""
    return FamilyStates(PublishOracle(""), DeltaReplay())


def check_topic(name: str, family: FamilyStates, sent: int) -> list[CheckResult]:
    """The checks of a SOW topic, with the number of records sent to its publish topic."""
    return [
        all_accounted(name, sent, family.published, family.replay.taken, family.rejected),
        same_state(f"{name}.sow equals an independent fold", family.published, family.sow),
        same_state(f"{name}.delta replayed equals {name}.sow", family.sow, family.replay),
        none_of(
            f"{name}: no version missing or twice in {family.replay.taken:,} deltas",
            family.replay.gaps + family.sow.backward,
        ),
    ]


def check_conflated(
    name: str, family: FamilyStates, underlying: str, under: FamilyStates, interval_s: float
) -> list[CheckResult]:
    """The checks of a conflated topic against its underlying topic."""
    return [
        same_state(f"{name}.sow equals {underlying}.sow", under.sow, family.sow),
        same_state(f"{name}.delta replayed equals {name}.sow", family.sow, family.replay),
        none_of(
            f"{name}: nothing rejected, no version skipped unsaid in {family.replay.taken:,} deltas",
            family.replay.gaps + family.rejected,
        ),
        none_of(f"{name}: no key twice within {interval_s:g} s", family.replay.hasty),
    ]


def check_view(
    name: str, family: FamilyStates, underlying: str, under: FamilyStates, closed: Iterable[str]
) -> list[CheckResult]:
    """The checks of the view of open orders by customer against the orders."""
    rows: dict[str, Any] = {}
    for order in under.sow.records.values():
        if order.get("state") not in closed:
            row = rows.setdefault(order["customer"], {"customer": order["customer"], "orders": 0, "qty": 0})
            row["orders"] += 1
            row["qty"] += order["qty"]
    expected = TopicState()
    for customer, row in rows.items():
        expected.put(customer, row, family.sow.versions.get(customer, 0))  # How many steps it took is the view's.
    return [
        same_state(f"{name}.sow equals a sum over {underlying}.sow", expected, family.sow),
        same_state(f"{name}.delta replayed equals {name}.sow", family.sow, family.replay),
        none_of(
            f"{name}: nothing rejected, no version missing or twice in {family.replay.taken:,} deltas",
            family.replay.gaps + family.sow.backward + family.rejected,
        ),
    ]
