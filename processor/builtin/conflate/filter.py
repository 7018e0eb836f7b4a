"""The filter of a copy, which selects its records: the setting `filter`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.errors import ConfigurationError
from processor.filter import RecordMetadata, compile_filter
from processor.wire.subscriber_headers import correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.api import Codec, Record, Value
    from processor.config import ConflatedConfig
    from processor.filter import Filter


def check_selection(name: str, settings: ConflatedConfig, codec: Codec | None) -> None:
    """Refuse a filter that cannot be used.

    Raises:
        ConfigurationError: it cannot be read, its records have no fields, or its answer changes by itself.
    """
    if (selected := _compiled(name, settings)) is None:
        return
    if selected.moves_by_itself:
        raise ConfigurationError(
            f"conflated.{name}.filter: {selected.text}: what it finds changes with the clock, and a copy changes with "
            "its topic alone; filter by a field of the record"
        )
    if codec is not None and not codec.can_delta:
        raise ConfigurationError(
            f"conflated.{name}.filter: the records of {settings.underlying} have no fields to look at; remove it"
        )


def selection(name: str, settings: ConflatedConfig) -> Callable[[Value, Record], bool] | None:
    """Return whether a record belongs to the copy; None: every one does."""
    if (selected := _compiled(name, settings)) is None:
        return None
    matches, topic = selected.matches, settings.underlying
    if not selected.uses_metadata:
        return lambda state, _record: matches(state)
    return lambda state, record: matches(state, _facts(record, topic))


def _compiled(name: str, settings: ConflatedConfig) -> Filter | None:
    if settings.filter is None:
        return None
    try:
        return compile_filter(settings.filter)
    except ConfigurationError as error:
        raise ConfigurationError(f"conflated.{name}.filter: {error}") from None


def _facts(record: Record, topic: str) -> RecordMetadata:
    """Return the metadata of a record that filters may use besides its fields."""
    return RecordMetadata(
        message_bytes=len(record.value or b""),
        sow_key=(record.key or b"").decode(errors="replace"),
        topic=topic,
        correlation_id=correlation_id(record.headers) or "",
        last_updated_ms=record.timestamp_ms,
    )
