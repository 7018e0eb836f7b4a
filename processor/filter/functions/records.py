"""Functions of the record: what is known of it besides its values."""

from __future__ import annotations

from typing import Final

from processor.filter.function import Function
from processor.filter.record_metadata import Facts


def message_size(facts: Facts) -> int | None:
    """Bytes of the encoded record."""
    return facts.message_bytes


def sow_key(facts: Facts) -> str:
    """The record's key as text."""
    return facts.sow_key


def topic_name(facts: Facts) -> str:
    """The topic's name."""
    return facts.topic


def correlation_id(facts: Facts) -> str:
    """The publisher's correlation id."""
    return facts.correlation_id


def last_updated(facts: Facts) -> float | None:
    """When the record last changed, in seconds since the epoch."""
    return None if facts.last_updated_ms is None else facts.last_updated_ms / 1000


FUNCTIONS: Final = (
    Function("MESSAGE_SIZE", message_size, 0, 0, "facts"),
    Function("SOW_KEY", sow_key, 0, 0, "facts"),
    Function("TOPIC_NAME", topic_name, 0, 0, "facts"),
    Function("CORRELATION_ID", correlation_id, 0, 0, "facts"),
    Function("LAST_UPDATED", last_updated, 0, 0, "facts"),
)
