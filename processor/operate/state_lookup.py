"""Finds the local states below a state directory, counts their records, and looks one up by its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from processor.codec import codec_of
from processor.errors import ConfigurationError, RecordRejected, StateLocked
from processor.store.inspection import StateMarks, disk_bytes, is_state, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from processor.codec import Codec
    from processor.config import Config
    from processor.record import Stored

_COUNT_INTERVAL = 10_000


class StatePlace(NamedTuple):
    """The place of one partition's state."""

    directory: Path
    """Its directory."""
    application: str
    """The application, by its directory."""
    name: str
    """The topic of the settings whose workers wrote it, or one of their internal tables."""
    partition: int
    """The partition."""


class StateSummary(NamedTuple):
    """The content of one partition's state, in figures."""

    place: StatePlace
    """Its place."""
    marks: StateMarks
    """Its format, its origin and its progress."""
    records: int | None
    """Number of records; None: it has a format that this version cannot read."""
    record_bytes: int
    """Bytes of their keys and values, without compression."""
    largest_bytes: int
    """The largest of them."""
    expiring: int
    """Number of records that expire some day."""
    disk_bytes: int
    """Bytes of its files."""


class StateRecord(NamedTuple):
    """One record of a state."""

    place: StatePlace
    """The state that has it."""
    stored: Stored
    """The record."""
    data: Any
    """Its value parsed by the topic's message type; None: no topic of the settings, or not readable."""


def find_states(config: Config, names: Collection[str] = (), partition: int | None = None) -> list[StatePlace]:
    """The states below `state_dir`, of all applications, in order.

    Args:
        config: the settings.
        names: only the states of these topics; none: all.
        partition: only those of this partition.

    Raises:
        ConfigurationError: there is none.
    """
    places = []
    for directory in config.state_dir.glob("*/*/*"):
        if is_state(directory):
            place = StatePlace(directory, directory.parts[-3], directory.parts[-2], int(directory.name))
            if (not names or place.name in names) and partition in (None, place.partition):
                places.append(place)
    if not places:
        of_topics = f" of {', '.join(sorted(names))}" if names else ""
        raise ConfigurationError(
            f"{config.state_dir.absolute()} has no state{of_topics}; name the directory of a worker with "
            "--state-dir, or state_dir in the settings"
        )
    return sorted(places, key=lambda place: (place.application, place.name, place.partition))


def refuse_locked(locked: Collection[StatePlace]) -> None:
    """Report the states that could not be looked at.

    Raises:
        StateLocked: a worker uses some of them.
    """
    if locked:
        shown = ", ".join(str(place.directory) for place in list(locked)[:3])
        more = f" and {len(locked) - 3} more" if len(locked) > 3 else ""
        raise StateLocked(
            f"a running worker uses {shown}{more}; stop it to look inside, or read the same records from Kafka: "
            "sowstream sow, sowstream get"
        )


def summary(place: StatePlace, *, on_read: Callable[[int], None] = lambda _: None) -> StateSummary:
    """Read a state once.

    Raises:
        StateLocked: a worker uses it.
        StateDamaged: it cannot be read.
    """
    with opened(place.directory) as reader:
        marks = reader.marks()
        count = record_bytes = largest = expiring = 0
        if marks.is_readable:
            for key, stored in reader.records():
                size = len(key) + len(stored.value)
                count, record_bytes, largest = count + 1, record_bytes + size, max(largest, size)
                expiring += stored.expires_at_ms > 0
                if count % _COUNT_INTERVAL == 0:
                    on_read(_COUNT_INTERVAL)
    return StateSummary(
        place,
        marks,
        count if marks.is_readable else None,
        record_bytes,
        largest,
        expiring,
        disk_bytes(place.directory),
    )


def look_up(config: Config, place: StatePlace, key: str) -> StateRecord | None:
    """The record of a key in one state; None: it has none.

    Raises:
        StateLocked: a worker uses it.
        StateDamaged: it cannot be read.
    """
    with opened(place.directory) as reader:
        stored = reader.get(key.encode()) if reader.marks().is_readable else None
    if stored is None:
        return None
    codec = codec_for(config, place.name)
    try:
        return StateRecord(place, stored, None if codec is None else codec.decode_own(stored.value))
    except RecordRejected:
        return StateRecord(place, stored, None)


def codec_for(config: Config, name: str) -> Codec | None:
    """The message type of a topic of the settings; None for other names, and for tables in a format of our own."""
    if name in config.topics or name in config.conflated or name in config.views:
        return codec_of(config, name)
    return None
