"""Copies the records of a topic whose number is large enough, and alerts where it is very large."""

from sowstream.api import Input, Output, Record, RecordProcessor, RecordRejected, Settings, Value


class LargeSettings(Settings):
    """The section `processors.<name>.settings`."""

    field: str = "qty"
    """The member of a record that holds the number."""
    at_least: int
    """Records with a smaller number are left out."""
    alert_at: int | None = None
    """Records with this number or a larger one go to the output `alerts` too; None: no record does."""


class Large(RecordProcessor[LargeSettings]):
    """Keeps a copy of each record while its number is large enough, and deletes the copy when it is not."""

    input = Input("sow", from_underlying=True)
    outputs = (Output("sow"), Output("alerts"))

    def process_record(self, record: Record) -> None:
        """Bring the copy of one record up to date."""
        value: Value = None if record.value is None else self.context.codec.decode(record.value)
        number = 0 if value is None else value.get(self.settings.field, 0)
        if not isinstance(number, int | float):
            raise RecordRejected("no_number", f"{self.settings.field} is {number!r:.100}")
        if value is not None and number >= self.settings.at_least:
            self.put(record.key, value)
        elif self.get(record.key) is not None:
            self.delete(record.key)
        else:
            self.context.count("left_out")
        if self.settings.alert_at is not None and number >= self.settings.alert_at:
            self.forward("alerts", record.key, {self.settings.field: number})
