"""Opens the local states of a pipeline on disk, and replaces damaged ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import BrokerUnavailable, DiskFull, StateDamaged
from processor.kafka.admin.questions import PartitionQuestion
from processor.runtime.metrics import BLOCK_CACHE, STATE_OPENED, STATE_WIPED
from processor.store import partition_directory
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

_PATIENCE_S = 0.2  # Longest wait for an answer in one call; other partitions wait meanwhile.
_FRESH_S = 1.0  # Lifetime of an answer: many partitions are opened one after the other.
_LOOK_S = 0.002  # Interval to look for the answer.
_TOPIC: Final = 0  # The key of questions about a topic, in place of a partition number.


class StateDirectory:
    """The directory of a pipeline's states, with one subdirectory per partition."""

    def __init__(
        self,
        directory: Path,
        pipeline: Pipeline,
        runtime: RuntimeConfig,
        memory: RocksMemory,
        admin: Admin,
        make_room: Callable[[], bool] = lambda: False,
        *,
        topic: str | None = None,
    ) -> None:
        """Set the path; nothing is opened.

        Args:
            directory: the directory of the pipeline, created when needed.
            pipeline: the pipeline of the states.
            runtime: the limits.
            memory: the memory that all states of the process share.
            admin: asked for the id of the SOW topic, of which the states are caches.
            make_room: called if the disk is full; returns whether it has removed anything.
            topic: the topic that the states are caches of; None: the pipeline's SOW topic.
        """
        self._directory = directory
        self._memory = memory
        self._make_room = make_room
        self._processor = pipeline.name
        self._sow = topic or pipeline.output("sow")
        self._question = PartitionQuestion(
            f"which topic {self._sow} is", admin.renewal, lambda _: {_TOPIC: admin.ask_topic(self._sow)}
        )
        self._answer: tuple[float, str] | None = None
        self._cache_bytes = runtime.write_back_bytes // pipeline.topic.partitions
        BLOCK_CACHE.labels("used").set_function(lambda: memory.used_bytes)
        BLOCK_CACHE.labels("capacity").set(memory.capacity_bytes)

    def open(self, partition: int) -> LayeredState:
        """Open the state of a partition from disk; a damaged one is replaced by an empty one.

        Raises:
            BrokerUnavailable: Kafka has not yet answered with the id of the SOW topic; the next call looks for the
                answer.
            StateLocked: another process has the state open.
            DiskUnusable: the disk is full even without former states, read-only, failing or forbidden.
        """
        directory = self._directory / str(partition)
        # With the topic's id: a recreated topic has the same name, and may have more records already.
        identity = f"{self._sow}/{partition}/{self._topic_id()}"
        while True:
            try:
                return self._opened(directory, identity)
            except DiskFull:
                if not self._make_room():
                    raise

    def _opened(self, directory: Path, identity: str) -> LayeredState:
        """Open the state in a directory, or replace a damaged one."""
        damage: StateDamaged | None = None
        try:
            store, state = self._create(directory, identity)
        except StateDamaged as error:
            damage = error
            partition_directory.destroy(directory)
            store, state = self._create(directory, identity)
        self._report(directory, store, damage)
        return state

    def _topic_id(self) -> str:
        until_s = time.monotonic() + _PATIENCE_S
        if self._answer is not None and time.monotonic() - self._answer[0] < _FRESH_S:
            return self._answer[1]
        self._question.want(_TOPIC)
        while not (answers := self._question.turn()):
            if time.monotonic() > until_s:
                raise BrokerUnavailable(f"{self._question.unanswered(_TOPIC)}; Kafka has not said yet")
            time.sleep(_LOOK_S)
        topic_id, _ = answers[_TOPIC]
        self._answer = time.monotonic(), topic_id
        return topic_id

    def _create(self, directory: Path, identity: str) -> tuple[RocksStore, LayeredState]:
        store = RocksStore(directory, identity=identity, memory=self._memory, make_room=self._make_room)
        return store, LayeredState(store, cache_bytes=self._cache_bytes, on_wipe=self._wiped)

    def _report(self, directory: Path, store: RocksStore, damage: StateDamaged | None) -> None:
        """Log and count the condition of the directory."""
        condition = "damaged" if damage is not None else store.initial_content
        STATE_OPENED.labels(self._processor, condition).inc()
        facts = {"directory": str(directory), "found": condition, "position": store.progress().position}
        if damage is not None:
            self._wiped("damaged")
            log.error("local state damaged; restoring it from the SOW topic", **facts, why=str(damage))
            return
        match store.initial_content:
            case "format" | "identity" as reason:
                self._wiped(reason)
                log.warning("local state is not ours; restoring it from the SOW topic", **facts)
            case _:
                log.info("local state opened", **facts)

    def _wiped(self, reason: WipeReason) -> None:
        STATE_WIPED.labels(self._processor, reason).inc()
