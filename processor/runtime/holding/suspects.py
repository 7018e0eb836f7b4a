"""Finds the input record at fault when the processor raises on a batch, or when Kafka refuses an output of it.

The records of the batch are processed one at a time. A record on which the processor raises is rejected when it is
read again. A record with an output above the known limit of its topic gets a transaction of its own, because Kafka
measures the compressed size; if Kafka refuses that transaction, the record is rejected as `too_large`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.errors import PartitionHeld, RecordRejected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.record import Record


class Suspects:
    """The suspected records of one partition."""

    def __init__(self) -> None:
        """Begin without suspects."""
        self.is_measured = False
        """True if outputs are measured, because Kafka refused one for its size."""
        self._until = -1
        self._alone = -1  # Offset of the record with a transaction of its own.
        self._verdicts: dict[int, RecordRejected] = {}
        self._held: PartitionHeld | None = None
        self._stop_at: tuple[int, PartitionHeld] | None = None

    def give_alone(self, until: int) -> None:
        """Process records one at a time, up to this offset."""
        self._until = max(self._until, until)

    def is_given_alone(self, offset: int) -> bool:
        """Return whether a record is processed alone."""
        return offset <= self._until

    def reject(self, offset: int, error: RecordRejected) -> None:
        """Reject a record when it is read again."""
        self._verdicts[offset] = error

    def verdict(self, offset: int) -> RecordRejected | None:
        """The reason to reject a record; None: it is not rejected."""
        return self._verdicts.get(offset)

    def isolate(self, offset: int) -> None:
        """Process a record in a transaction of its own."""
        self._alone = offset

    def is_isolated(self, offset: int) -> bool:
        """Return whether a record has a transaction of its own."""
        return offset == self._alone

    def share(self, records: Sequence[Record], records_max: int) -> int:
        """The number of these records that fit into one transaction, if the first of them is processed alone."""
        if self.is_isolated(records[0].offset):
            return 1
        for place, record in enumerate(records[:records_max]):
            if self.is_isolated(record.offset):
                return place
        return records_max

    def refused(self, next_offset: int, detail: str) -> None:
        """Suspect the records before this offset: Kafka refused an output of theirs for its size."""
        self.is_measured = True
        if self._alone >= 0 and next_offset == self._alone + 1:
            self.reject(self._alone, RecordRejected("too_large", detail))
        self.give_alone(next_offset - 1)

    def hold(self, error: PartitionHeld) -> None:
        """Hold the partition at the next `check`: no record is at fault."""
        self._held = error

    def stop_at(self, offset: int, error: PartitionHeld) -> None:
        """Hold the partition at a record, once those before it are committed."""
        self._stop_at = offset, error
        self.give_alone(offset)
        self.isolate(offset)

    def check(self, offset: int = -1) -> None:
        """Refuse to process records, from an offset on, if the partition is to be held.

        Raises:
            PartitionHeld: Kafka refused an output that comes from no record, or the processor did not return from the
                record at this offset before.
        """
        if self._stop_at is not None and offset >= self._stop_at[0]:
            (_, error), self._stop_at = self._stop_at, None
            raise error
        if self._held is not None:
            error, self._held = self._held, None
            raise error

    def committed(self, offset: int) -> None:
        """Forget the records before this offset, which are committed."""
        if self._alone < offset:
            self._alone = -1
        for passed in [number for number in self._verdicts if number < offset]:
            del self._verdicts[passed]
