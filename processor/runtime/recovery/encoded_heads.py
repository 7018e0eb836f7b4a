"""The bytes that stand before the value of a restored record in a store, by the headers of its SOW record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.store.layout import encode_record
from processor.wire.sow_headers import stored_of

if TYPE_CHECKING:
    from processor.record import Header

_HEADS_MAX: Final = 4096


class EncodedHeads(dict[tuple["Header", ...], bytes]):
    """The head of a stored record, by the headers it has on the SOW topic: few of them are different.

    ::

        heads[headers] + value == encode_record(stored_of(headers, value))

    Raises:
        ValueError: the headers are not those of a SOW record.
    """

    expires = False
    """True if any of the records that were asked for expires."""

    def __missing__(self, headers: tuple[Header, ...]) -> bytes:
        """Encode one; most are never asked for again where the headers have an offset or a time."""
        stored = stored_of(headers, b"")
        self.expires = self.expires or stored.expires_at_ms > 0
        head = encode_record(stored)
        if len(self) < _HEADS_MAX:
            self[headers] = head
        return head
