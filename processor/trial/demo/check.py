"""Compares what a subscriber of the demo has received with a naive fold of what the feeds have sent.

`processor.merge` and the plug-ins are not used here on purpose: the result is computed a second time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.trial.demo.settings import CLOSED, CONFLATED, TOPICS, VIEW
from processor.wire.headers import header_text
from processor.wire.subscriber_headers import read_delta_headers, read_removed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.record import Headers

_SHOWN_MAX: Final = 3
"""Limit of the differences reported by each check."""


class CheckResult(NamedTuple):
    """The result of one check."""

    fact: str
    """The fact that must hold, with the numbers compared."""
    wrong: tuple[str, ...] = ()
    """The first few contradictions; none: it holds."""


def fold(record: Any, delta: Any) -> Any:
    """The record after a delta: objects merge, and all else replaces. The feeds send no null."""
    if not isinstance(delta, dict):
        return delta
    merged = dict(record) if isinstance(record, dict) else {}
    for name, value in delta.items():
        merged[name] = fold(merged.get(name), value)
    return merged


class Sent:
    """The records that follow from what a feed has sent."""

    def __init__(self) -> None:
        self.count = 0
        """The number of publications."""
        self.spoilt = 0
        """The number of those that cannot be merged."""
        self.records: dict[str, Any] = {}
        """The records by key."""

    def take(self, key: str, value: bytes | None, command: str | None) -> None:
        """Process the next publication."""
        self.count += 1
        if value is None or command == "sow_delete":
            self.records.pop(key, None)
            return
        try:
            body = json.loads(value)
        except ValueError:
            self.spoilt += 1
            return
        self.records[key] = fold(None if command == "publish" else self.records.get(key), body)


class Received:
    """The records of one topic: those of its SOW topic, and those that its deltas alone give.

    Each has its version. A delta that does not follow the one before, and a record that is not newer, is a fault.
    """

    def __init__(self, interval_s: float = 0.0) -> None:
        self.sow: dict[str, tuple[int, Any]] = {}
        """The records of the SOW topic."""
        self.replayed: dict[str, tuple[int, Any]] = {}
        """The records made of deltas."""
        self.deltas = 0
        """The number of deltas."""
        self.rejected = 0
        """The number of dead letters."""
        self.faults: list[str] = []
        """Versions that are missing, or came twice."""
        self.hasty: list[str] = []
        """Deltas that came before the end of their key's interval."""
        self._interval_ms = interval_s * 1000
        self._lives: dict[str, tuple[int, int]] = {}

    def take_record(self, key: str, value: bytes | None, headers: Headers) -> None:
        """Process a record of the SOW topic; None deletes it."""
        before, version = self.sow.get(key, (0, None))[0], int(header_text(headers, "version") or 0)
        if version <= before:
            self.faults.append(f"key {key} has version {version} in SOW after {before}")
        if value is None:
            self.sow.pop(key, None)
        else:
            self.sow[key] = version, json.loads(value)

    def take_delta(self, key: str, value: bytes, headers: Headers, timestamp_ms: int) -> None:
        """Process a delta."""
        self.deltas += 1
        delta = read_delta_headers(headers)
        version, record = self.replayed.get(key, (0, None))
        if delta.base != version:
            self.faults.append(f"key {key} was at version {version}, and a delta begins at {delta.base}")
        if self._interval_ms:
            # A hiccup excuses half an interval once, and not each time.
            count, first_ms = self._lives.get(key, (0, timestamp_ms))
            if count * self._interval_ms > timestamp_ms - first_ms + self._interval_ms / 2:
                self.hasty.append(f"key {key} changed {count + 1} times in {timestamp_ms - first_ms} ms")
            self._lives[key] = count + 1, first_ms
        if delta.kind in ("delete", "expire"):
            self.replayed.pop(key, None)
            self._lives.pop(key, None)
            return
        record = fold(record, json.loads(value))
        for pointer in read_removed(delta.removed):
            *path, last = pointer.split("/")[1:]
            parent = record
            for name in path:
                parent = parent.get(name, {})
            parent.pop(last, None)
        self.replayed[key] = delta.version or 0, record


def check_all(sent: Mapping[str, Sent], received: Mapping[str, Received]) -> list[CheckResult]:
    """All checks, which hold when everything that was sent has passed all stages.

    Args:
        sent: by topic, what its feed has sent.
        received: by topic, conflated topic and view, what a subscriber has received.
    """
    results: list[CheckResult] = []
    for name in TOPICS:
        feed, topic = sent[name], received[name]
        fact = f"{name}: {feed.count:,} sent = {topic.deltas:,} merged + {topic.rejected:,} rejected"
        is_right = (topic.deltas, topic.rejected) == (feed.count - feed.spoilt, feed.spoilt)
        results.append(CheckResult(fact, () if is_right else (f"{feed.spoilt:,} of them cannot be merged",)))
        results.append(same(f"{name}.sow equals an independent fold", feed.records, _values(topic)))
        results += _consistent(name, topic)
    for name, (underlying, interval_s) in CONFLATED.items():
        copy = received[name]
        results.append(same(f"{name}.sow equals {underlying}.sow", received[underlying].sow, copy.sow))
        results += _consistent(name, copy)
        results.append(CheckResult(f"{name}: no key twice within {interval_s:g} s", _few(copy.hasty)))
    orders, view = received["orders"], received[VIEW]
    results.append(same(f"{VIEW}.sow equals a sum over orders.sow", _open_orders(orders), _values(view)))
    results += _consistent(VIEW, view)
    nothing_rejected = [
        f"{received[name].rejected:,} of {name}" for name in (*CONFLATED, VIEW) if received[name].rejected
    ]
    results.append(CheckResult("nothing rejected but what was spoilt", _few(nothing_rejected)))
    return results


def same(fact: str, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> CheckResult:
    """Check that two sets of records are equal: the same keys, and values to the letter (1 is not 1.0)."""
    wrong = []
    for key in sorted(expected.keys() | actual.keys()):
        expected_text, actual_text = (
            json.dumps(records[key], sort_keys=True) if key in records else "nothing" for records in (expected, actual)
        )
        if expected_text != actual_text:
            wrong.append(f"key {key}: expected {expected_text}, found {actual_text}")
    return CheckResult(f"{fact}: {len(expected):,} records", _few(wrong))


def _consistent(name: str, topic: Received) -> list[CheckResult]:
    return [
        same(f"{name}.delta replayed equals {name}.sow", topic.sow, topic.replayed),
        CheckResult(f"{name}: no version missing or twice in {topic.deltas:,} deltas", _few(topic.faults)),
    ]


def _values(topic: Received) -> dict[str, Any]:
    return {key: record for key, (_, record) in topic.sow.items()}


def _open_orders(orders: Received) -> dict[str, Any]:
    """The rows that the view must have: the open orders of each customer."""
    rows: dict[str, Any] = {}
    for _, order in orders.sow.values():
        if order.get("state") not in CLOSED:
            row = rows.setdefault(order["customer"], {"customer": order["customer"], "orders": 0, "qty": 0})
            row["orders"] += 1
            row["qty"] += order["qty"]
    return rows


def _few(wrong: list[str]) -> tuple[str, ...]:
    more = len(wrong) - _SHOWN_MAX
    return (*wrong[:_SHOWN_MAX], *((f"and {more:,} more",) if more > 0 else ()))
