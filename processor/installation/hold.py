"""A held partition, and an operator's order to resume: the order is checked and sent, and its outcome collected."""

from __future__ import annotations

import contextlib
import getpass
import socket
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import ConfigurationError
from processor.wire.control import Failure, Notice, Order, decode, decode_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.errors import HoldReason
    from processor.installation.control_topic import ControlEntries, ControlTopic


class Hold(NamedTuple):
    """One held partition."""

    reason: HoldReason
    """The reason, from a closed list."""
    message: str
    """The event and the remedy, in a sentence with the place."""
    offset: int
    """The input offset at which it is held; -1: unknown."""
    since_ms: int
    """The time when it was first held, milliseconds since the epoch."""
    tries: int
    """The number of retries since then."""
    due_s: float
    """The time of the next retry, on the monotonic clock."""
    order_ms: int = 0
    """The time of the last order by which it was retried, milliseconds since the epoch; 0: there was none."""


class Resume(NamedTuple):
    """An operator's order to retry held partitions of a pipeline at once."""

    partition: int | None
    """The partition; None: all held ones."""
    skip_until: int | None
    """The last input offset to skip, from the one at which it is held; None: none is skipped."""
    at_ms: int
    """The time of the order, milliseconds since the epoch."""


REMEDIES: Final[Mapping[str, str]] = {
    "rejects": "mend the publisher, then `sowstream resume {topic} --partition {partition}` lets the records pass",
    "unreadable_batch": "skip it: `sowstream resume {topic} --partition {partition} --skip OFFSET`",
    "open_transaction": "`sowstream transactions list` shows who left it open",
    "kafka_silent": "look at the brokers; it goes on by itself",
    "registry": "look at the schema registry; it goes on by itself",
    "input_gone": "`sowstream resume {topic} --partition {partition} --skip OFFSET` accepts the loss up to OFFSET",
    "offsets_lost": "`sowstream offsets adopt {topic} --from sow|earliest|latest`",
    "state_locked": "give each worker its own state_dir, or stop the other",
    "state_damaged": "look at the disk of state_dir and the memory of its machine",
    "fenced": "`sowstream status {topic}` shows who merges it, or which topic has taken its place",
    "plugin_failed": "mend the plug-in, or skip the record: `sowstream resume {topic} --partition {partition} --skip "
    "OFFSET`",
    "stuck": "skip the record: `sowstream resume {topic} --partition {partition} --skip OFFSET`; or mend the plug-in, "
    "and resume without --skip",
}
"""The operator's next step for each `HoldReason`, a template for the topic's name and the partition."""


def who() -> str:
    """Return the user of this process: `user@host`."""
    user = "somebody"
    with contextlib.suppress(KeyError, OSError):  # A container's user may have no name.
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


_WAIT_S = 0.2  # Longest wait in one call, so that Ctrl-C takes effect.


class Outcome(NamedTuple):
    """The outcome of an order for one held partition or failed pipeline."""

    what: str
    """`partition 3`, or `the pipeline in worker-0-…`."""
    goes_on: bool
    """True if the worker reports that it goes on."""
    why: str
    """The worker's message if it does not go on; empty if no worker has answered."""
    is_over: bool = True
    """True if the order has taken effect; a worker that has not seen it yet may repeat its former state."""


def new_order(partition: int | None, skip_until: int | None, notices: Mapping[int, Notice]) -> Order:
    """Create an order of this user, later than the notices it is for: a worker drops one that is older than its hold.

    The clock of this machine may be behind that of the workers.

    Args:
        partition: the partition; None: all that are held.
        skip_until: the last input offset to skip; None: none is skipped.
        notices: the notices of the pipeline, by partition.
    """
    answered = [notice for place, notice in notices.items() if partition in (None, place)]
    later_ms = [max(notice.at_ms, notice.since_ms, (notice.order_ms or 0) + 1) for notice in answered]
    at_ms = max([int(time.time() * 1000), *later_ms])
    return Order(at_ms=at_ms, partition=partition, skip_until=skip_until, by=who())


def check_skip(topic: str, source: str, partition: int, notice: Notice | None, skip_until: int, end: int) -> None:
    """Refuse to skip records of a partition that is not held, or records that do not exist.

    Args:
        topic: the pipeline's name, for the message.
        source: its input topic.
        partition: the partition.
        notice: its notice in the control topic; None: there is none.
        skip_until: the last offset to skip.
        end: the end of the partition now.

    Raises:
        ConfigurationError: nothing may be skipped there.
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


def send_order(
    control: ControlTopic, application_id: str, pipeline: str, order: Order, entries: ControlEntries, timeout_s: float
) -> list[Outcome]:
    """Send an order and wait for the outcome that the workers report.

    Args:
        control: the control topic.
        application_id: the application of the pipeline.
        pipeline: its name.
        order: the order.
        entries: the notices before the order; only held partitions and failed pipelines in it are waited for.
        timeout_s: longest wait.

    Raises:
        Stop: Kafka refuses, or does not answer.
    """
    held = entries.held.get(pipeline, {})
    partitions = [partition for partition in sorted(held) if order.partition in (None, partition)]
    waiting = {("held", str(partition)): f"partition {partition}" for partition in partitions}
    if order.partition is None:
        waiting |= {("failed", name): f"the pipeline in {name}" for name in sorted(entries.failed.get(pipeline, {}))}
    outcomes: dict[tuple[str, str], Outcome] = {
        place: Outcome(what, False, "", is_over=False) for place, what in waiting.items()
    }
    control.write_order(application_id, pipeline, order)
    following = control.follow(entries.end)
    deadline = time.monotonic() + timeout_s
    was_given = False
    try:
        while waiting and time.monotonic() < deadline:
            for message in following.read(1, _WAIT_S).messages:
                key, value = decode_key(message.key()), message.value()
                if key is None or (key.application_id, key.pipeline) != (application_id, pipeline):
                    continue
                if key.kind == "resume":
                    # Earlier notices are not an answer to this order.
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
    """The outcome in a worker's record; None for a record that cannot be read."""
    if value is None:
        return Outcome(what, True, "")
    if kind == "failed":
        failure = decode(Failure, value)
        return None if failure is None else Outcome(what, False, failure.message)
    notice = decode(Notice, value)
    if notice is None:
        return None
    if notice.order_ms is not None:
        is_over = notice.order_ms >= order.at_ms
    else:
        is_over = order.skip_until is None or notice.offset > order.skip_until
    return Outcome(what, False, notice.message, is_over=is_over)
