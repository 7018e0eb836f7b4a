"""Ends transactions that stand open, as their coordinator decided, and checks the records that readers see then.

A partition's leader refuses a marker with an older epoch than that of the last writer. So if the producer has come back
since, or another one has its transactional id, none of its new transactions can be ended by mistake. If it has not, a
transaction that it begins at the same moment would be ended before it is complete.

Each update of a key has a version, one more than the one before. So if the SOW record of a key has the version of its
last delta, and no version is missing among the deltas, a view that follows the deltas has the record of SOW. Both
topics have every update, because the end of a transaction makes its records visible together, in all partitions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.installation.acls import GROUP_OFFSETS
from processor.installation.configured_pipelines import pipeline_of
from processor.kafka.clients.log_reader import STALL_TIMEOUT_S, LogReader, oldest_offsets, read_range
from processor.repair.transactions.open_transactions import base_of, examine, reader_group, standing, version_of
from processor.repair.transactions.transaction_log import open_ranges, read_uncommitted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.config import Config
    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.repair.transactions.open_transactions import OpenTransaction
    from processor.repair.transactions.transaction_admin import TransactionAdmin
    from processor.repair.transactions.transaction_log import OpenRange


_ASK_TIMEOUT_S: Final = 15.0
_WATCH_S: Final = 3.0  # A worker that runs a partition with input commits several times within it.


class Idleness:
    """Finds out whether the workers of a family process its partitions, as far as that is visible from outside."""

    def __init__(self, config: Config, admin: Admin, name: str) -> None:
        """Fetch the members of the workers' group.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        self._config, self._admin = config, admin
        pipeline = pipeline_of(config, name)
        self._group, self._source = f"{config.group_prefix}.{name}", pipeline.source
        self._has_members = bool(self._members())

    def judge(self, transaction: OpenTransaction) -> OpenTransaction:
        """The same transaction, or one that must not be touched because its producer may run."""
        if not transaction.verdict.needs_idle or (self._is_ours(transaction) and not self._has_members):
            return transaction
        if not self._is_ours(transaction):
            why = "but its producer is none of our workers and may still run: start it again, or end it, and try again"
        elif self._stands(transaction.open_range.partition):
            return transaction
        else:
            why = (
                f"but the worker that wrote it ({transaction.transactional_id}) may still run the partition, and its "
                "next update there ends it: publish one, or stop the workers of the topic and try again"
            )
        verdict = transaction.verdict._replace(marker=None, why=f"{transaction.verdict.why}, {why}")
        return transaction._replace(verdict=verdict)

    def _is_ours(self, transaction: OpenTransaction) -> bool:
        return (transaction.transactional_id or "").startswith(f"{self._group}.")

    def _stands(self, partition: int) -> bool:
        """Return whether a partition has input that no worker processes."""
        reader = LogReader(self._config.kafka, group=self._group)
        try:
            before = self._position(reader, partition)
            end = self._admin.end_offsets(self._source, [partition])[partition]
            if before >= end:
                return False
            time.sleep(_WATCH_S)
            return self._position(reader, partition) == before
        finally:
            reader.close()

    def _position(self, reader: LogReader, partition: int) -> int:
        """The group's input offset; -1 if it has none, or if it is in the open transaction itself."""
        try:
            committed = reader.committed(self._source, partition, 2.0)
        except TimeoutError:
            return -1
        return -1 if committed is None else committed

    def _members(self) -> dict[str, frozenset[int]]:
        return self._admin.ask_group(self._group, self._source, _ASK_TIMEOUT_S).answer().assigned


_BEFORE_MS: Final = 60_000  # Deltas of the same transaction are at most this much older than its first SOW record.


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
            for partition, batch in read_range(reader, topic, begins, ends):
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
        since = reader.at_time(topic, oldest, max(0, since_ms), STALL_TIMEOUT_S)
        return {partition: max(first, since[partition] or first) for partition, first in oldest.items()}


def _gap(message: Message, before: int | None) -> str:
    """The gap before a delta, if the delta before it is known."""
    base = base_of(message)
    return (
        "" if before is None or base == before else f"a delta for {_version_text(base)} follows {_version_text(before)}"
    )


def _version_text(version: int | None) -> str:
    return "nothing" if version is None else "a delete" if version == 0 else f"version {version}"


_STABLE_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.1


class Settled(NamedTuple):
    """The outcome for the transactions that stood open."""

    ended: list[OpenTransaction]
    """Those that were ended."""
    waiting: list[OpenRange]
    """Partitions whose readers still wait."""
    keys: list[KeyInQuestion]
    """The keys of their records, with their present versions for readers."""


class Settlement:
    """The end of the transactions that stand open in one family. Nothing is changed before `carry_out`."""

    def __init__(
        self,
        config: Config,
        admin: Admin,
        transactions: TransactionAdmin,
        name: str,
        *,
        partition: int | None = None,
    ) -> None:
        """Find the open transactions.

        Args:
            config: the settings.
            admin: administration of the cluster.
            transactions: answers requests about transactions, and writes their ends.
            name: the family, a topic of the settings.
            partition: the only partition of each topic to treat, with the group's offsets; None: all.

        Raises:
            ConfigurationError: there is no such topic, or Kafka refuses.
            BrokerUnavailable: no answer in time.
        """
        self._config, self._admin, self._transactions, self._name = config, admin, transactions, name
        cluster = admin.cluster()
        ranges = [
            open_range
            for open_range in standing(config, cluster, [name])[name]
            if partition is None or open_range.topic == GROUP_OFFSETS or open_range.partition == partition
        ]
        self.opened = examine(config, cluster, transactions, ranges, name)
        """The open transactions, each with the decision about its end."""
        if any(transaction.verdict.needs_idle for transaction in self.opened):
            idle = Idleness(config, admin, name)
            self.opened = [idle.judge(transaction) for transaction in self.opened]

    @property
    def refused(self) -> list[OpenTransaction]:
        """The transactions that must not be touched."""
        return [transaction for transaction in self.opened if transaction.verdict.marker is None]

    def carry_out(self) -> Settled:
        """End the transactions that may be ended, and check the records that readers see.

        Raises:
            Stop: Kafka refuses, or does not answer; this may be repeated, and transactions that were ended stay so.
        """
        todo = [transaction for transaction in self.opened if transaction.verdict.marker is not None]
        aftermath = Aftermath(self._config, self._admin, self._name, [transaction.open_range for transaction in todo])
        for transaction in todo:
            assert transaction.verdict.marker is not None
            self._transactions.write(transaction.verdict.marker)
        waiting = self._await_stable(todo)
        return Settled(todo, waiting, aftermath.read_versions())

    def _await_stable(self, todo: list[OpenTransaction]) -> list[OpenRange]:
        """The partitions whose last stable offset has not passed the open records in time."""
        ends = {
            (transaction.open_range.topic, transaction.open_range.partition): transaction.open_range.end
            for transaction in todo
        }
        deadline_s = time.monotonic() + _STABLE_TIMEOUT_S
        while True:
            left = [
                open_range
                for open_range in open_ranges(self._config.kafka, ends, group=reader_group(self._config))
                if open_range.begin < ends[open_range.topic, open_range.partition]
            ]
            if not left or time.monotonic() > deadline_s:
                return left
            time.sleep(_PAUSE_S)
