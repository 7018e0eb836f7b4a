"""Reads ranges of partitions, from one offset up to another, such as all records that were there at one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from processor.errors import BrokerUnavailable, Stop
from processor.kafka.message import by_partition
from processor.kafka.readers.log_reader import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from processor.kafka.message import Message
    from processor.kafka.readers.log_reader import LogReader

_READ_MAX: Final = 10_000
_WAIT_S: Final = 0.1  # Longest wait in one call, so that Ctrl-C takes effect.
_ASK_TIMEOUT_S: Final = 15.0


def oldest_offsets(reader: LogReader, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """The oldest offset kept of each partition.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    try:
        return {partition: reader.bounds(topic, partition, _ASK_TIMEOUT_S)[0] for partition in partitions}
    except TimeoutError:
        raise BrokerUnavailable(
            f"reading {topic}: no answer in {_ASK_TIMEOUT_S:g} s; `sowstream doctor` looks closer"
        ) from None


def read_range(
    reader: LogReader, topic: str, begins: Mapping[int, int], ends: Mapping[int, int], *, stall_timeout_s: float
) -> Iterator[tuple[int, list[Message]]]:
    """The committed records of a range, in batches of one partition each, in order per partition.

    Args:
        reader: reads none of these partitions.
        topic: the Kafka topic.
        begins: the first offset of each partition.
        ends: the offset after the last one of each partition, open transactions included.
        stall_timeout_s: longest time without a record.

    Raises:
        Stop: a partition cannot be read, or there was no progress for too long.
    """
    todo = {partition: end for partition, end in ends.items() if end > begins[partition]}
    reader.add(Position(topic, partition, begins[partition]) for partition in todo)
    moved_s = time.monotonic()
    while todo:
        # Reading many at once would wait until there are as many.
        messages: list[Message] = []
        reached: dict[int, int] = {}
        for read in (reader.read(1, _WAIT_S), reader.read(_READ_MAX, 0)):
            messages += read.messages
            # The end of a partition may consist of markers and aborted records only, for which no message arrives.
            reached |= {position.partition: position.offset for position in read.ends}
        if messages:
            moved_s = time.monotonic()
        elif time.monotonic() - moved_s > stall_timeout_s:
            raise Stop(_stalled(topic, todo, stall_timeout_s))
        for partition, batch in by_partition(messages).items():
            last = batch[-1].offset() or 0
            reached[partition] = max(reached.get(partition, 0), last + 1)
            end = ends[partition]
            yield partition, batch if last < end else [message for message in batch if (message.offset() or 0) < end]
        for partition, offset in reached.items():
            if partition in todo and offset >= todo[partition]:
                del todo[partition]
                reader.remove(topic, partition)


def read_up_to(reader: LogReader, topic: str, ends: Mapping[int, int], *, stall_timeout_s: float) -> list[Message]:
    """Every committed record of a small topic up to these ends, by partition; closes the reader afterwards.

    Raises:
        BrokerUnavailable: no answer in time.
        Stop: Kafka refuses, or the topic cannot be read to its end in time.
    """
    try:
        begins = oldest_offsets(reader, topic, ends)
        batches = read_range(reader, topic, begins, ends, stall_timeout_s=stall_timeout_s)
        return [message for _, batch in batches for message in batch]
    finally:
        reader.close()


def _stalled(topic: str, todo: Iterable[int], stall_timeout_s: float) -> str:
    partitions = ", ".join(str(partition) for partition in sorted(todo))
    return (
        f"reading {topic}: nothing came from partition {partitions} for {stall_timeout_s:g} s, though there is more. A "
        "transaction that is open holds readers back. Try again in a minute: Kafka ends what a dead worker left open. "
        "What is open for longer, `sowstream transactions list` finds"
    )
