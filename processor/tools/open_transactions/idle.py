"""Finds out whether the producer of a transaction that is to be ended from outside may still run.

A partition's leader refuses a marker with an older epoch than that of the last writer. So if the producer has come back
since, or another one has its transactional id, none of its new transactions can be ended by mistake. If it has not, a
transaction that it begins at the same moment would be ended before it is complete.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from processor.hosting.configured_pipelines import pipeline_of
from processor.kafka.readers.log_reader import LogReader

if TYPE_CHECKING:
    from processor.config import Config
    from processor.kafka.admin.admin import Admin
    from processor.tools.open_transactions.find import OpenTransaction

_ASK_TIMEOUT_S: Final = 15.0
_WATCH_S: Final = 3.0  # A worker that runs a partition with input commits several times within it.
_PAUSE_S: Final = 0.05


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
        return self._admin.ask_group(self._group, self._source, _ASK_TIMEOUT_S).wait().assigned
