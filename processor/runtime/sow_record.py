"""How a record of a SOW topic becomes the state of its key: what a restore takes over."""

from __future__ import annotations

from typing import Final

from processor.record import Name, Record, Stored

_NUMBER_END: Final = 2**63
_TEXT_BYTES_MAX: Final = 2**16 - 1


def stored_from(record: Record) -> Stored | None:
    """A SOW record as a store keeps it; None for a tombstone.

    Raises:
        ValueError: its headers are not those of a SOW record.
    """
    if record.value is None:
        return None
    version, expires_at_ms, source_offset, correlation_id = 0, 0, -1, b""
    for name, text in record.headers or ():
        if name == Name.VERSION:
            version = int(text or b"")
        elif name == Name.EXPIRES_AT:
            expires_at_ms = int(text or b"")
        elif name == Name.SOURCE:
            source_offset = int((text or b"").rpartition(b"/")[2])
        elif name == Name.CORRELATION_ID:
            correlation_id = text or b""
    if max(version, expires_at_ms, source_offset) >= _NUMBER_END or len(correlation_id) > _TEXT_BYTES_MAX:
        raise ValueError("a header of it is larger than a worker writes")
    return Stored(version, record.value, expires_at_ms, source_offset, correlation_id)
