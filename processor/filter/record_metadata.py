"""The metadata of a record that a filter may use besides its values."""

from __future__ import annotations

from typing import Final, NamedTuple


class RecordMetadata(NamedTuple):
    """The metadata of one record; fields left out are NULL."""

    message_bytes: int | None = None
    """Length of the encoded record, for MESSAGE_SIZE."""
    sow_key: str = ""
    """Its key as text, for SOW_KEY."""
    topic: str = ""
    """The topic's name, as settings have it, for TOPIC_NAME."""
    correlation_id: str = ""
    """The publisher's, for CORRELATION_ID."""
    last_updated_ms: int | None = None
    """Time of its last change, milliseconds since the epoch, for LAST_UPDATED."""
    now_ms: int | None = None
    """The time of UNIX_TIMESTAMP; None: the wall clock."""


NO_METADATA: Final = RecordMetadata()
"""No metadata: every field is NULL."""
