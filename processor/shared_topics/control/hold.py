"""A held partition, and an operator's order to resume: the values that the runtime and the control topic share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.errors import HoldReason


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
