"""Tests of the outcome of an operator's order, by the notices that workers write."""

from __future__ import annotations

import time

import pytest

from processor.installation.hold import _outcome, new_order
from processor.wire.control import Notice, Order

ORDER_MS = 5_000


def _notice(offset: int, order_ms: int | None) -> bytes:
    return Notice(
        at_ms=ORDER_MS + 1,
        host="h",
        pid=1,
        version="0.1.0",
        message="bad",
        reason="rejects",
        offset=offset,
        since_ms=1_000,
        tries=1,
        next_try_ms=9_000,
        order_ms=order_ms,
    ).encode()


@pytest.mark.parametrize(
    ("skip_until", "offset", "order_ms", "is_over"),
    [
        (None, 6, 0, False),  # Written after the order, by a worker that had not read it.
        (None, 6, ORDER_MS - 1, False),
        (None, 6, ORDER_MS, True),
        (4, 2, 0, False),
        (4, 5, ORDER_MS, True),
        (4, 5, 0, False),  # Held at a later record without the order, which is still to come.
        (None, 6, None, True),  # An older worker says nothing about orders.
        (4, 2, None, False),
        (4, 5, None, True),
    ],
)
def test_a_notice_answers_an_order_that_its_worker_has_carried_out(
    skip_until: int | None, offset: int, order_ms: int | None, is_over: bool
):
    """A hold that was written between the order and the worker's reading of it is no answer."""
    order = Order(at_ms=ORDER_MS, partition=None, skip_until=skip_until, by="me@here")
    outcome = _outcome("partition 3", "held", _notice(offset, order_ms), order)
    assert outcome is not None
    assert (outcome.goes_on, outcome.is_over) == (False, is_over)


def test_an_order_is_later_than_the_hold_by_the_clock_of_the_worker() -> None:
    """A worker drops an order that is older than its hold, so that a clock that is behind would give none."""
    worker_ms = int(time.time() * 1000) + 240_000
    notice = Notice.model_validate_json(_notice(6, 0)).model_copy(update={"at_ms": worker_ms, "since_ms": worker_ms})
    order = new_order(3, None, {3: notice})
    assert order.at_ms >= worker_ms
    again = new_order(None, None, {3: notice.model_copy(update={"order_ms": order.at_ms}), 4: notice})
    assert again.at_ms > order.at_ms, "the next order is another one"
    assert new_order(4, None, {3: notice}).at_ms < worker_ms, "that partition has no notice"
