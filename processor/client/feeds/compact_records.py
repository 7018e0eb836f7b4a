"""Converts Kafka's messages to compact records, and leaves out those that cannot be parsed, if the client asks for it.

Compact records keep only the headers that subscribers' messages need.

A snapshot of millions of records comes through here, and stays in memory. So no step of Python runs for each record,
and equal headers share one object. That is half the memory and half the time of `processor.kafka.message.records`. A
record with only a version, or a version and a kind, shares its headers with others. Headers that differ from record to
record, such as `expires_at`, `sequence` or a trace, take about 100 bytes each besides their text, and 70 per record.
"""

from __future__ import annotations

import gc
import logging
import sys
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final, cast

from processor.errors import RecordRejected
from processor.kafka.message import Message
from processor.record import Record
from processor.subscriptions.request.subscribed_topic import key_text
from processor.values import CACHED_SIZE_MAX
from processor.wire.subscriber_headers import is_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from processor.record import Header, Headers
    from processor.subscriptions import Topic


_KEPT_MAX: Final = 4096
_NONE: Final[tuple[Header, ...]] = ()
_time_of: Final = itemgetter(1)


class CompactRecords:
    """Converts messages to records, and keeps the headers seen so far, as few of them are different."""

    def __init__(self) -> None:
        self._headers = _Headers()

    def records(self, messages: Sequence[Message]) -> list[Record]:
        """The messages of one partition as records, in order."""
        shared = self._headers.__getitem__
        rows = zip(
            map(Message.key, messages),
            map(Message.value, messages),
            # Tuples, which no record may change, in a field that is a list elsewhere: they are only read.
            [shared(tuple(cast("Headers", each))) if each else _NONE for each in map(Message.headers, messages)],
            map(Message.offset, messages),
            map(_time_of, map(Message.timestamp, messages)),
            strict=True,
        )
        return cast("list[Record]", list(map(tuple.__new__, repeat(Record), rows)))


class _Headers(dict[tuple["Header", ...], tuple["Header", ...]]):
    """The headers to keep, by all headers of a record."""

    def __init__(self) -> None:
        self._same: dict[tuple[Header, ...], tuple[Header, ...]] = {}
        self._same_one: dict[Header, Header] = {}

    def __missing__(self, headers: tuple[Header, ...]) -> tuple[Header, ...]:
        kept = tuple([self._shared(header) for header in headers if is_kept(header[0])])
        if sum(len(name) + len(value or b"") for name, value in headers) > CACHED_SIZE_MAX:
            return kept
        kept = self._same.get(kept, kept)
        if len(self._same) < _KEPT_MAX:
            self._same[kept] = kept
        if len(self) < _KEPT_MAX:  # Headers with a time or an offset are rarely met again.
            self[headers] = kept
        return kept

    def _shared(self, header: Header) -> Header:
        """One object for equal headers, and one name object for different headers of the same name."""
        if (same := self._same_one.get(header)) is not None:
            return same
        name, value = header
        header = (sys.intern(name), value)
        if len(name) + len(value or b"") <= CACHED_SIZE_MAX and len(self._same_one) < _KEPT_MAX:
            self._same_one[header] = header
        return header


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's garbage collector during a batch.

    Records have no reference cycles, and the collector would traverse all of them again and again while they arrive:
    two thirds of the time of a snapshot.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


KEYS_MAX: Final = 10_000
"""Limit of the keys of one topic that are remembered as left out."""

log = logging.getLogger("sowstream.client")


class SkippedRecords:
    """The records of one topic that were left out: the keys with their reasons. Any thread."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """By key, the reason why its newest record cannot be parsed; at most `KEYS_MAX`."""

    def readable(
        self, topic: Topic, make: Callable[[Sequence[Message]], list[Record]]
    ) -> Callable[[Sequence[Message]], list[Record]]:
        """A function like `make`, but with a tombstone for each record that cannot be parsed.

        Args:
            topic: parses the records.
            make: converts Kafka's messages to records.
        """

        def readable_records(messages: Sequence[Message]) -> list[Record]:
            return [self._readable(topic, record) for record in make(messages)]

        return readable_records

    def _readable(self, topic: Topic, record: Record) -> Record:
        if record.value is not None:
            try:
                topic.decoded(record)
            except RecordRejected as error:
                key = key_text(record)
                if key not in self.reasons and len(self.reasons) < KEYS_MAX:
                    log.warning("%s: the record of key %.100r is left out: %s", topic.name, key, error)
                    self.reasons[key] = str(error)
                return record._replace(value=None)
        if self.reasons:
            self.reasons.pop(key_text(record), None)
        return record
