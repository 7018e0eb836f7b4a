"""Kafka's messages as records that keep of their headers only those that messages are made of.

A snapshot of millions comes through here, and stays in memory: so no step of Python's for each record, and one object
for all headers that say the same. That is half the memory and half the time of `processor.kafka.message.records`. A
record with its version alone, or that and its kind, shares them with others. Headers that differ from record to record,
such as `expires_at`, `sequence` or a trace, take about 100 bytes each besides their text, and 70 for the record.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final, cast

from processor.kafka.message import Message
from processor.record import Record
from processor.wire.metadata import is_kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from processor.record import Header, Headers

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
    """The headers that are kept, by all headers of a record."""

    def __init__(self) -> None:
        self._same: dict[tuple[Header, ...], tuple[Header, ...]] = {}
        self._same_one: dict[Header, Header] = {}

    def __missing__(self, headers: tuple[Header, ...]) -> tuple[Header, ...]:
        kept = tuple([self._one(header) for header in headers if is_kept(header[0])])
        kept = self._same.get(kept, kept)
        if len(self._same) < _KEPT_MAX:
            self._same[kept] = kept
        if len(self) < _KEPT_MAX:  # Most are never met again where they have a time or an offset.
            self[headers] = kept
        return kept

    def _one(self, header: Header) -> Header:
        """One object for headers that are equal, and one name for those that are not."""
        if (same := self._same_one.get(header)) is not None:
            return same
        name, value = header
        header = (sys.intern(name), value)
        if len(self._same_one) < _KEPT_MAX:
            self._same_one[header] = header
        return header


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
