"""The filter of a setting, which selects the records of a copy, a view or a queue, and the metadata that it may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.errors import ConfigurationError
from processor.filter.evaluation import RecordMetadata
from processor.filter.filter import compile_filter
from processor.values.key_text import text_of_key
from processor.wire.subscriber_headers import correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.filter.filter import Filter
    from processor.record import Headers, Record, Value


def compile_selection(setting: str, text: str | None, *, changes_with: str) -> Filter | None:
    """Compile the filter of a setting; None: it has none.

    Args:
        setting: its full name, such as `conflated.slow.filter`.
        text: the filter.
        changes_with: why its answer must not change with the clock, such as "a copy changes with its topic alone".

    Raises:
        ConfigurationError: it cannot be read, or its answer changes with the clock.
    """
    if text is None:
        return None
    try:
        selected = compile_filter(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{setting}: {error}") from None
    if selected.moves_by_itself:
        raise ConfigurationError(
            f"{setting}: {text}: its answer changes with the clock, and {changes_with}; filter by a field of the record"
        )
    return selected


def require_fields(setting: str, underlying: str, *, can_delta: bool) -> None:
    """Refuse a filter on records that have no fields.

    Raises:
        ConfigurationError: the message type has no fields.
    """
    if not can_delta:
        raise ConfigurationError(f"{setting}: the records of {underlying} have no fields to look at; remove it")


def selects(selected: Filter, topic: str) -> Callable[[Value, Record], bool]:
    """Return the filter as a function of a record's value and the record, which is a SOW record of `topic`."""
    matches = selected.matches
    if not selected.uses_metadata:
        return lambda value, _record: bool(matches(value))
    return lambda value, record: bool(matches(value, metadata_of(record, topic)))


def metadata_of(record: Record, topic: str) -> RecordMetadata:
    """Return the metadata of a SOW record that filters and expressions may use besides its fields."""
    return metadata_of_parts(record.key, record.value, record.headers, topic, record.timestamp_ms)


def metadata_of_parts(
    key: bytes | None, data: bytes | None, headers: Headers | None, topic: str, changed_ms: int | None
) -> RecordMetadata:
    """Return the metadata of a SOW record in parts; `changed_ms` is its time of change, since the epoch."""
    return RecordMetadata(
        message_bytes=len(data or b""),
        sow_key=text_of_key(key),
        topic=topic,
        correlation_id=correlation_id(headers) or "",
        last_updated_ms=changed_ms,
    )
