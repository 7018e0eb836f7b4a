"""Puts a stream thread together: its clients, its restorer and the states it opens, as the settings say."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from processor.codec import codec_of
from processor.errors import Stop
from processor.hosting.output_limits import OutputLimits
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import GroupInspector
from processor.kafka.producers.staged_producer import StagedProducer
from processor.kafka.producers.transactional_producer import TransactionalProducer
from processor.kafka.readers.group_consumer import AssignmentListener, GroupConsumer
from processor.kafka.readers.log_reader import LogReader
from processor.runtime.clients import Clients
from processor.runtime.process.metrics import BLOCKED
from processor.runtime.recovery.input_position import InputPositions
from processor.runtime.recovery.progress import RestoreBar, RestoreProgress
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.recovery.state_cleaner import Claims, Place, StateCleaner
from processor.runtime.recovery.state_directory import StateDirectory
from processor.runtime.standby.group_watcher import Lookout
from processor.runtime.standby.standbys import Standbys
from processor.runtime.stream_thread import StreamThread
from processor.runtime.watching.rivals import tell_who_fenced
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.store.rocksdb_memory import RocksMemory
from processor.topics import rebuild_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processor.config import Config
    from processor.hosting.pipeline import Pipeline
    from processor.runtime.process.slot import Slot
    from processor.shared_topics.control import ControlThread

log = structlog.stdlib.get_logger("sowstream.assembly")

_REGISTRY_WAIT_S: Final = 0.3
"""How long a stream thread waits for the schema registry: other partitions wait meanwhile."""
_ASK_TIMEOUT_S = 5.0


class Assembly:
    """Makes the threads of one process; what they share is made here once."""

    def __init__(
        self,
        config: Config,
        slot: Slot,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        control: ControlThread | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare what is shared.

        Args:
            config: the settings.
            slot: the process's place on its machine.
            is_stopping: whether the process has been told to end.
            control: brings operators' orders, and takes notices of what is held; None: neither.
            beat: what a thread calls whenever it comes round.
        """
        self._config = config
        self._slot = slot
        self._control = control
        self._beat = beat
        self._memory = RocksMemory(config.runtime.block_cache_bytes, beat)
        self._bar = RestoreBar()
        self._groups = GroupInspector(config.kafka)
        self._cleaner = StateCleaner(config.state_dir, config.runtime.state_cleanup_delay_s, is_stopping=is_stopping)

    def thread(self, pipeline: Pipeline, is_stopping: Callable[[], bool]) -> StreamThread:
        """A pipeline's thread; nothing is started.

        Args:
            pipeline: what runs on it.
            is_stopping: whether it has been told to end.
        """
        config, runtime = self._config, self._config.runtime
        group = f"{config.group_prefix}.{pipeline.name}"
        producer = self._producer(pipeline, group, is_stopping)
        admin = Admin(config.kafka)
        pipeline = _as_there(pipeline, admin)
        positions = InputPositions(config.application_id, pipeline.name, pipeline.source, _advice(pipeline))
        standbys = self._standbys(pipeline, group, admin, self._open_state(pipeline, admin))
        restorer = Restorer(
            reader=LogReader(config.kafka, group=group, bears_trouble=True),
            admin=admin,
            source=pipeline.source,
            sow=pipeline.output("sow") if pipeline.has_state else None,
            mark=pipeline.output("mark") if pipeline.keeps_position else None,
            open_state=standbys.open_state,
            stall_timeout_s=runtime.restore_stall_timeout_s,
            progress=RestoreProgress(pipeline.name, self._bar),
            is_copy=pipeline.underlying is not None and pipeline.processor_type.input.role == "sow",
            positions=positions,
        )
        limits = OutputLimits(pipeline, batch_bytes_max=runtime.batch_bytes_max, ask=admin.topic_config)
        clients = Clients(
            consumer=partial(self._consumer, pipeline, group, standbys),
            producer=producer,
            restorer=restorer,
            standbys=standbys,
            beat=self._beat,
            notices=self._control,
            positions=positions,
            limits=limits,
            fenced=partial(tell_who_fenced, admin, group, pipeline.source, self._slot.name),
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
                    blocked=partial(self._blocked, pipeline.name),
                    queue_bytes=runtime.batch_bytes_max,
                )
            log.info("exactly once all the same: the processor is not made for less", processor=pipeline.name)
        return TransactionalProducer(
            self._config.kafka,
            transactional_id=f"{group}.{self._slot.name}",
            transaction_timeout_s=runtime.transaction_timeout_s,
            is_stopping=is_stopping,
            blocked=partial(self._blocked, pipeline.name),
            queue_bytes=runtime.batch_bytes_max,
        )

    def _open_state(self, pipeline: Pipeline, admin: Admin) -> Callable[[int], LayeredState]:
        """What opens the state of a partition; one that is always empty where the plug-in keeps no records."""
        config = self._config
        if not pipeline.has_state:
            return lambda _partition: LayeredState(MemoryStore(), cache_bytes=0)
        directory = self._directory(pipeline)
        return StateDirectory(directory, pipeline, config.runtime, self._memory, admin, self._cleaner.make_room).open

    def _directory(self, pipeline: Pipeline) -> Path:
        """Where the states of a pipeline are."""
        return self._config.state_dir / self._config.group_prefix / pipeline.name

    def _standbys(
        self, pipeline: Pipeline, group: str, admin: Admin, open_state: Callable[[int], LayeredState]
    ) -> Standbys:
        replicas = self._config.runtime.standby_replicas if pipeline.has_state else 0
        lookout = Lookout(admin, group=group, topic=pipeline.source, replicas=replicas)
        return Standbys(
            processor=pipeline.name,
            sow=pipeline.output("sow"),
            lookout=lookout if replicas > 0 else None,
            admin=admin,
            # Its queue is small: what waits there is not wanted now, and there is one for each pipeline.
            open_reader=partial(
                LogReader, self._config.kafka | {"queued.max.messages.kbytes": "8192"}, group=group, bears_trouble=True
            ),
            open_state=open_state,
        )

    def _consumer(
        self, pipeline: Pipeline, group: str, standbys: Standbys, listener: AssignmentListener
    ) -> GroupConsumer:
        if pipeline.has_state:
            listener = self._claims(pipeline, group, standbys, listener)
        return GroupConsumer(
            {"client.id": self._slot.name} | self._config.kafka,  # Whoever shares the group is known by it.
            group=group,
            topic=pipeline.source,
            session_timeout_s=self._config.runtime.session_timeout_s,
            listener=listener,
            instance=f"{group}.{self._slot.name}" if self._config.runtime.static_membership else None,
            prefetch_bytes=self._config.runtime.prefetch_bytes,
            made_anew=_made_anew(pipeline),
        )

    def _claims(self, pipeline: Pipeline, group: str, standbys: Standbys, listener: AssignmentListener) -> Claims:
        """Have the cleaner look after the pipeline's states: it knows by the claims which of them are ours."""
        claims = Claims(listener)

        def kept() -> frozenset[int]:
            return claims.partitions | standbys.wanted

        owned = partial(self._owned, group, pipeline.source)
        self._cleaner.add(Place(pipeline.name, self._directory(pipeline), kept, owned))
        self._cleaner.start()
        return claims

    def _owned(self, group: str, source: str) -> set[int] | None:
        """The partitions that members of a group have; None while they are moving, and where Kafka does not say."""
        try:
            state = self._groups.groups([group], _ASK_TIMEOUT_S)[group]
        except Stop as error:
            log.info("former states stay: the group cannot be looked at", group=group, why=str(error))
            return None
        return {partition for topic, partition in state.owners if topic == source} if state.state == "stable" else None

    def _blocked(self, processor: str, call: str, seconds: float) -> None:
        """A transaction call has come back, or is made again."""
        self._beat()
        BLOCKED.labels(processor, call).inc(seconds)


def _as_there(pipeline: Pipeline, admin: Admin) -> Pipeline:
    """A pipeline without its mark topic where an installation has none and it can do without."""
    mark = pipeline.output("mark")
    if pipeline.has_marks or not pipeline.keeps_position or mark in admin.cluster().topics:
        return pipeline
    return pipeline.without_position()


def _made_anew(pipeline: Pipeline) -> str:
    """How to make a copy of another family again; empty where a pipeline makes none."""
    return rebuild_steps(pipeline.name, pipeline.source, pipeline.names) if pipeline.derived_from else ""


def _advice(pipeline: Pipeline) -> str:
    """What else is to be done where the offsets of a copy are gone."""
    anew = _made_anew(pipeline)
    return f". If {pipeline.source} was deleted and made anew, {anew}" if anew else ""
