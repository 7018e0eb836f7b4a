"""Sums a number over all records of a partition: what it has so far is in its note, and nowhere else."""

from pydantic import BaseModel

from processor.api import Context, Input, Name, Output, Record, RecordProcessor


class Ledger(RecordProcessor):
    """One entry for each record, with the sum of all up to it."""

    input = Input("publish", from_underlying=True)
    outputs = (Output("sow"),)
    is_repeatable = True

    def init(self, context: Context, settings: BaseModel) -> None:
        """Go on where the last committed entry ended."""
        super().init(context, settings)
        self._entries, self._sum = map(int, (context.noted or "0 0").split())
        self._again_until = max(context.applied, default=-1)

    def process_record(self, record: Record) -> None:
        """Add an entry."""
        assert record.value is not None
        self._sum += self.context.codec.decode(record.value)["qty"]
        self._entries += 1
        self.context.hold(None, f"{self._entries} {self._sum}")
        if record.offset > self._again_until:
            source = f"{self.context.partition}/{record.offset}".encode()
            headers = [(Name.VERSION, b"%d" % self._entries), (Name.SOURCE, source)]
            self.context.forward("sow", b"sum", self.context.codec.encode({"sum": self._sum}), headers)
