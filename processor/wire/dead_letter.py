"""A rejected command: its dead letter, the input record that one is made of, and the headers that can still be read."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from processor.errors import RecordRejected
from processor.record import Headers, Outgoing, Record
from processor.wire.ack import ACK_TYPES, TEXT_BYTES_MAX
from processor.wire.command import ack_types
from processor.wire.forwarding import moved_partition
from processor.wire.headers import Name, read_number, read_shown_text
from processor.wire.publisher_headers import replay_headers

_ADDED = (Name.DLQ_REASON, Name.DLQ_DETAIL, Name.SOURCE)
_ADDED_TO_CUT = (Name.DLQ_BYTES, Name.DLQ_SHA256, Name.DLQ_TRUNCATED)


class DeadLetter(NamedTuple):
    """One record of a dead-letter topic; one that was written by hand may lack any part."""

    partition: int
    """The partition it is in: the same number as the input record's."""
    record: Record
    """The record of the dead-letter topic; its timestamp is the time of the rejection."""
    headers: Headers
    """Those of the input record."""
    reason: str | None
    """Reason of the rejection, one of the closed list."""
    detail: str | None
    """The reason as a sentence."""
    source: str | None
    """`topic/partition/offset` of the input record."""
    whole_bytes: int | None = None
    """Bytes of the input record's value where the letter has only a part of the record; None: it has all of it."""
    sha256: str | None = None
    """The checksum of that value, as hexadecimal digits."""

    @property
    def is_whole(self) -> bool:
        """True if it has all of the input record."""
        return self.whole_bytes is None


def read_letter(partition: int, record: Record) -> DeadLetter:
    """Separate the headers that the worker added from the publisher's, which may have the same names."""
    headers = list(record.headers or ())
    whole_bytes = sha256 = None
    # Ours come last: a publisher's of these names stand before the reason.
    if tuple(name for name, _ in headers[-3:]) == _ADDED_TO_CUT:
        size, checksum, _ = (_taken(headers, name) for name in _ADDED_TO_CUT)
        sha256 = read_shown_text(checksum)
        whole_bytes = read_number(size) or 0
    reason, detail, source = (read_shown_text(_taken(headers, name)) for name in _ADDED)
    return DeadLetter(partition, record, headers, reason, detail, source, whole_bytes, sha256)


def input_record(letter: DeadLetter, topic: str, whole: Record | None = None) -> Outgoing:
    """The input record to send again: unchanged, with a header that names the record it repeats.

    Args:
        letter: the dead letter.
        topic: the Kafka topic it is in; its place there stands in for a source that it lacks.
        whole: the input record itself, where the letter has only a part of it.
    """
    source = letter.source or f"{topic}/{letter.partition}/{letter.record.offset}"
    record, theirs = (letter.record, letter.headers) if whole is None else (whole, whole.headers or [])
    return record.key, record.value, replay_headers(theirs, source)


def reason_headers(reason: str, detail: bytes, source: str) -> Headers:
    """Return the headers that every dead letter has after those of its input record."""
    return [(Name.DLQ_REASON, reason.encode()), (Name.DLQ_DETAIL, detail), (Name.SOURCE, source.encode())]


def cut_headers(value: bytes) -> Headers:
    """Return the headers of a dead letter that has only a part of the input record with this value."""
    return [
        (Name.DLQ_BYTES, b"%d" % len(value)),
        (Name.DLQ_SHA256, hashlib.sha256(value).hexdigest().encode()),
        (Name.DLQ_TRUNCATED, b"true"),
    ]


def _taken(headers: Headers, name: str) -> bytes | None:
    """Remove the last header of this name; return its value."""
    for index in range(len(headers) - 1, -1, -1):
        if headers[index][0] == name:
            return headers.pop(index)[1]
    return None


class ReadableCommand(NamedTuple):
    """The readable headers of a command that was rejected, for the answer to its publisher."""

    acks: tuple[str, ...]
    """The acks asked for, as far as they are known types."""
    client: bytes
    """The publisher's name; empty where there is none, and where it is too long for an ack."""
    command_id: bytes
    """The command's id, likewise."""
    sequence: int
    """The command's number; -1 where there is none, and where it is no number."""
    is_delete: bool
    """True if it is a delete."""
    moved_from: int | None = None
    """The partition of a topic that has moved here, if it came from there."""


def read_leniently(record: Record) -> ReadableCommand | None:
    """Read the headers of a rejected command, which may be the reason of the rejection; None if it wants no ack.

    A text that is longer than it may be is left out: an ack that Kafka does not take would stop the worker for ever.
    """
    by_name: dict[str, bytes] = {name: value or b"" for name, value in record.headers or ()}
    types = by_name.get(Name.ACK_TYPE)
    if types is None:
        return None
    client, command_id = (_short_or_none(by_name.get(name, b"")) for name in (Name.CLIENT, Name.COMMAND_ID))
    sequence = read_number(by_name.get(Name.SEQUENCE))
    is_delete = record.value is None or by_name.get(Name.COMMAND) == b"sow_delete"
    moved_from = moved_partition(by_name.get(Name.SOURCE, b""))
    number = -1 if sequence is None else sequence
    return ReadableCommand(_known_types(types), client, command_id, number, is_delete, moved_from)


def _short_or_none(text: bytes) -> bytes:
    return text if len(text) <= TEXT_BYTES_MAX else b""


def _known_types(value: bytes) -> tuple[str, ...]:
    """Return the known ack types that a header lists, and leave out its other words."""
    try:
        return ack_types(value)
    except RecordRejected:
        words = {word.strip() for word in value[:TEXT_BYTES_MAX].decode(errors="replace").split(",")}
        return tuple(word for word in ACK_TYPES if word in words)
