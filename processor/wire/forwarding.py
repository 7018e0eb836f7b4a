r"""Commands and topics that move: the place where a forwarded command came in, and the mark of a topic that has moved.

The place is the middle of header `source`, `topic/place/offset`.

==============  ===================================================================================================
place           meaning
==============  ===================================================================================================
`3`             it came into partition 3 of this topic, whose worker sent it to the key's own partition
`moved-3`       it came into partition 3 of the topic that has moved here
`moved-3-1`     the same; there it had been sent from partition 1 to partition 3
`7-moved-3`     it was forwarded to partition 7 without a Kafka key, whose worker sent it to the key's own partition
==============  ===================================================================================================

The numbers of one publisher are in order for each place, and the marks of sequences are kept by place. A `+` after the
offset says that the number was refused there before, and has been mended: the key's own partition has not taken it.

A mark ends each partition of a topic that has moved::

    key      \0sowstream/moved/orders_12
    value    none
    headers  version 1, sowstream_moved_to orders_12

Workers, clients and gateways refuse a command under a key that begins with `\0sowstream/`. But a key alone is no mark:
a record may have got such a key from an earlier version, and a row of a view has the key that its fields make. A mark
is a tombstone with exactly these headers: `sowstream_moved_to` never travels on from a publisher, and the tombstones of
workers, which copies of a topic pass on, have a header `kind`. Earlier versions wrote the mark without
`sowstream_moved_to`.

Readers of ours stop at a mark with an error that names the topic. To others it is a delete of a key that never was.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from processor.errors import RecordRejected
from processor.wire.headers import Name, last_value

if TYPE_CHECKING:
    from processor.record import Header, Headers, Outgoing


MOVED: Final = b"moved-"
"""The part of a place before the partition of a topic that has moved."""

_MENDED: Final = b"+"

_MOVED_FROM: Final = re.compile(rb"moved-([0-9]+)")
_PLACE: Final = re.compile(rb"(?:moved-)?[0-9]{1,5}(?:-(?:moved-)?[0-9]{1,5}){0,5}")


def came_in(source: bytes, own_source: bytes) -> bytes:
    """Return the place where a forwarded command came in; empty for one that was published where it is.

    Args:
        source: its header `source`; empty where it has none.
        own_source: the input topic that it is in, and a `/`.
    """
    if not source.startswith(own_source):
        return b""
    place = source[len(own_source) :].split(b"/")[0]
    # A source that no worker wrote is ignored: a mark's name may not grow by it.
    return place if _PLACE.fullmatch(place) else b""


def is_mended(source: bytes) -> bool:
    """Return whether a forwarded command has a number that was refused where it came in.

    Args:
        source: its header `source`.
    """
    return source.endswith(_MENDED)


def moved_partition(source: bytes) -> int | None:
    """Return the partition where a command of a moved topic came in there; None for any other command.

    Args:
        source: its header `source`.
    """
    if MOVED not in source:
        return None
    place = source.rpartition(b"/")[0].rpartition(b"/")[2]
    if _PLACE.fullmatch(place) is None or (found := _MOVED_FROM.search(place)) is None:
        return None
    return int(found[1])


def forwarded_header(
    kafka_topic: str, partition: int, offset: int, before: bytes = b"", *, is_mended: bool = False
) -> Header:
    """Return header `source` of a command that a worker sends to the key's own partition.

    Args:
        kafka_topic: the input topic, which is also where it is sent.
        partition: the partition where the worker has read it.
        offset: its offset there.
        before: the place where it had come in before, of a command of a moved topic.
        is_mended: whether its number was refused there before.
    """
    place = b"%d-%b" % (partition, before) if MOVED in before else b"%d" % partition
    return Name.SOURCE, b"%b/%b/%d%b" % (kafka_topic.encode(), place, offset, _MENDED if is_mended else b"")


def moved_headers(
    headers: Headers, kafka_topic: str, own_source: bytes, partition: int, offset: int, *, is_text_now: bool
) -> Headers:
    """Return the headers of a command that is sent on to another topic, which has taken the place of its own.

    Args:
        headers: its headers as it was published.
        kafka_topic: the input topic that it is sent to.
        own_source: the input topic that it came into, and a `/`.
        partition: its partition there.
        offset: its offset there.
        is_text_now: its Kafka key was in another format than text; it is a text now, which the header shows.
    """
    names = {name for name, _ in headers}
    if not is_text_now and names.isdisjoint(_NEED_PLACE):
        return headers
    source_before = last_value(headers, Name.SOURCE) or b""
    before, mended = came_in(source_before, own_source), _MENDED if is_mended(source_before) else b""
    source = b"%b/%b/%d%b" % (kafka_topic.encode(), moved_place(partition, before), offset, mended)
    return [*(header for header in headers if header[0] != Name.SOURCE), (Name.SOURCE, source)]


def moved_place(partition: int, before: bytes) -> bytes:
    """Return the place of commands that came into a partition of a topic that has moved.

    Args:
        partition: the partition there.
        before: the place where they had come in before; may be empty.
    """
    return b"%b%d" % (MOVED, partition) + (b"-" + before if before else b"")


def sequence_mark(place: bytes, client: bytes) -> bytes:
    """Return the name of the mark with a client's highest number; `place` is where its commands came in."""
    return b"sequence/%b/%b" % (place, client)


