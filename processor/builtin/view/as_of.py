"""The prefix of each input partition that the rows of a view reflect (header `as_of`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from processor.wire.record_headers import as_of_header, input_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Context, Headers, Record

_MARK: Final = b"as_of"


class InputPrefix:
    """The offsets after the last records, of each input partition, whose parts have come; kept as a mark."""

    def __init__(self, context: Context) -> None:
        """Begin where the predecessor ended."""
        self._context = context
        self._offsets: dict[str, int] = json.loads(context.marks.get(_MARK) or b"{}")

    def took(self, records: Sequence[Record]) -> None:
        """Note the places of the records from which these parts were made."""
        for record in records:
            if (place := input_place(record.headers)) is not None:
                partition, _, offset = place.decode().rpartition("/")
                self._offsets[partition] = max(self._offsets.get(partition, 0), int(offset) + 1)
        self._context.marks.put(_MARK, json.dumps(self._offsets).encode())

    def headers(self) -> Headers:
        """Return the header of the rows that are written now."""
        return [as_of_header(self._offsets)]
