"""The plug-in `view_projection`: a row for each record that counts, under the same key."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Output, Record
from processor.builtin.view.definitions import check_fingerprint, compiled_filter, fields_of, view_name
from processor.builtin.view.source import FirstStage, Source
from processor.builtin.view.stage_output import RowWriter
from processor.config import ViewConfig
from processor.filter.filter import metadata_of
from processor.wire.record_headers import as_of_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api import Value

WAITING_MAX: Final = 1_000
"""Changed keys at which rows are written before the commit."""


class ViewProjection(FirstStage):
    """Writes the row of each record; its state is the rows."""

    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("delta"), Output("mark"))
    keeps_input_keys: ClassVar[bool] = True

    _compile = staticmethod(fields_of)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition."""
        assert isinstance(settings, ViewConfig)
        self._context = context
        self._topic = settings.underlying
        self._fields = fields_of(context.name, settings)
        self._source = Source(context, self._topic, compiled_filter(view_name(context.name), settings.filter))
        self._writer = RowWriter(context)
        self._rows: dict[bytes, Value | None] = {}
        self._as_of_offset = 0 if settings.as_of else None
        check_fingerprint(context, settings)

    def process(self, records: Sequence[Record]) -> None:
        """Compute the rows; they are written with the commit, the last one of each key."""
        self._source.each(records, self._take)
        if self._as_of_offset is not None:
            self._as_of_offset = records[-1].offset + 1
        if len(self._rows) >= WAITING_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the rows that have changed."""
        rows, self._rows = self._rows, {}
        headers = None
        if self._as_of_offset is not None:
            place = f"{self._context.source_topic}/{self._context.partition}"
            headers = [as_of_header({place: self._as_of_offset})]
        self._writer.write(rows, headers)

    def _take(self, record: Record, state: Value | None) -> None:
        assert record.key is not None
        row = None if state is None else self._fields.row(state, metadata_of(record, self._topic))
        self._rows[record.key] = row
