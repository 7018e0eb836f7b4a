"""An operator's order to go on: what it would do, giving it, and what became of it."""

from __future__ import annotations

import getpass
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

from processor.errors import ConfigurationError
from processor.wire.control import Failure, Notice, Order, decode, decode_key

if TYPE_CHECKING:
    from processor.shared_topics.control.topic import ControlTopic, Entries

_WAIT_S = 0.2  # Longest wait in one call, so that Ctrl-C is heard.


class Outcome(NamedTuple):
    """What became of one thing that was to go on."""

    what: str
    """`partition 3`, or `the pipeline in worker-0-…`."""
    goes_on: bool
    """Whether the worker says that it does."""
    why: str
    """The worker's message where it does not; empty where no worker has said anything."""
    is_over: bool = True
    """Whether the order has had its effect; a worker that has not yet seen it may say that nothing has changed."""


def new_order(partition: int | None, skip_until: int | None) -> Order:
    """An order of now, by the user of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = "somebody"
    at_ms = int(time.time() * 1000)
    return Order(at_ms=at_ms, partition=partition, skip_until=skip_until, by=f"{user}@{socket.gethostname()}")


def check_skip(topic: str, source: str, partition: int, notice: Notice | None, skip_until: int, end: int) -> None:
    """Refuse to skip what is not known to be held, and what is not there.

    Args:
        topic: the pipeline's name, for the message.
        source: its input topic.
        partition: the partition.
        notice: what the control topic says of it; None: nothing.
        skip_until: the last offset that is to be skipped.
        end: the end of the partition now.

    Raises:
        ConfigurationError: nothing is to be skipped there.
    """
    where = f"{topic} partition {partition}"
    if notice is None:
        raise ConfigurationError(
            f"{where}: no worker says that it is held, so nothing is skipped; `sowstream status {topic}` shows what is"
        )
    if notice.offset < 0:
        raise ConfigurationError(
            f"{where} is held ({notice.reason}), but not at an input record: to skip does not help. {notice.message}"
        )
    if skip_until < notice.offset:
        raise ConfigurationError(
            f"{where} stands at offset {notice.offset}: what is before it is processed already; --skip takes the last "
            f"offset to be skipped, {notice.offset} to skip one record"
        )
    if skip_until >= end:
        raise ConfigurationError(
            f"{where}: {source} ends at offset {end} now; --skip takes {end - 1} at most, for what is still to come "
            "is not known"
        )


def give(
    control: ControlTopic, application_id: str, pipeline: str, order: Order, entries: Entries, timeout_s: float
) -> list[Outcome]:
    """Give an order and wait until the workers have said what became of it.

    Args:
        control: the control topic.
        application_id: whose pipeline.
        pipeline: its name.
        order: what to do.
        entries: what the control topic said before; only what is held there is waited for.
        timeout_s: longest wait.

    Raises:
        Stop: Kafka refuses, or does not answer.
    """
    held = entries.held.get(pipeline, {})
    wanted = [partition for partition in sorted(held) if order.partition in (None, partition)]
    waiting = {("held", str(partition)): f"partition {partition}" for partition in wanted}
    if order.partition is None:
        waiting |= {("failed", name): f"the pipeline in {name}" for name in sorted(entries.failed.get(pipeline, {}))}
    outcomes: dict[tuple[str, str], Outcome] = {
        place: Outcome(what, False, "", is_over=False) for place, what in waiting.items()
    }
    control.give(application_id, pipeline, order)
    following = control.follow(entries.end)
    deadline = time.monotonic() + timeout_s
    was_given = False
    try:
        while waiting and time.monotonic() < deadline:
            for message in following.next(_WAIT_S):
                key, value = decode_key(message.key()), message.value()
                if key is None or (key.application_id, key.pipeline) != (application_id, pipeline):
                    continue
                if key.kind == "resume":
                    # What workers said before this came of something else.
                    was_given = was_given or (value is not None and decode(Order, value) == order)
                place = (key.kind, key.place)
                if not was_given or place not in waiting:
                    continue
                outcome = _outcome(waiting[place], key.kind, value, order)
                if outcome is None:
                    continue
                outcomes[place] = outcome
                if outcome.is_over:
                    del waiting[place]
    finally:
        following.close()
    return list(outcomes.values())


def _outcome(what: str, kind: str, value: bytes | None, order: Order) -> Outcome | None:
    """What a worker's record says; None for one that cannot be read."""
    if value is None:
        return Outcome(what, True, "")
    if kind == "failed":
        failure = decode(Failure, value)
        return None if failure is None else Outcome(what, False, failure.message)
    notice = decode(Notice, value)
    if notice is None:
        return None
    return Outcome(what, False, notice.message, is_over=order.skip_until is None or notice.offset > order.skip_until)
