"""A tiny world for the checks: a few publications, and topics that follow from them by the rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from processor.trial.demo.check import (
    FamilyStates,
    TopicRecord,
    check_conflated,
    check_topic,
    conflated_family,
    topic_family,
)

Log = dict[str, list[TopicRecord]]


def entry(key: str, value: Any, *, at_ms: int = 0, place: str = "", **headers: Any) -> TopicRecord:
    """One record; a value of bytes or None is not encoded."""
    data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return TopicRecord(key, data, {name: str(text) for name, text in headers.items()}, place or f"t/0/{at_ms}", at_ms)


def world() -> tuple[Log, Log]:
    """Two families without a fault: orders, and orders conflated to one update per second."""
    whole = {"id": 1, "qty": 2, "credit": {"ok": True}}
    orders = {
        "publish": [
            entry("1", whole, command="publish"),
            entry("1", {"id": 1, "credit": {"score": 7.5}}),
            entry("1", b"{spoilt", place="orders.publish/0/2"),
            entry("1", {"id": 1, "qty": 3}, command="publish"),
            entry("2", {"id": 2, "state": "new"}, command="publish"),
            entry("2", None),
            entry("2", {"id": 2, "state": "again"}, command="publish"),
        ],
        "sow": [
            entry("1", whole, version=1, kind="insert"),
            entry("1", {"id": 1, "qty": 2, "credit": {"ok": True, "score": 7.5}}, version=2),
            entry("1", {"id": 1, "qty": 3}, version=3),
            entry("2", {"id": 2, "state": "new"}, version=1, kind="insert"),
            entry("2", None, version=2, kind="delete"),
            entry("2", {"id": 2, "state": "again"}, version=1, kind="insert"),
        ],
        "delta": [
            entry("1", whole, version=1, kind="insert"),
            entry("1", {"id": 1, "credit": {"score": 7.5}}, version=2),
            entry("1", {"id": 1, "qty": 3}, version=3, removed='["/credit"]'),
            entry("2", {"id": 2, "state": "new"}, version=1, kind="insert"),
            entry("2", {"id": 2}, version=2, kind="delete"),
            entry("2", {"id": 2, "state": "again"}, version=1, kind="insert"),
        ],
        "dlq": [entry("1", b"{spoilt", source="orders.publish/0/2")],
    }
    conflated = {
        "sow": [
            entry("1", whole, at_ms=1000, version=1, kind="insert"),
            entry("1", {"id": 1, "qty": 3}, at_ms=2000, version=3, conflated=2),
            entry("2", {"id": 2, "state": "again"}, at_ms=2000, version=1, kind="insert"),
        ],
        "delta": [
            entry("1", whole, at_ms=1000, version=1, kind="insert"),
            entry("1", {"id": 1, "qty": 3}, at_ms=2000, version=3, delta_base=1, removed='["/credit"]'),
            entry("2", {"id": 2, "state": "again"}, at_ms=2000, version=1, kind="insert"),
        ],
    }
    return orders, conflated


def failures(spoil: Callable[[Log, Log], object], *, sent: int = 7) -> list[str]:
    """The facts that do not hold after a fault."""
    orders, conflated = world()
    spoil(orders, conflated)
    under, above = folded(topic_family("id"), orders), folded(conflated_family(1.0), conflated)
    findings = check_topic("orders", under, sent) + check_conflated("orders_1s", above, "orders", under, 1.0)
    return [finding.fact for finding in findings if finding.wrong]


def folded(family: FamilyStates, log: Log) -> FamilyStates:
    """The states of a family after all of its records."""
    for role, entries in log.items():
        for each in entries:
            family.take(role, each)  # type: ignore[arg-type]
    return family
