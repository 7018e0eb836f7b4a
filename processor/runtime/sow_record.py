"""How a record of a SOW topic becomes the state of its key: what a restore takes over."""

from __future__ import annotations

from processor.record import Name, Record, Stored


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
    return Stored(version, record.value, expires_at_ms, source_offset, correlation_id)
