"""The demo's self-check can fail: any fault on a topic is found by its check."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from processor.trial.demo.check import Received, Sent, check_all, fold
from processor.trial.demo.settings import CONFLATED, VIEW

Log = dict[str, list[tuple[str, Any, int, dict[str, Any]]]]
"""By topic, such as `orders.sow`: key, value, time in milliseconds and headers of each record."""

FIRST = {"id": 1, "customer": "Ada", "qty": 2, "state": "new", "credit": {"ok": True}}
LAST = {"id": 1, "customer": "Ada", "qty": 3, "state": "new"}
OTHER = {"id": 2, "customer": "Bo", "qty": 1, "state": "filled"}
ROW = {"customer": "Ada", "orders": 1, "qty": 3}
SENT = [
    ("1", json.dumps(FIRST), "publish"),
    ("1", '{"id":1,"credit":{"score":7.5}}', None),
    ("1", "{spoilt", None),
    ("1", json.dumps(LAST), "publish"),
    ("2", json.dumps(OTHER), "publish"),
    ("3", json.dumps(OTHER), "publish"),
    ("3", None, None),
]
"""The publications of orders. The topics of prices stay empty."""


def right() -> Log:
    """Topics that follow from the publications by the rules."""
    insert, remove = {"kind": "insert"}, {"removed": '["/credit"]'}
    return {
        "orders.sow": [
            ("1", FIRST, 0, {"version": 1}),
            ("1", fold(FIRST, {"credit": {"score": 7.5}}), 0, {"version": 2}),
            ("1", LAST, 0, {"version": 3}),
            ("2", OTHER, 0, {"version": 9}),
            ("3", OTHER, 0, {"version": 11}),
            ("3", None, 0, {"version": 12, "kind": "delete"}),
        ],
        "orders.delta": [
            ("1", FIRST, 0, {"version": 1} | insert),
            ("1", {"id": 1, "credit": {"score": 7.5}}, 0, {"version": 2}),
            ("1", {"id": 1, "qty": 3}, 0, {"version": 3} | remove),
            ("2", OTHER, 0, {"version": 9} | insert),
            ("3", OTHER, 0, {"version": 11} | insert),
            ("3", {"id": 3}, 0, {"version": 12, "kind": "delete"}),
        ],
        "orders.dlq": [("1", "{spoilt", 0, {})],
        "orders_2s.sow": [
            ("1", FIRST, 0, {"version": 1}),
            ("1", LAST, 2000, {"version": 3}),
            ("2", OTHER, 0, {"version": 9}),
        ],
        "orders_2s.delta": [
            ("1", FIRST, 0, {"version": 1} | insert),
            ("1", {"id": 1, "qty": 3}, 2000, {"version": 3, "delta_base": 1} | remove),
            ("2", OTHER, 0, {"version": 9} | insert),
        ],
        f"{VIEW}.sow": [("Ada", ROW, 0, {"version": 5})],
        f"{VIEW}.delta": [("Ada", ROW, 0, {"version": 5} | insert)],
        "prices.sow": [],
        "prices_1s.sow": [],
    }


def failures(spoil: Callable[[Log], object], sent: list[tuple[str, str | None, str | None]] = SENT) -> list[str]:
    """The facts that do not hold after a fault."""
    log, feed = right(), Sent()
    spoil(log)
    for key, value, command in sent:
        feed.take(key, None if value is None else value.encode(), command)
    received = {}
    for topic, records in log.items():
        name, _, role = topic.rpartition(".")
        state = received.setdefault(name, Received(CONFLATED[name][1] if name in CONFLATED else 0.0))
        for key, value, at_ms, texts in records:
            headers = [(header, str(text).encode()) for header, text in texts.items()]
            body = None if value is None else json.dumps(value).encode()
            if role == "sow":
                state.take_record(key, body, headers)
            elif role == "delta":
                state.take_delta(key, body or b"", headers, at_ms)
            else:
                state.rejected += 1
    return [result.fact for result in check_all({"orders": feed, "prices": Sent()}, received) if result.wrong]


def with_record(topic: str, at: int, value: Any = None, **headers: Any) -> Callable[[Log], object]:
    """A change of one record: another value, or more headers."""

    def spoil(log: Log) -> None:
        key, before, at_ms, others = log[topic][at]
        log[topic][at] = key, before if value is None else value, headers.pop("at_ms", at_ms), others | headers

    return spoil


def without(*places: tuple[str, int]) -> Callable[[Log], object]:
    """The removal of records."""
    return lambda log: [log[topic].pop(at) for topic, at in places]


def twice(topic: str, at: int) -> Callable[[Log], object]:
    """A record that comes once more."""
    return lambda log: log[topic].insert(at, log[topic][at])


FOLD, REPLAY, COPY = (
    "orders.sow equals an independent fold",
    "orders.delta replayed equals orders.sow",
    "orders_2s.sow equals orders.sow",
)
SUM = f"{VIEW}.sow equals a sum over orders.sow"


def test_topics_without_a_fault_pass() -> None:
    """Every check holds if the topics follow from the publications by the rules."""
    assert failures(lambda log: None) == []


@pytest.mark.parametrize(
    ("spoil", "facts"),
    [
        (without(("orders.delta", 2)), {REPLAY}),
        (with_record("orders.sow", 2, LAST | {"qty": 4}), {FOLD, REPLAY, COPY, SUM}),
        (with_record("orders.sow", 2, LAST | {"qty": 3.0}), {FOLD, REPLAY, COPY, SUM}),
        (with_record("orders.sow", 2, version=4), {REPLAY, COPY}),
        (without(("orders.sow", 5)), {FOLD, REPLAY, COPY}),
        (with_record("orders.delta", 2, removed="[]"), {REPLAY}),
        (without(("orders_2s.sow", 1), ("orders_2s.delta", 1)), {COPY}),
        (with_record(f"{VIEW}.sow", 0, ROW | {"orders": 2}), {SUM, f"{VIEW}.delta replayed equals {VIEW}.sow"}),
    ],
    ids=[
        "a delta is missing",
        "a wrong value",
        "a number of another type",
        "a wrong version",
        "a deleted record that stays",
        "a removed field that stays",
        "a stale copy",
        "a wrong row of the view",
    ],
)
def test_records_that_differ_are_found(spoil: Callable[[Log], object], facts: set[str]) -> None:
    """The comparisons name each topic whose records are not those that they must be."""
    assert facts <= {fact.rpartition(":")[0] for fact in failures(spoil)}


@pytest.mark.parametrize(
    ("spoil", "topic"),
    [
        (twice("orders.delta", 1), "orders"),
        (twice("orders.sow", 1), "orders"),
        (without(("orders.delta", 1)), "orders"),
        (with_record("orders.delta", 1, version=3), "orders"),
        (with_record("orders_2s.delta", 1, delta_base=2), "orders_2s"),
    ],
    ids=["a delta twice", "a record twice", "a delta is missing", "a version too many", "a wrong base"],
)
def test_versions_that_do_not_follow_are_found(spoil: Callable[[Log], object], topic: str) -> None:
    """A version that is missing or comes twice is found, although the last records may be right."""
    assert any(fact.startswith(f"{topic}: no version missing or twice") for fact in failures(spoil))


def test_a_key_twice_in_its_interval_is_found() -> None:
    """Two updates of one key closer than the interval are one too many."""
    assert failures(with_record("orders_2s.delta", 1, at_ms=900)) == ["orders_2s: no key twice within 2 s"]


@pytest.mark.parametrize(
    ("spoil", "sent"),
    [
        (lambda log: None, SENT[:-1]),
        (without(("orders.dlq", 0)), SENT),
        (twice("orders.dlq", 0), SENT),
        (without(("orders.delta", 3)), SENT),
    ],
    ids=["a publication is missing", "no dead letter", "a dead letter too many", "a delta is missing"],
)
def test_a_publication_without_its_delta_or_dead_letter_is_found(spoil: Callable[[Log], object], sent: Any) -> None:
    """Everything that was sent is merged or rejected, once."""
    assert failures(spoil, sent)[0].startswith(f"orders: {len(sent)} sent = ")


def test_a_rejection_by_a_copy_is_found() -> None:
    """Nothing but what the feed has spoilt may be rejected."""
    letter = ("1", "x", 0, {})
    assert failures(lambda log: log.update({"orders_2s.dlq": [letter]})) == ["nothing rejected but what was spoilt"]


def test_the_fold_merges_objects_and_replaces_all_else() -> None:
    """Objects merge at any depth; arrays and scalars replace, also an object."""
    assert fold({"a": {"x": 1}, "b": [1, 2]}, {"a": {"y": {"z": 2}}, "b": [3]}) == {
        "a": {"x": 1, "y": {"z": 2}},
        "b": [3],
    }
    assert fold({"a": {"x": 1}}, {"a": 7}) == {"a": 7}
