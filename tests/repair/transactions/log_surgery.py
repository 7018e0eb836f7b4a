"""Changes a stopped broker's disk to the state of KAFKA-20734: a transaction that ended, without its marker."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD = 61  # Of a record batch of format 2.
_CONTROL = 0x20  # Its bit in a batch's attributes.


class Batch(NamedTuple):
    """One batch of a segment."""

    at: int
    size: int
    base_offset: int
    is_control: bool
    producer_id: int


def batches(data: bytes) -> Iterator[Batch]:
    """The batches of a segment, in order."""
    at = 0
    while at + _HEAD <= len(data):
        base_offset, length = struct.unpack_from(">qi", data, at)
        (attributes,) = struct.unpack_from(">h", data, at + 21)
        (producer_id,) = struct.unpack_from(">q", data, at + 43)
        yield Batch(at, 12 + length, base_offset, bool(attributes & _CONTROL), producer_id)
        at += 12 + length


def remove_last_marker(records: Path, topic: str, partition: int, producer_id: int) -> int:
    """Remove a producer's last marker from a partition of a stopped broker; returns the marker's offset.

    Compaction leaves such gaps between offsets as well. The files that Kafka derives from the log are deleted, so that
    they are rebuilt from it.
    """
    directory = records / f"{topic}-{partition}"
    (segment,) = directory.glob("*.log")
    data = segment.read_bytes()
    marker = [one for one in batches(data) if one.is_control and one.producer_id == producer_id][-1]
    segment.write_bytes(data[: marker.at] + data[marker.at + marker.size :])
    for file in directory.iterdir():
        if file.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            file.unlink()
    (records / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return marker.base_offset


def last_producer(records: Path, topic: str, partition: int) -> int:
    """The producer of the last marker of a partition."""
    (segment,) = (records / f"{topic}-{partition}").glob("*.log")
    return [one for one in batches(segment.read_bytes()) if one.is_control][-1].producer_id
