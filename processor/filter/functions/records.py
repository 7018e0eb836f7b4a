"""Functions of the record: its metadata."""

from __future__ import annotations

from typing import Final

from processor.filter.function import Function
from processor.filter.record_metadata import RecordMetadata


def message_size(metadata: RecordMetadata) -> int | None:
    """Bytes of the encoded record."""
    return metadata.message_bytes


def sow_key(metadata: RecordMetadata) -> str:
    """The record's key as text."""
    return metadata.sow_key


def topic_name(metadata: RecordMetadata) -> str:
    """The topic's name."""
    return metadata.topic


def correlation_id(metadata: RecordMetadata) -> str:
    """The publisher's correlation id."""
    return metadata.correlation_id


def last_updated(metadata: RecordMetadata) -> float | None:
    """Time of the record's last change, in seconds since the epoch."""
    return None if metadata.last_updated_ms is None else metadata.last_updated_ms / 1000


FUNCTIONS: Final = (
    Function("MESSAGE_SIZE", message_size, 0, 0, "metadata"),
    Function("SOW_KEY", sow_key, 0, 0, "metadata"),
    Function("TOPIC_NAME", topic_name, 0, 0, "metadata"),
    Function("CORRELATION_ID", correlation_id, 0, 0, "metadata"),
    Function("LAST_UPDATED", last_updated, 0, 0, "metadata"),
)
