"""A third-party processor that copies records, and raises in `punctuate` while a file exists."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from processor.api import Context, Input, Output, Record, RecordProcessor, Settings


class RaisingSettings(Settings):
    """`processors.<name>.settings`."""

    file: str
    """While it exists, `punctuate` raises."""


class Raising(RecordProcessor):
    """A processor with an error that is no record's fault."""

    settings_type = RaisingSettings
    input = Input("sow", from_underlying=True)
    outputs = (Output("sow"),)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Keep the file's name."""
        super().init(context, settings)
        assert isinstance(settings, RaisingSettings)
        self._file = Path(settings.file)

    def process_record(self, record: Record) -> None:
        """Copy a record."""
        if record.key is not None:
            self.context.forward("sow", record.key, record.value, [("version", b"1")])

    def punctuate(self, now_ms: int) -> bool | None:
        """Raise while the file exists."""
        if self._file.exists():
            raise RuntimeError("a bug of the plug-in's author")
        return None
