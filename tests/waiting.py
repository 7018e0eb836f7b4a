"""The wait of tests for what another thread, process or broker does: for a state, never for a time.

A fact that is not there yet is looked at again until a deadline that no busy machine reaches.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import TopicCollection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

Result = TypeVar("Result")

PATIENCE_S: Final = float(os.environ.get("SOWSTREAM_TEST_PATIENCE_S", "120"))
"""Longest wait for a state: far more than a busy machine needs, and less than the limit of a test."""


def until(
    look: Callable[[], Result],
    event: str | Callable[[], object] = "",
    *,
    pause_s: float = 0.01,
    patience_s: float = 0.0,
) -> Result:
    """Look again and again until the result is true, and return it.

    Args:
        look: returns the state, or does a piece of work and returns whether it is done.
        event: what is waited for, or a function that returns it with the last state.
        pause_s: time between two looks; 0 if `look` itself waits.
        patience_s: another limit than PATIENCE_S.

    Raises:
        AssertionError: the result was not true in time.
    """
    patience_s = patience_s or PATIENCE_S
    deadline_s = time.monotonic() + patience_s
    while not (result := look()):
        assert time.monotonic() < deadline_s, f"not in {patience_s:g} s: {event() if callable(event) else event}"
        time.sleep(pause_s)
    return result


def until_described(admin: AdminClient, names: Sequence[str]) -> None:
    """Wait until the broker knows topics that its controller has made."""

    def are_there() -> bool:
        answers = admin.describe_topics(TopicCollection([*names])).values()
        return not any(answer.exception() for answer in answers)

    until(are_there, f"the topics {', '.join(names)}")


def next_message(consumer: Consumer) -> Message:
    """Wait for the next message or error of a consumer."""
    # A message without a value is false.
    return until(lambda: [message] if (message := consumer.poll(1)) is not None else None, "a message", pause_s=0)[0]


def with_limits(run: Callable[[str], Result], is_meant: Callable[[Result], bool]) -> Result:
    """Run a command with a short time limit, and with longer ones while it does not come to the state that is meant.

    Args:
        run: called with the limit, in seconds.
        is_meant: returns False for a result of a machine that was too busy for the limit.
    """
    for limit_s in ("0.2", "2", "10"):
        if is_meant(result := run(limit_s)):
            return result
    return run("60")
