"""Counts the records of several topics by the value of a field: two processors, with a topic of their own between them.

Each source has a `TallySource`. It sends each record to the partition of its value, under a key of value, topic and
record key, and remembers the value, so that a record that changes it leaves the former one. One `ValueTally` keeps
these records as a table. A count is the number of table entries, never a sum of differences: a record that comes
again, or comes although the table has it already, changes nothing.
"""

from sowstream.api import Input, Output, Record, RecordProcessor, RecordRejected, Settings, Stored, Value

_END = b"\0"
"""Ends the value in a key, so that the entries of a value stand together."""

_PIECE = 1_000


class TallySettings(Settings):
    """The section `processors.<name>.settings` of a source."""

    field: str
    """The member of a record whose values are counted; it is a text."""


class TallySource(RecordProcessor[TallySettings]):
    """Sends each record to its value; its private state is the value of each record."""

    input = Input("sow", from_underlying=True)
    outputs = (Output("sow"), Output("parts", downstream=True))

    def process_record(self, record: Record) -> None:
        """Send one record to its value, and take it away from the former one."""
        old = self.get(record.key)
        body: Value = None if record.value is None else self.context.codec.decode(record.value)
        new = None if body is None else body.get(self.settings.field)
        if new is not None and not isinstance(new, str):
            raise RecordRejected("no_text", f"{self.settings.field} is {new!r:.100}")
        if old is not None and old["value"] != new:
            self._send(old["value"], record, None)
        if new is not None:
            self._send(new, record, b"1")
            self.put(record.key, {"value": new})
        elif old is not None:
            self.delete(record.key)

    def _send(self, value: str, record: Record, data: bytes | None) -> None:
        group = value.encode()
        key = group + _END + self.context.source_topic.encode() + _END + (record.key or b"")
        self.context.forward_to("parts", self.context.partition_for(group, "parts"), [(key, data, [])])


class ValueTally(RecordProcessor):
    """Keeps the records of all sources as a table, and a count of each value under a key of its own."""

    input = Input("parts")
    outputs = (Output("sow"), Output("delta"))
    keeps_table = True

    def process_record(self, record: Record) -> None:
        """Put one record into the table, and count its value again."""
        key = record.key or b""
        if record.offset >= self.context.table_until:
            self.context.table.put_many({key: None if record.value is None else Stored(1, record.value)})
        group = key.partition(_END)[0]
        count = self._count(group + _END)
        if count:
            self.put(group, {"value": group.decode(), "count": count})
        elif self.get(group) is not None:
            self.delete(group)

    def _count(self, prefix: bytes) -> int:
        count, after = 0, prefix
        while True:
            keys = [key for key, _ in self.context.table.scan(after, _PIECE)]
            own = [key for key in keys if key.startswith(prefix)]
            count += len(own)
            if len(own) < _PIECE:
                return count
            after = own[-1]
