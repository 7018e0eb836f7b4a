"""A dead letter: the record of a dead-letter topic, and the input record it was made of."""

from __future__ import annotations

from typing import NamedTuple

from processor.record import Header, Headers, Name, Outgoing, Record

_ADDED = (Name.DLQ_REASON, Name.DLQ_DETAIL, Name.SOURCE)
_ADDED_TO_CUT = (Name.DLQ_BYTES, Name.DLQ_SHA256, Name.DLQ_TRUNCATED)


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
    whole_bytes: int | None = None
    """Bytes of the input record's value where the letter has only a part of the record; None: it has all of it."""
    sha256: str | None = None
    """The checksum of that value, as hexadecimal digits."""

    @property
    def is_whole(self) -> bool:
        """Whether it has all of the input record."""
        return self.whole_bytes is None


def read_letter(partition: int, record: Record) -> DeadLetter:
    """Tell what the worker put on from what was there: the publisher may have used the same names."""
    headers = list(record.headers or ())
    whole_bytes = sha256 = None
    # Ours come last: a publisher's of these names stand before the reason.
    if tuple(name for name, _ in headers[-3:]) == _ADDED_TO_CUT:
        size, sha256, _ = (_taken(headers, name) for name in _ADDED_TO_CUT)
        whole_bytes = int(size) if size is not None and size.isdecimal() else 0
    reason, detail, source = (_taken(headers, name) for name in _ADDED)
    return DeadLetter(partition, record, headers, reason, detail, source, whole_bytes, sha256)


def input_record(letter: DeadLetter, topic: str, whole: Record | None = None) -> Outgoing:
    """The input record to send again: as it was, with a header that says what it repeats.

    Args:
        letter: the dead letter.
        topic: the Kafka topic it is in; its place there stands in for a source that it lacks.
        whole: the input record itself, where the letter has only a part of it.
    """
    source = letter.source or f"{topic}/{letter.partition}/{letter.record.offset}"
    record, theirs = (letter.record, letter.headers) if whole is None else (whole, whole.headers or [])
    headers: Headers = [header for header in theirs if header[0] != Name.REPLAY_OF]
    return record.key, record.value, [*headers, (Name.REPLAY_OF, source.encode())]


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
