"""Checks the records that readers see after a transaction was ended from outside.

Each update of a key has a version, one more than the one before. So if the SOW record of a key has the version of its
last delta, and no version is missing among the deltas, a view that follows the deltas has the record of SOW. Both
topics have every update, because the end of a transaction makes its records visible together, in all partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.hosting.configured_pipelines import pipeline_of
from processor.kafka.readers.log_reader import LogReader
from processor.kafka.readers.range_reader import oldest_offsets, read_range
from processor.kafka.transactions.open_ranges import read_uncommitted
from processor.tools.open_transactions.find import reader_group
from processor.tools.open_transactions.versions import base_of, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.config import Config
    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.kafka.transactions.open_ranges import OpenRange

_BEFORE_MS: Final = 60_000  # Deltas of the same transaction are at most this much older than its first SOW record.
_STALL_TIMEOUT_S: Final = 60.0


class KeyInQuestion(NamedTuple):
    """A key that the transaction wrote to, and its versions for readers of committed records."""

    partition: int
    """Its partition."""
    key: bytes
    """The Kafka key."""
    written: int
    """The last version that the transaction wrote; 0: only a delete."""
    sow: int | None
    """The version of its SOW record now; 0: it was deleted. None: the topic has no SOW."""
    delta: int | None
    """The version of its last delta now; 0: it was deleted. None: the deltas have expired."""
    problem: str
    """The problem of the key; empty if there is none."""


class Aftermath:
    """The keys of transactions that are about to be ended, up to the ends that their partitions have before."""

    def __init__(self, config: Config, admin: Admin, name: str, ranges: Iterable[OpenRange]) -> None:
        """Read the keys that the transactions wrote to.

        Raises:
            Stop: the topics cannot be read.
        """
        self._config, self._admin = config, admin
        pipeline = pipeline_of(config, name)
        self._sow = pipeline.output("sow") if "sow" in pipeline.roles else None
        self._delta = pipeline.output("delta") if "delta" in pipeline.roles else None
        self._ranges = [open_range for open_range in ranges if open_range.topic in (self._sow, self._delta)]
        self._written: dict[tuple[int, bytes], int] = {}
        partitions = sorted({open_range.partition for open_range in self._ranges})
        # No worker writes after these ends before the transactions have ended: both topics are compared at one moment.
        self._ends = {
            topic: admin.end_offsets(topic, partitions) if partitions else {}
            for topic in (self._sow, self._delta)
            if topic is not None
        }
        begins = {(open_range.topic, open_range.partition): open_range.begin for open_range in self._ranges}
        ends = {(open_range.topic, open_range.partition): open_range.end for open_range in self._ranges}
        for message in read_uncommitted(config.kafka, begins, ends, group=reader_group(config)):
            if (key := message.key()) is not None:
                self._written[message.partition() or 0, key] = version_of(message)

    def read_versions(self) -> list[KeyInQuestion]:
        """The present versions of these keys for committed readers, in order, each in its partition.

        Raises:
            Stop: the topics cannot be read.
        """
        problems: dict[tuple[int, bytes], str] = {}
        if not self._written or self._sow is None or self._delta is None:
            # Messages of a topic without a SOW have no versions.
            return [KeyInQuestion(*place, written, None, None, "") for place, written in sorted(self._written.items())]
        sow = self._last(self._sow, problems=None)
        delta = self._last(self._delta, problems=problems)
        return [
            self._judged(place, written, sow.get(place), delta.get(place), problems.get(place, ""))
            for place, written in sorted(self._written.items())
        ]

    def _judged(
        self, place: tuple[int, bytes], written: int, sow: int | None, delta: int | None, problem: str
    ) -> KeyInQuestion:
        if not problem and sow != delta:
            problem = f"SOW has {_version_text(sow)}, the deltas end with {_version_text(delta)}"
        return KeyInQuestion(*place, written, sow, delta, problem)

    def _last(self, topic: str, problems: dict[tuple[int, bytes], str] | None) -> dict[tuple[int, bytes], int]:
        """The last version of each key in a topic, up to the ends; with `problems`, gaps between versions too."""
        ends = self._ends[topic]
        reader = LogReader(self._config.kafka, group=reader_group(self._config))
        last: dict[tuple[int, bytes], int] = {}
        try:
            begins = self._begins(reader, topic, ends)
            for partition, batch in read_range(reader, topic, begins, ends, stall_timeout_s=_STALL_TIMEOUT_S):
                for message in batch:
                    place = partition, message.key() or b""
                    if place not in self._written:
                        continue
                    if problems is not None and (gap := _gap(message, last.get(place))):
                        problems.setdefault(place, gap)
                    last[place] = version_of(message)
        finally:
            reader.close()
        return last

    def _begins(self, reader: LogReader, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The offsets at which reading starts: some time before the first open record."""
        oldest = oldest_offsets(reader, topic, partitions)
        since_ms = min(open_range.since_ms for open_range in self._ranges) - _BEFORE_MS
        since = reader.at_time(topic, oldest, max(0, since_ms), _STALL_TIMEOUT_S)
        return {partition: max(first, since[partition] or first) for partition, first in oldest.items()}


def _gap(message: Message, before: int | None) -> str:
    """The gap before a delta, if the delta before it is known."""
    base = base_of(message)
    return (
        "" if before is None or base == before else f"a delta for {_version_text(base)} follows {_version_text(before)}"
    )


def _version_text(version: int | None) -> str:
    return "nothing" if version is None else "a delete" if version == 0 else f"version {version}"
