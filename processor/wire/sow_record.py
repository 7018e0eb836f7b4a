"""How a record of a SOW topic becomes the state of its key: what a restore takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.record import Name, Record, Stored
from processor.store.layout import encode_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.record import Header

_HEADS_MAX: Final = 4096
_NUMBER_END: Final = 2**63
_TEXT_BYTES_MAX: Final = 2**16 - 1


def stored_from(record: Record) -> Stored | None:
    """A SOW record as a store keeps it; None for a tombstone.

    Raises:
        ValueError: its headers are not those of a SOW record.
    """
    return None if record.value is None else _stored(record.headers or (), record.value)


class Heads(dict[tuple["Header", ...], bytes]):
    """What stands before a value in a store, by the headers it has on the SOW topic: few are different.

    ::

        heads[headers] + value == encode_record(stored_from(record))

    Raises:
        ValueError: the headers are not those of a SOW record.
    """

    expires = False
    """Whether any that were asked for said when their record expires."""

    def __missing__(self, headers: tuple[Header, ...]) -> bytes:
        """Make one; most are never asked for again where the headers have an offset or a time."""
        stored = _stored(headers, b"")
        self.expires = self.expires or stored.expires_at_ms > 0
        head = encode_record(stored)
        if len(self) < _HEADS_MAX:
            self[headers] = head
        return head


def _stored(headers: Iterable[Header], value: bytes) -> Stored:
    """A value with what its headers say."""
    version, expires_at_ms, source_offset, expiration = 0, 0, -1, b""
    for name, text in headers:
        if name == Name.VERSION:
            version = int(text or b"")
        elif name == Name.EXPIRES_AT:
            expires_at_ms = int(text or b"")
        elif name == Name.SOURCE:
            source_offset = int((text or b"").rpartition(b"/")[2])
        elif name == Name.EXPIRATION:
            expiration = text or b""
    numbers = version, expires_at_ms, source_offset
    if max(numbers) >= _NUMBER_END or min(numbers) < -_NUMBER_END or len(expiration) > _TEXT_BYTES_MAX:
        raise ValueError("a header of it is larger than a worker writes")
    return Stored(version, value, expires_at_ms, source_offset, expiration)
