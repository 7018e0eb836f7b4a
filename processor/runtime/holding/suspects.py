"""Finds the input record at fault, where what a batch of them made cannot be sent, or where the processor raised on it.

Records are given alone up to the last one of the batch. One on which the processor raises is put aside at its next
sight. One that makes an output larger than its topic is known to take is given a transaction of its own, as Kafka
measures what was compressed; if that is refused, the record is put aside as `too_large`.
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
        """Suspect none."""
        self.is_measured = False
        """Whether outputs are to be measured, as one was refused for its size."""
        self._until = -1
        self._alone = -1  # The offset of the record that gets a transaction of its own.
        self._verdicts: dict[int, RecordRejected] = {}
        self._held: PartitionHeld | None = None

    def give_alone(self, until: int) -> None:
        """Give records alone, up to this offset."""
        self._until = max(self._until, until)

    def is_given_alone(self, offset: int) -> bool:
        """Whether a record is given alone."""
        return offset <= self._until

    def reject(self, offset: int, error: RecordRejected) -> None:
        """Put a record aside at its next sight."""
        self._verdicts[offset] = error

    def verdict(self, offset: int) -> RecordRejected | None:
        """Why a record is to be put aside; None: it is not."""
        return self._verdicts.get(offset)

    def isolate(self, offset: int) -> None:
        """Give a record a transaction of its own."""
        self._alone = offset

    def is_isolated(self, offset: int) -> bool:
        """Whether a record has a transaction of its own."""
        return offset == self._alone

    def share(self, records: Sequence[Record], records_max: int) -> int:
        """How many of these records, the first of which is given alone, one transaction takes."""
        if self.is_isolated(records[0].offset):
            return 1
        for place, record in enumerate(records[:records_max]):
            if self.is_isolated(record.offset):
                return place
        return records_max

    def refused(self, next_offset: int, detail: str) -> None:
        """Kafka refused an output for its size, when records before this offset were processed."""
        self.is_measured = True
        if self._alone >= 0 and next_offset == self._alone + 1:
            self.reject(self._alone, RecordRejected("too_large", detail))
        self.give_alone(next_offset - 1)

    def hold(self, error: PartitionHeld) -> None:
        """No record is at fault: hold the partition."""
        self._held = error

    def check(self) -> None:
        """Refuse to go on.

        Raises:
            PartitionHeld: what was refused comes from no record.
        """
        if self._held is not None:
            error, self._held = self._held, None
            raise error

    def committed(self, offset: int) -> None:
        """Records before this offset are done with."""
        if self._alone < offset:
            self._alone = -1
        for passed in [number for number in self._verdicts if number < offset]:
            del self._verdicts[passed]
