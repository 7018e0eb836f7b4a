"""The filter of a queue: which merged records become its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from processor.api import Codec
    from processor.config import QueueConfig
    from processor.filter import Filter


def check_queue(name: str, settings: QueueConfig, codec: Codec | None) -> None:
    """Refuse a filter that cannot be used.

    Raises:
        ConfigurationError: it cannot be read, its records have no fields, or its answer changes by itself.
    """
    if (selected := compile_selection(name, settings)) is None:
        return
    if selected.moves_by_itself:
        raise ConfigurationError(
            f"queues.{name}.filter: {selected.text}: what it finds changes with the clock, and a record is looked at "
            "once, when it is merged; filter by a field of the record"
        )
    if codec is not None and not codec.can_delta:
        raise ConfigurationError(
            f"queues.{name}.filter: the records of {settings.underlying} have no fields to look at; remove it"
        )


def compile_selection(name: str, settings: QueueConfig) -> Filter | None:
    """Compile the filter of a queue; None if it has all records.

    Raises:
        ConfigurationError: it cannot be read.
    """
    from processor.filter import compile_filter  # noqa: PLC0415 - rare, and costly to import on Spark

    if settings.filter is None:
        return None
    try:
        return compile_filter(settings.filter)
    except ConfigurationError as error:
        raise ConfigurationError(f"queues.{name}.filter: {error}") from None
