"""confluent_kafka's message, and its conversion to our records."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from confluent_kafka import Message

from processor.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.record import Header, Headers

_Place = TypeVar("_Place")

# Record(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__

__all__ = ["Columns", "Message", "by_log", "by_partition", "columns", "records"]


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


def records(messages: Iterable[Message]) -> list[Record]:
    """Convert messages of one partition to records."""
    return [
        _new(Record, (message.key(), message.value(), message.headers(), message.offset(), message.timestamp()[1]))
        for message in messages
    ]
