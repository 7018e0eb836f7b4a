"""confluent_kafka's message, and its conversion to our records.

Anybody can write a header whose name is not UTF-8. confluent_kafka (2.16.1) then leaves a hole in its list of headers,
and sets an exception that is raised by the same call, by a later one, or by none. So every reader passes its messages
through `with_readable_headers` before anything else sees them.
"""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from confluent_kafka import Message

from processor.record import Record
from processor.wire.headers import UNREADABLE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.record import Header, Headers

_Place = TypeVar("_Place")

# Record(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__

__all__ = [
    "Columns",
    "Message",
    "by_log",
    "by_partition",
    "columns",
    "readable_records",
    "records",
    "with_readable_headers",
]


class Columns(NamedTuple):
    """The messages of one partition as columns, without an object for each message, for callers with very many."""

    keys: list[bytes | None]
    """Their keys."""
    values: list[bytes | None]
    """Their values; None for a tombstone."""
    headers: list[tuple[Header, ...]]
    """Their headers; as tuples they can be dictionary keys."""
    next_offset: int
    """The offset after the last of them."""
    timestamp_ms: int
    """The time of the last one, milliseconds since the epoch."""


def with_readable_headers(messages: Sequence[Message]) -> Sequence[Message]:
    """Convert the headers of messages that a consumer has just returned, so that no later call can fail.

    A header name that is not UTF-8 becomes `UNREADABLE_NAME`; its value, and all other headers, stay as they are.
    """
    try:
        # `map` checks the result of each call, where compiled calls of a loop may not; 25 ns for each message.
        deque(map(Message.headers, messages), 0)
    except Exception:  # noqa: BLE001 - Whatever it is, it concerns the headers of one record.
        for message in messages:
            _mend_headers(message)
    return messages


def _mend_headers(message: Message) -> None:
    """Replace the names of headers that cannot be read."""
    for _ in range(2):  # The second call returns the list that the first one left unfinished.
        with contextlib.suppress(Exception):
            (headers,) = map(Message.headers, (message,))
            break
    else:
        message.set_headers([(UNREADABLE_NAME, None)])
        return
    # A hole must be neither read nor unpacked, as there is no object; the garbage collector knows how to pass it by.
    pairs = cast("Headers", headers or [])
    referents = [gc.get_referents(pair) for pair in pairs]
    if any(len(row) == 1 for row in referents):
        rows = zip(pairs, referents, strict=True)
        message.set_headers([pair if len(row) == 2 else (UNREADABLE_NAME, row[0]) for pair, row in rows])


def by_partition(messages: Sequence[Message]) -> dict[int, list[Message]]:
    """The messages of each partition, in order."""
    return _by_runs(cast("Iterable[int]", map(Message.partition, messages)), messages)


def by_log(messages: Sequence[Message]) -> dict[tuple[str, int], list[Message]]:
    """The messages of each partition of each topic, in order."""
    topics, partitions = map(Message.topic, messages), map(Message.partition, messages)
    return _by_runs(cast("Iterable[tuple[str, int]]", zip(topics, partitions, strict=True)), messages)


def _by_runs(places: Iterable[_Place], messages: Sequence[Message]) -> dict[_Place, list[Message]]:
    """The messages of each place, in order; fast for long runs of one place, as fetches bring them."""
    parted: dict[_Place, list[Message]] = {}
    begin = 0
    for place, run in groupby(places):
        end = begin + len(list(run))
        parted.setdefault(place, []).extend(messages[begin:end])
        begin = end
    return parted


def columns(messages: Sequence[Message]) -> Columns:
    """Convert messages of one partition, at least one, to columns."""
    last = messages[-1]
    headers = cast("Iterable[Headers | None]", map(Message.headers, messages))
    return Columns(
        list(map(Message.key, messages)),
        list(map(Message.value, messages)),
        [tuple(each) if each else () for each in headers],
        cast("int", last.offset()) + 1,
        last.timestamp()[1],
    )


def readable_records(messages: Sequence[Message], end: int) -> tuple[list[Record], str]:
    """Convert messages of one partition, up to the first one that cannot be converted.

    Args:
        messages: as a consumer returned them; at least one.
        end: the end of the partition, as the consumer knows it; negative: it does not.

    Returns:
        The records, and the reason why there are no more: empty if there is none.
    """
    try:
        converted = records(messages)
    except Exception:  # noqa: BLE001 - Whatever it is, it concerns one record, which is to be named.
        return _records_before_failure(messages)
    # Brokers take batches whose records have any offsets (4.3, if not compressed): two have the same, or lie ahead.
    first, last = converted[0].offset, converted[-1].offset
    if last - first >= len(converted) - 1 and not 0 <= end <= last:
        return converted, ""
    for place, record in enumerate(converted):
        offset = record.offset
        if 0 <= end <= offset or (place and offset <= converted[place - 1].offset):
            # Less than its own: once a later offset is committed, a retry would pass over this record.
            before = [each for each in converted[:place] if each.offset < offset]
            return before, f"a record says that its offset is {offset}, which it cannot be"
    return converted, ""


def _records_before_failure(messages: Sequence[Message]) -> tuple[list[Record], str]:
    converted: list[Record] = []
    for message in messages:
        try:
            converted += records([message])
        except Exception as error:  # noqa: BLE001
            return converted, f"the record at offset {message.offset()} cannot be converted: {error!r:.300}"
    return converted, ""


def records(messages: Iterable[Message]) -> list[Record]:
    """Convert messages of one partition to records."""
    return [
        _new(Record, (message.key(), message.value(), message.headers(), message.offset(), message.timestamp()[1]))
        for message in messages
    ]
