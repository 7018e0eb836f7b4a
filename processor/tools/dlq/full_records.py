"""Fetches the full record of a truncated dead letter from its input topic."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from processor.kafka.message import records
from processor.kafka.readers.log_reader import LogReader, Position
from processor.record import Record
from processor.wire.dead_letter import DeadLetter

_PATIENCE_S: Final = 30.0
_TRY_S: Final = 0.5


class FullRecordMissing(NamedTuple):
    """The reason why a full record is not available."""

    why: str
    """The event, with the place of the record."""


class FullRecords:
    """Reads single records of the input by the header `source` of their dead letters. One thread only."""

    def __init__(self, kafka: Mapping[str, str], *, group: str, topic: str) -> None:
        """Create the reader, without connecting.

        Args:
            kafka: librdkafka properties.
            group: the reader's consumer group.
            topic: the input; letters of other topics are not looked up.
        """
        # It reads single records; data after them would be discarded.
        self._kafka = {**kafka, "queued.min.messages": "1", "queued.max.messages.kbytes": "1024"}
        self._group = group
        self._topic = topic
        self._reader: LogReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.close()

    def fetch(self, letter: DeadLetter) -> Record | FullRecordMissing:
        """The input record of a letter, if it is still the rejected one.

        Raises:
            Stop: Kafka refuses.
        """
        topic, _, place = (letter.source or "").partition("/")
        partition, _, offset = place.partition("/")
        if topic != self._topic or not partition.isdecimal() or not offset.isdecimal():
            return FullRecordMissing(f"its source {letter.source!r} is no record of {self._topic}")
        record = self._read(int(partition), int(offset))
        if record is None:
            return FullRecordMissing(f"{letter.source} is not there any more")
        if hashlib.sha256(record.value or b"").hexdigest() != letter.sha256:
            return FullRecordMissing(f"{letter.source} is another record now: its checksum is not the letter's")
        return record

    def _read(self, partition: int, offset: int) -> Record | None:
        """The record at a place; None if there is none."""
        if self._reader is None:
            self._reader = LogReader(self._kafka, group=self._group)
        reader, deadline_s = self._reader, time.monotonic() + _PATIENCE_S
        try:
            low, end = reader.bounds(self._topic, partition, _PATIENCE_S)
        except TimeoutError:
            return None
        if not low <= offset < end:
            return None
        reader.add([Position(self._topic, partition, offset)])
        try:
            while time.monotonic() < deadline_s:
                read = reader.read(1, _TRY_S)
                for record in records(read.messages):
                    return record if record.offset == offset else None
                if read.ends:
                    return None
        finally:
            reader.remove(self._topic, partition)
        return None
