"""The local states of a pipeline: where they are on disk, whose they are, and what to do with one that is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from processor.errors import StateDamaged
from processor.state.rocks import RocksMemory, RocksStore
from processor.state.transactional import TransactionalState

if TYPE_CHECKING:
    from pathlib import Path

    from processor.config import RuntimeConfig
    from processor.kafka.admin import Admin
    from processor.runtime.pipeline import Pipeline

log = structlog.stdlib.get_logger("sowstream.state")

_ASK_TIMEOUT_S = 2.0


class StateDirectory:
    """One directory a partition, below that of the pipeline."""

    def __init__(
        self, directory: Path, pipeline: Pipeline, runtime: RuntimeConfig, memory: RocksMemory, admin: Admin
    ) -> None:
        """Name the place; nothing is opened.

        Args:
            directory: the pipeline's, made when needed.
            pipeline: whose states they are.
            runtime: the limits.
            memory: what all states of the process share.
            admin: tells which topic they are caches of.
        """
        self._directory = directory
        self._memory = memory
        self._admin = admin
        self._sow = pipeline.output("sow")
        self._cache_bytes = runtime.write_back_bytes // pipeline.topic.partitions

    def open(self, partition: int) -> TransactionalState:
        """The state of a partition as it was left; a damaged one is replaced by an empty one.

        Raises:
            BrokerUnavailable: Kafka does not say which topic it is to be a cache of.
            StateLocked: another process has it open.
        """
        directory = self._directory / str(partition)
        # With the topic's id: one that was deleted and made anew has its name, and may have more records already.
        identity = f"{self._sow}/{partition}/{self._admin.topic_id(self._sow, _ASK_TIMEOUT_S)}"
        try:
            return self._made(directory, identity)
        except StateDamaged as error:
            log.error("local state damaged; restoring it from the SOW topic", directory=str(directory), why=str(error))
            RocksStore.destroy(directory)
            return self._made(directory, identity)

    def _made(self, directory: Path, identity: str) -> TransactionalState:
        store = RocksStore(directory, identity=identity, memory=self._memory)
        return TransactionalState(store, cache_bytes=self._cache_bytes)
