"""Kafka's messages as records that keep of their headers only what a subscriber is told.

A snapshot of millions comes through here, and stays in memory: so no step of Python's for each record, and one object
for all headers that say the same. That is half the memory and half the time of `processor.kafka.message.records`.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final, cast

from processor.kafka.message import Message
from processor.record import Name, Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from processor.record import Header, Headers

_TOLD: Final = frozenset((Name.VERSION, Name.CORRELATION_ID, Name.KIND, Name.TOUCHED))
_KEPT_MAX: Final = 4096
_NONE: Final[tuple[Header, ...]] = ()
_time_of: Final = itemgetter(1)


class Slim:
    """Makes records; keeps the headers that were met, as few are different."""

    def __init__(self) -> None:
        self._headers = _Headers()

    def records(self, messages: Sequence[Message]) -> list[Record]:
        """The messages of one partition as records, in order."""
        told = self._headers.__getitem__
        rows = zip(
            map(Message.key, messages),
            map(Message.value, messages),
            # Tuples, which no record may change, in a field that is a list elsewhere: they are only looked through.
            [told(tuple(cast("Headers", each))) if each else _NONE for each in map(Message.headers, messages)],
            map(Message.offset, messages),
            map(_time_of, map(Message.timestamp, messages)),
            strict=True,
        )
        return cast("list[Record]", list(map(tuple.__new__, repeat(Record), rows)))


class _Headers(dict[tuple["Header", ...], tuple["Header", ...]]):
    """What is kept of headers, by the headers."""

    def __init__(self) -> None:
        self._same: dict[tuple[Header, ...], tuple[Header, ...]] = {}

    def __missing__(self, headers: tuple[Header, ...]) -> tuple[Header, ...]:
        told = tuple([header for header in headers if header[0] in _TOLD])
        told = self._same.get(told, told)
        if len(self._same) < _KEPT_MAX:
            self._same[told] = told
        if len(self) < _KEPT_MAX:  # Most are never met again where they have a time or an offset.
            self[headers] = told
        return told


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of a batch.

    Records make no cycles, and the collector looks at all of them again and again while they come: two thirds of the
    time a snapshot takes.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
