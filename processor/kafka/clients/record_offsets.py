"""Finds the records between two offsets: offsets are also those of transaction markers and of compacted records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.errors import Stop
from processor.kafka.clients.log_reader import BOUNDED_FETCH_WAIT_MS, LogReader, Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Place: TypeAlias = tuple[str, int]
"""A topic and a partition number."""

RANGE_MAX: Final = 10_000
"""Most offsets of a range that are looked at; in a longer one the markers hardly count."""
_TIMEOUT_S: Final = 5.0
_READ_MAX: Final = 500
_READ_S: Final = 0.2


def record_offsets(
    kafka: Mapping[str, str], group: str, ranges: Mapping[Place, tuple[int, int]]
) -> dict[Place, Sequence[int]]:
    """Return the offsets of the committed records in ranges of partitions.

    Args:
        kafka: librdkafka properties.
        group: the reader's name for the brokers; the group is never joined.
        ranges: the first offset of each range, and the one after its last.

    Returns:
        The offsets in each range, in order. A range that is empty or longer than `RANGE_MAX` is missing, and one that
        could not be read in five seconds, as behind an open transaction or without the right to read.
    """
    ends = {place: end for place, (begin, end) in ranges.items() if 0 < end - begin <= RANGE_MAX}
    if not ends:
        return {}
    offsets: dict[Place, list[int]] = {place: [] for place in ends}
    waiting = set(ends)
    reader = LogReader(kafka, group=group, collects_trouble=True, fetch_wait_ms=BOUNDED_FETCH_WAIT_MS)
    try:
        reader.add(Position(*place, ranges[place][0]) for place in ends)
        until_s = time.monotonic() + _TIMEOUT_S
        while waiting and time.monotonic() < until_s:
            result = reader.read(_READ_MAX, _READ_S)
            for message in result.messages:
                place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
                if offset < ends[place]:
                    offsets[place].append(offset)
                else:
                    waiting.discard(place)
            waiting.difference_update((end.topic, end.partition) for end in result.ends)
            for place in reader.take_troubled():
                waiting.discard(place)
                offsets.pop(place, None)
    except Stop:
        return {}  # The caller's numbers of offsets stand.
    finally:
        reader.close()
    return {place: found for place, found in offsets.items() if place not in waiting}
