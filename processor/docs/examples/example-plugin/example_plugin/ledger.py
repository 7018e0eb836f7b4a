"""Sums a number over all records of a partition; the sum is in the note with the input position."""

from sowstream.api import Input, Output, Record, RecordProcessor, Settings


class Ledger(RecordProcessor):
    """Writes the sum of all records so far under a key with the partition's number, an update for each record.

    Each partition has a sum of its own: without the number all of them would write records of the same key.

    The same records make the same sums, so it may run at least once: `put` names the input record as the `source`, and
    skips the updates that the SOW topic already has.
    """

    input = Input("publish", from_underlying=True)
    outputs = (Output("sow"),)
    is_repeatable = True

    def setup(self, settings: Settings) -> None:
        """Continue from the last committed sum."""
        self._sum = int(self.context.noted or 0)

    def process_record(self, record: Record) -> None:
        """Add the number of one record."""
        assert record.value is not None
        self._sum += self.context.codec.decode(record.value)["qty"]
        self.context.hold(None, str(self._sum))
        self.put(b"sum/%d" % self.context.partition, {"sum": self._sum})
