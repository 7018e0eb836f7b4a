"""Tests of the outcome of an operator's order, by the notices that workers write."""

from __future__ import annotations

import pytest

from processor.installation.hold import _outcome
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
