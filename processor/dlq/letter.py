"""A dead letter: the record of a dead-letter topic, and the input record it was made of."""

from __future__ import annotations

from typing import NamedTuple

from processor.record import Header, Headers, Name, Outgoing, Record

_ADDED = (Name.DLQ_REASON, Name.DLQ_DETAIL, Name.SOURCE)


class DeadLetter(NamedTuple):
    """One record of a dead-letter topic; who wrote it there by hand may have left out anything."""

    partition: int
    """The partition it is in: the same number as the input record's."""
    record: Record
    """As it stands there; its timestamp is when it was rejected."""
    headers: Headers
    """Those of the input record."""
    reason: str | None
    """Why it was rejected, one of the closed list."""
    detail: str | None
    """The same as a sentence."""
    source: str | None
    """`topic/partition/offset` of the input record."""


def read_letter(partition: int, record: Record) -> DeadLetter:
    """Tell what the worker put on from what was there: the publisher may have used the same names."""
    headers = list(record.headers or ())
    reason, detail, source = (_taken(headers, name) for name in _ADDED)
    return DeadLetter(partition, record, headers, reason, detail, source)


def input_record(letter: DeadLetter, topic: str) -> Outgoing:
    """The input record to send again: as it was, with a header that says what it repeats.

    Args:
        letter: the dead letter.
        topic: the Kafka topic it is in; its place there stands in for a source that it lacks.
    """
    source = letter.source or f"{topic}/{letter.partition}/{letter.record.offset}"
    headers: Headers = [header for header in letter.headers if header[0] != Name.REPLAY_OF]
    return letter.record.key, letter.record.value, [*headers, (Name.REPLAY_OF, source.encode())]


def _taken(headers: Headers, name: str) -> str | None:
    """Take off the last header of this name; its text."""
    for index in range(len(headers) - 1, -1, -1):
        if headers[index][0] == name:
            return _text(headers.pop(index))
    return None


def _text(header: Header) -> str | None:
    """A header's value as people read it."""
    value = header[1]
    return None if value is None else value.decode(errors="backslashreplace")
