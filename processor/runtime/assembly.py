"""Puts a stream thread together: its clients, its restorer and the states it opens, as the settings say."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from processor.codec import codec_of
from processor.kafka.admin import Admin
from processor.kafka.group_consumer import AssignmentListener, GroupConsumer
from processor.kafka.log_reader import LogReader
from processor.kafka.staged_producer import StagedProducer
from processor.kafka.transactional_producer import TransactionalProducer
from processor.runtime.lookout import Lookout
from processor.runtime.metrics import BLOCKED
from processor.runtime.restore import Restorer
from processor.runtime.restore_progress import RestoreBar, RestoreProgress
from processor.runtime.standby import Standbys
from processor.runtime.state_directory import StateDirectory
from processor.runtime.stream_thread import Clients, StreamThread
from processor.state.memory import MemoryStore
from processor.state.rocks_memory import RocksMemory
from processor.state.transactional import TransactionalState
from processor.topic_problems import make_anew

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.config import Config
    from processor.control import ControlThread
    from processor.runtime.pipeline import Pipeline
    from processor.runtime.slot import Slot

log = structlog.stdlib.get_logger("sowstream.assembly")

_REGISTRY_WAIT_S: Final = 0.3
"""How long a stream thread waits for the schema registry: other partitions wait meanwhile."""


class Assembly:
    """Makes the threads of one process; what they share is made here once."""

    def __init__(
        self,
        config: Config,
        slot: Slot,
        *,
        control: ControlThread | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare what is shared.

        Args:
            config: the settings.
            slot: the process's place on its machine.
            control: brings operators' orders, and takes notices of what is held; None: neither.
            beat: what a thread calls whenever it comes round.
        """
        self._config = config
        self._slot = slot
        self._control = control
        self._beat = beat
        self._memory = RocksMemory(config.runtime.block_cache_bytes, beat)
        self._bar = RestoreBar()

    def thread(self, pipeline: Pipeline, is_stopping: Callable[[], bool]) -> StreamThread:
        """A pipeline's thread; nothing is started.

        Args:
            pipeline: what runs on it.
            is_stopping: whether it has been told to end.
        """
        config, runtime = self._config, self._config.runtime
        group = f"{config.application_id}.{pipeline.name}"
        producer = self._producer(pipeline, group, is_stopping)
        admin = Admin(config.kafka)
        standbys = self._standbys(pipeline, group, admin, self._open_state(pipeline, admin))
        restorer = Restorer(
            reader=LogReader(config.kafka, group=group),
            admin=admin,
            source=pipeline.source,
            sow=pipeline.output("sow") if pipeline.has_state else None,
            mark=pipeline.output("mark") if pipeline.has_marks else None,
            open_state=standbys.open_state,
            stall_timeout_s=runtime.restore_stall_timeout_s,
            progress=RestoreProgress(pipeline.name, self._bar),
            is_copy=pipeline.made_of.endswith(".sow"),
        )
        clients = Clients(
            consumer=partial(self._consumer, pipeline, group),
            producer=producer,
            restorer=restorer,
            standbys=standbys,
            beat=self._beat,
            notices=self._control,
        )
        codec = codec_of(config, pipeline.name, registry_wait_s=_REGISTRY_WAIT_S)
        thread = StreamThread(pipeline, clients, runtime, codec)
        if isinstance(producer, StagedProducer):
            producer.commit_offsets = thread.commit_offsets
        return thread

    def _producer(
        self, pipeline: Pipeline, group: str, is_stopping: Callable[[], bool]
    ) -> TransactionalProducer | StagedProducer:
        """The way to write that the guarantee asks for, as far as the processor is made for it."""
        runtime = self._config.runtime
        if self._config.guarantee == "at_least_once":
            if pipeline.processor_type.is_repeatable:
                return StagedProducer(
                    self._config.kafka,
                    later=[[pipeline.output("sow")], [pipeline.output("mark"), pipeline.output("ack")]],
                    session_timeout_s=runtime.session_timeout_s,
                    is_stopping=is_stopping,
                )
            log.info("exactly once all the same: the processor is not made for less", processor=pipeline.name)
        return TransactionalProducer(
            self._config.kafka,
            transactional_id=f"{group}.{self._slot.name}",
            transaction_timeout_s=runtime.transaction_timeout_s,
            is_stopping=is_stopping,
            blocked=partial(self._blocked, pipeline.name),
        )

    def _open_state(self, pipeline: Pipeline, admin: Admin) -> Callable[[int], TransactionalState]:
        """What opens the state of a partition; one that is always empty where the plug-in keeps no records."""
        config = self._config
        if not pipeline.has_state:
            return lambda _partition: TransactionalState(MemoryStore(), cache_bytes=0)
        directory = config.state_dir / config.application_id / pipeline.name
        return StateDirectory(directory, pipeline, config.runtime, self._memory, admin).open

    def _standbys(
        self, pipeline: Pipeline, group: str, admin: Admin, open_state: Callable[[int], TransactionalState]
    ) -> Standbys:
        replicas = self._config.runtime.standby_replicas if pipeline.has_state else 0
        lookout = Lookout(admin, group=group, topic=pipeline.source, replicas=replicas)
        return Standbys(
            processor=pipeline.name,
            sow=pipeline.output("sow"),
            lookout=lookout if replicas > 0 else None,
            admin=admin,
            # Its queue is small: what waits there is not wanted now, and there is one for each pipeline.
            open_reader=partial(LogReader, self._config.kafka | {"queued.max.messages.kbytes": "8192"}, group=group),
            open_state=open_state,
        )

    def _consumer(self, pipeline: Pipeline, group: str, listener: AssignmentListener) -> GroupConsumer:
        return GroupConsumer(
            self._config.kafka,
            group=group,
            topic=pipeline.source,
            session_timeout_s=self._config.runtime.session_timeout_s,
            listener=listener,
            instance=f"{group}.{self._slot.name}" if self._config.runtime.static_membership else None,
            prefetch_bytes=self._config.runtime.prefetch_bytes,
            made_anew=make_anew(pipeline.name, pipeline.source) if pipeline.made_of else "",
        )

    def _blocked(self, processor: str, call: str, seconds: float) -> None:
        """A transaction call has come back, or is made again."""
        self._beat()
        BLOCKED.labels(processor, call).inc(seconds)
