"""A record that a member of a share group holds, and the decision about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from processor.record import Record

Verdict: TypeAlias = Literal["accept", "release", "reject"]
"""The outcome of a delivery: done; to be delivered again, to any member; never to be delivered again."""

Place: TypeAlias = tuple[int, int]
"""Partition number and offset of a record."""


class Lease(NamedTuple):
    """A record that this member holds."""

    partition: int
    """The partition of the queue topic."""
    record: Record
    """The record."""
    deliveries: int
    """Number of deliveries, this one included."""
    since_s: float
    """A time before Kafka leased it to us, by the monotonic clock."""

    @property
    def place(self) -> Place:
        """Its partition and offset."""
        return self.partition, self.record.offset