def is_mark_of(name: bytes, client: bytes) -> bool:
    """Return whether a mark is a client's, of commands that came in anywhere."""
    parts = name.split(b"/", 2)
    return len(parts) == 3 and parts[0] == b"sequence" and parts[2] == client


def moved_mark(name: bytes, partition: int) -> bytes | None:
    """Return the name that a mark of a moved topic's partition has in the topic that takes its place.

    Returns:
        The name; None for a mark of another kind, which does not move.
    """
    kind, *rest = name.split(b"/", 2)
    if kind != b"sequence" or len(rest) != 2:
        return None
    place, client = rest
    return sequence_mark(moved_place(partition, place), client)


_NEED_PLACE: Final = frozenset((Name.SEQUENCE, Name.ACK_TYPE, Name.SOURCE))
"""Headers of a command whose place matters: for its number, for its ack, or because it has come from another one."""

RESERVED: Final = b"\0sowstream/"
"""The beginning of the keys that no publisher may write."""

MOVED_RETENTION_MS: Final = 100 * 365 * 86_400_000
"""`delete.retention.ms` of the SOW topic of a topic that has moved: a hundred years.

A longer time is not safe: Kafka adds it to the present time, and removes the marks at once where the sum is too large.
"""

_BEGINNING: Final = RESERVED + b"moved/"
_VERSION: Final = (Name.VERSION, b"1")


def refuse_reserved(key: bytes) -> None:
    """Refuse a command under a key that only Sowstream writes.

    Raises:
        RecordRejected: `missing_key`: it is such a key.
    """
    if key.startswith(RESERVED):
        raise RecordRejected("missing_key", f"the key {key!r:.100} begins with {RESERVED!r}, which is reserved")


def moved_record(name: str) -> Outgoing:
    """Return the mark of a topic whose place the topic of this name has taken."""
    return _BEGINNING + name.encode(), None, [_VERSION, (Name.MOVED_TO, name.encode())]


def moved_to(key: bytes | None, headers: Headers | None) -> str | None:
    """Return the topic that a tombstone names; None for one that is no mark.

    Args:
        key: the key of the tombstone, which is in a SOW or delta topic.
        headers: its headers.
    """
    if key is None or not key.startswith(_BEGINNING):
        return None
    name = key[len(_BEGINNING) :]
    if list(headers or ()) not in ([_VERSION, (Name.MOVED_TO, name)], [_VERSION]):
        return None
    return name.decode(errors="replace")
