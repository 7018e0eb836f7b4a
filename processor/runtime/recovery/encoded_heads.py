"""The bytes that stand before the value of a restored record in a store, by the headers of its SOW record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.store.layout import encode_record, plain_head
from processor.wire.record_headers import plain_version_of, stored_of

if TYPE_CHECKING:
    from processor.record import Header


class EncodedHeads:
    """The head of a stored record, by the headers it has on the SOW topic.

    ::

        heads[headers] + value == encode_record(stored_of(headers, value))
    """

    expires = False
    """True if any of the records that were asked for expires."""

    def __getitem__(self, headers: tuple[Header, ...]) -> bytes:
        """Encode a head.

        Raises:
            ValueError: the headers are not those of a SOW record.
        """
        version = plain_version_of(headers)
        if version >= 0:  # Most have no more than a version and a kind: a third of the time.
            return plain_head(version)
        stored = stored_of(headers, b"")
        self.expires = self.expires or stored.expires_at_ms > 0
        return encode_record(stored)
