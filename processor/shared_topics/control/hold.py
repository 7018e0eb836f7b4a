"""A held partition, and an operator's order to go on: the values that the runtime and the control topic share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.errors import HoldReason


class Hold(NamedTuple):
    """One partition that is held."""

    reason: HoldReason
    """Why, from a closed list."""
    message: str
    """What happened and what to do, in a sentence with the place."""
    offset: int
    """The input offset it stands at; -1: not known."""
    since_ms: int
    """When it was held first, milliseconds since the epoch."""
    tries: int
    """How often it was asked again since."""
    due_s: float
    """When it is asked next, on the monotonic clock."""


class Resume(NamedTuple):
    """An operator's order to ask held partitions of a pipeline again at once."""

    partition: int | None
    """Which one; None: all that are held."""
    skip_until: int | None
    """The last input offset to be skipped, beginning with the one it stands at; None: nothing is skipped."""
    at_ms: int
    """When the order was given, milliseconds since the epoch."""


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
    "plugin_failed": "mend the plug-in, or skip the record: `sowstream resume {topic} --partition {partition} --skip "
    "OFFSET`",
}
"""The operator's next step for each `HoldReason`, with the topic's name and the partition to be filled in."""
