"""The local states of a pipeline: where they are on disk, whose they are, and what to do with one that is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from processor.errors import DiskFull, StateDamaged
from processor.runtime.metrics import BLOCK_CACHE, STATE_OPENED, STATE_WIPED
from processor.state.rocks import RocksStore
from processor.state.transactional import TransactionalState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processor.config import RuntimeConfig
    from processor.kafka.admin import Admin
    from processor.runtime.pipeline import Pipeline
    from processor.state.rocks_memory import RocksMemory
    from processor.state.store import WipeReason

log = structlog.stdlib.get_logger("sowstream.state")

_ASK_TIMEOUT_S = 2.0


class StateDirectory:
    """One directory a partition, below that of the pipeline."""

    def __init__(
        self,
        directory: Path,
        pipeline: Pipeline,
        runtime: RuntimeConfig,
        memory: RocksMemory,
        admin: Admin,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """Name the place; nothing is opened.

        Args:
            directory: the pipeline's, made when needed.
            pipeline: whose states they are.
            runtime: the limits.
            memory: what all states of the process share.
            admin: tells which topic they are caches of.
            make_room: called where the disk is full; says whether something was removed.
        """
        self._directory = directory
        self._memory = memory
        self._admin = admin
        self._make_room = make_room
        self._processor = pipeline.name
        self._sow = pipeline.output("sow")
        self._cache_bytes = runtime.write_back_bytes // pipeline.topic.partitions
        BLOCK_CACHE.labels("used").set_function(lambda: memory.used_bytes)
        BLOCK_CACHE.labels("capacity").set(memory.capacity_bytes)

    def open(self, partition: int) -> TransactionalState:
        """The state of a partition as it was left; a damaged one is replaced by an empty one.

        Raises:
            BrokerUnavailable: Kafka does not say which topic it is to be a cache of.
            StateLocked: another process has it open.
            DiskUnusable: the disk is full, read-only, failing or forbidden; former states were removed before.
        """
        directory = self._directory / str(partition)
        # With the topic's id: one that was deleted and made anew has its name, and may have more records already.
        identity = f"{self._sow}/{partition}/{self._admin.topic_id(self._sow, _ASK_TIMEOUT_S)}"
        while True:
            try:
                return self._opened(directory, identity)
            except DiskFull:
                if not self._make_room():
                    raise

    def _opened(self, directory: Path, identity: str) -> TransactionalState:
        """The state in a directory; one that is damaged is replaced."""
        damage: StateDamaged | None = None
        try:
            store, state = self._made(directory, identity)
        except StateDamaged as error:
            damage = error
            RocksStore.destroy(directory)
            store, state = self._made(directory, identity)
        self._tell(directory, store, damage)
        return state

    def _made(self, directory: Path, identity: str) -> tuple[RocksStore, TransactionalState]:
        store = RocksStore(directory, identity=identity, memory=self._memory, make_room=self._make_room)
        return store, TransactionalState(store, cache_bytes=self._cache_bytes, on_wipe=self._wiped)

    def _tell(self, directory: Path, store: RocksStore, damage: StateDamaged | None) -> None:
        """Log and count what was found, in one line."""
        found = "damaged" if damage is not None else store.found
        STATE_OPENED.labels(self._processor, found).inc()
        facts = {"directory": str(directory), "found": found, "position": store.progress().position}
        if damage is not None:
            self._wiped("damaged")
            log.error("local state damaged; restoring it from the SOW topic", **facts, why=str(damage))
            return
        match store.found:
            case "format" | "identity" as reason:
                self._wiped(reason)
                log.warning("local state is not ours; restoring it from the SOW topic", **facts)
            case _:
                log.info("local state opened", **facts)

    def _wiped(self, reason: WipeReason) -> None:
        STATE_WIPED.labels(self._processor, reason).inc()
