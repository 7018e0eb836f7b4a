"""The local states of a pipeline: where they are on disk, whose they are, and what to do with one that is damaged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import BrokerUnavailable, DiskFull, StateDamaged
from processor.kafka.admin.partition_questions import PartitionQuestion
from processor.runtime.process.metrics import BLOCK_CACHE, STATE_OPENED, STATE_WIPED
from processor.store.layered_state import LayeredState
from processor.store.rocksdb import RocksStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processor.config import RuntimeConfig
    from processor.hosting.pipeline import Pipeline
    from processor.kafka.admin.admin import Admin
    from processor.store.contract import WipeReason
    from processor.store.rocksdb_memory import RocksMemory

log = structlog.stdlib.get_logger("sowstream.state")

_PATIENCE_S = 0.2  # Longest wait for an answer in one call; who calls has other partitions to serve.
_FRESH_S = 1.0  # For how long an answer holds: many partitions are opened one after the other.
_LOOK_S = 0.002  # Between two looks for it.
_TOPIC: Final = 0  # A question about a topic as a whole is asked under this number.


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
        self._make_room = make_room
        self._processor = pipeline.name
        self._sow = pipeline.output("sow")
        self._question = PartitionQuestion(
            f"which topic {self._sow} is", admin, lambda _: admin.ask_topic_id(self._sow)
        )
        self._answer: tuple[float, str] | None = None
        self._cache_bytes = runtime.write_back_bytes // pipeline.topic.partitions
        BLOCK_CACHE.labels("used").set_function(lambda: memory.used_bytes)
        BLOCK_CACHE.labels("capacity").set(memory.capacity_bytes)

    def open(self, partition: int) -> LayeredState:
        """The state of a partition as it was left; a damaged one is replaced by an empty one.

        Raises:
            BrokerUnavailable: Kafka has not said yet which topic it is to be a cache of; it is asked, and the next
                call looks for the answer.
            StateLocked: another process has it open.
            DiskUnusable: the disk is full, read-only, failing or forbidden; former states were removed before.
        """
        directory = self._directory / str(partition)
        # With the topic's id: one that was deleted and made anew has its name, and may have more records already.
        identity = f"{self._sow}/{partition}/{self._topic_id()}"
        while True:
            try:
                return self._opened(directory, identity)
            except DiskFull:
                if not self._make_room():
                    raise

    def _opened(self, directory: Path, identity: str) -> LayeredState:
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

    def _topic_id(self) -> str:
        until_s = time.monotonic() + _PATIENCE_S
        if self._answer is not None and time.monotonic() - self._answer[0] < _FRESH_S:
            return self._answer[1]
        self._question.want(_TOPIC)
        while not (found := self._question.turn()):
            if time.monotonic() > until_s:
                raise BrokerUnavailable(f"{self._question.unanswered(_TOPIC)}; Kafka has not said yet")
            time.sleep(_LOOK_S)
        self._answer = time.monotonic(), found[_TOPIC]
        return found[_TOPIC]

    def _made(self, directory: Path, identity: str) -> tuple[RocksStore, LayeredState]:
        store = RocksStore(directory, identity=identity, memory=self._memory, make_room=self._make_room)
        return store, LayeredState(store, cache_bytes=self._cache_bytes, on_wipe=self._wiped)

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
