"""Copies the records of a topic whose number is large enough."""

from pydantic import BaseModel

from processor.api import Context, Input, Name, Output, Record, RecordProcessor, RecordRejected, Settings, Stored


class LargeSettings(Settings):
    """`processors.<name>.settings`."""

    field: str = "qty"
    """The member of a record that holds the number."""
    at_least: int
    """Records with less are left out."""


class Large(RecordProcessor):
    """A record comes into the copy, changes and leaves it as its number says."""

    settings_type = LargeSettings
    input = Input("sow", from_underlying=True)
    outputs = (Output("sow"),)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Keep the settings."""
        super().init(context, settings)
        assert isinstance(settings, LargeSettings)
        self._settings = settings

    def process_record(self, record: Record) -> None:
        """Bring one record's copy up to date."""
        context, key = self.context, record.key
        if key is None:
            raise RecordRejected("missing_key", "a SOW record has a key")
        copy = context.state.get_many([key])[key]
        value = record.value if self._is_large(record) else None
        if value is None and copy is None:
            context.count("left_out")
            return
        version = 1 if copy is None else copy.version + 1
        context.state.put_many({key: None if value is None else Stored(version, value)})
        context.forward("sow", key, value, [(Name.VERSION, b"%d" % version)])

    def _is_large(self, record: Record) -> bool:
        if record.value is None:
            return False
        number = self.context.codec.decode(record.value).get(self._settings.field, 0)
        return bool(number >= self._settings.at_least)
