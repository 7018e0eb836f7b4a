"""Builds a stream thread from the settings: its clients, its restorer and the states that it opens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from processor.codec import codec_of
from processor.errors import Stop
from processor.hosting.output_limits import OutputLimits
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.group_consumer import AssignmentListener, GroupConsumer
from processor.kafka.clients.log_reader import LogReader
from processor.kafka.clients.staged_producer import StagedProducer
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.queues.share_groups import queue_writer_properties
from processor.runtime.loop.clients import Clients, SeenInput
from processor.runtime.loop.committer import StagedCommitter, TransactionCommitter
from processor.runtime.loop.stream_thread import StreamThread
from processor.runtime.metrics import BLOCKED
from processor.runtime.recovery.assignment_forecast import GroupWatcher
from processor.runtime.recovery.input_position import InputPositions, settled_by_records
from processor.runtime.recovery.job import RestoreBar, RestoreProgress
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.recovery.standbys import Standbys
from processor.runtime.recovery.state_cleaner import Claims, Place, StateCleaner
from processor.runtime.recovery.state_directory import StateDirectory
from processor.runtime.worker.worker_identity import log_fencing_member
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.store.rocksdb_memory import RocksMemory
from processor.telemetry.tracing import spans_of
from processor.topics import rebuild_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from processor.api import Codec
    from processor.config import Config, RuntimeConfig
    from processor.hosting.pipeline import Pipeline
    from processor.installation.control_thread import ControlThread
    from processor.record import Record
    from processor.runtime.loop.clients import RetentionHeadroom, WaitingRecords
    from processor.runtime.loop.committer import Committer
    from processor.runtime.loop.task_reports import PipelineReport
    from processor.runtime.task import Task
    from processor.runtime.worker.worker_identity import ProcessSlot
    from processor.telemetry.tracing import Spans


class TracedStreamThread(StreamThread):
    """A stream thread whose batches have spans with a link to each publish in them."""

    def __init__(
        self, pipeline: Pipeline, clients: Clients, runtime: RuntimeConfig, codec: Codec, *, spans: Spans
    ) -> None:
        super().__init__(pipeline, clients, runtime, codec)
        self._spans = spans
        self._name = pipeline.name

    def _process_batch(self, task: Task, batch: Sequence[Record]) -> None:
        with self._spans.process(self._name, task.partition, batch):
            super()._process_batch(task, batch)


log = structlog.stdlib.get_logger("sowstream.assembly")

_REGISTRY_WAIT_S: Final = 0.3
"""Longest wait of a stream thread for the schema registry: other partitions wait meanwhile."""
_ASK_TIMEOUT_S = 5.0
_NEW_TOPIC: Final = (
    "configure a topic of a new name, such as `{0}_2`, with the new settings, run sowstream topics apply, and publish "
    "the records of {0} to it"
)


class Assembly:
    """Builds the threads of one process, and once the objects that they share."""

    def __init__(
        self,
        config: Config,
        slot: ProcessSlot,
        *,
        admin: Admin | None = None,
        control: ControlThread | None = None,
        beat: Callable[[], None] = lambda: None,
        headroom: RetentionHeadroom | None = None,
        reports: Mapping[str, PipelineReport] | None = None,
        backlogs: Mapping[str, WaitingRecords] | None = None,
        consumers: int = 1,
        fenced: Callable[[Pipeline, bytes], str | None] = lambda _pipeline, _mark: None,
    ) -> None:
        """Create the shared objects.

        Args:
            config: the settings.
            slot: the identity of the process on its machine.
            admin: asked for the owners of former states; None: these stay.
            control: receives operators' orders, and publishes held partitions; None: neither.
            beat: called by a thread in each turn of its loop.
            headroom: the retention time of each input topic, for a gauge; None: it is unknown.
            reports: show the tasks to the health pages; None: there are none.
            backlogs: what waits in Kafka for each pipeline, for gauges; None: it is unknown.
            consumers: the number of pipelines in the process, which share the memory for input and for records
                that wait to be written.
            fenced: called with a pipeline and the fence in its marks; returns the reason to hold a partition, or None.
        """
        self._config = config
        self._slot = slot
        self._control = control
        self._beat = beat
        self._headroom = headroom
        self._reports = reports or {}
        self._backlogs = backlogs or {}
        self._fenced = fenced
        runtime = config.runtime
        shared = ("prefetch_bytes", "write_back_bytes")
        self._runtime = runtime.model_copy(update={name: getattr(runtime, name) // consumers for name in shared})
        self._memory = RocksMemory(runtime.block_cache_bytes, beat)
        self._bar = RestoreBar()
        self._admin = admin
        self.cleaner = StateCleaner(config.state_dir, runtime.internal.state_cleanup_delay_s)
        """Removes former states; run by the worker's watcher."""

    def thread(self, pipeline: Pipeline, is_stopping: Callable[[], bool]) -> StreamThread:
        """Build the thread of a pipeline; nothing is started.

        Args:
            pipeline: the pipeline that runs on it.
            is_stopping: whether the thread is ending.
        """
        config, runtime = self._config, self._runtime
        group = f"{config.group_prefix}.{pipeline.name}"
        admin = Admin(config.kafka, awaits_names=True)
        pipeline = _without_missing_mark(pipeline, admin)
        positions = InputPositions(
            config.application_id,
            pipeline.name,
            pipeline.source,
            _advice(pipeline),
            fenced=partial(self._fenced, pipeline),
            settings=settled_by_records(pipeline),
            remedy=_rebuild_steps(pipeline) or _NEW_TOPIC.format(pipeline.name),
        )
        standbys = self._standbys(pipeline, group, admin, self._open_state(pipeline, admin))
        restorer = Restorer(
            reader=LogReader(config.kafka, group=group, collects_trouble=True),
            admin=admin,
            source=pipeline.source,
            sow=pipeline.output("sow") if pipeline.has_state else None,
            mark=pipeline.output("mark") if pipeline.keeps_position else None,
            open_state=standbys.open_state,
            open_table=self._open_table(pipeline, admin),
            stall_timeout_s=runtime.internal.restore_stall_timeout_s,
            progress=RestoreProgress(pipeline.name, self._bar),
            is_copy=pipeline.underlying is not None and pipeline.processor_type.input.role == "sow",
            positions=positions,
        )
        codec = input_codec = codec_of(config, pipeline.name, registry_wait_s=_REGISTRY_WAIT_S)
        if pipeline.underlying is not None and config.topic(pipeline.underlying) != pipeline.topic:
            input_codec = codec_of(config, pipeline.underlying, registry_wait_s=_REGISTRY_WAIT_S)
        limits = OutputLimits(pipeline, batch_bytes_max=runtime.batch_bytes_max, ask=admin.topic_config)
        clients = Clients(
            consumer=partial(self._consumer, pipeline, group, standbys),
            committer=self._committer(pipeline, group, is_stopping, positions),
            restorer=restorer,
            standbys=standbys,
            seen=SeenInput(admin, pipeline.source),
            beat=self._beat,
            notices=self._control,
            limits=limits,
            headroom=self._headroom,
            backlog=self._backlogs.get(pipeline.name),
            report=self._reports.get(pipeline.name),
            fenced=partial(log_fencing_member, admin, group, pipeline.source, self._slot.name),
            input_codec=input_codec,
        )
        spans = spans_of(config.telemetry)
        if spans is None:
            return StreamThread(pipeline, clients, runtime, codec)
        return TracedStreamThread(pipeline, clients, runtime, codec, spans=spans)

    def _committer(
        self, pipeline: Pipeline, group: str, is_stopping: Callable[[], bool], positions: InputPositions
    ) -> Committer:
        """Create the committer that the guarantee asks for, as far as the processor supports it."""
        runtime = self._runtime
        written = positions if pipeline.keeps_position else None
        kafka = queue_writer_properties(self._config.kafka) if pipeline.queues else self._config.kafka
        if self._config.guarantee == "at_least_once":
            if pipeline.processor_type.is_repeatable:
                staged = StagedProducer(
                    kafka,
                    later=[[pipeline.output("sow")], [pipeline.output("mark"), pipeline.output("ack")]],
                    session_timeout_s=runtime.session_timeout_s,
                    is_stopping=is_stopping,
                    blocked=partial(self._blocked, pipeline.name),
                    queue_bytes=runtime.batch_bytes_max,
                )
                return StagedCommitter(staged, pipeline, written)
            log.info("exactly once all the same: the processor is not made for less", processor=pipeline.name)
        producer = TransactionalProducer(
            kafka,
            transactional_id=f"{group}.{self._slot.name}",
            transaction_timeout_s=runtime.transaction_timeout_s,
            is_stopping=is_stopping,
            blocked=partial(self._blocked, pipeline.name),
            queue_bytes=runtime.batch_bytes_max,
        )
        return TransactionCommitter(producer, written)

    def _open_state(self, pipeline: Pipeline, admin: Admin) -> Callable[[int], LayeredState]:
        """Choose how states are opened: from disk, or always empty if the plug-in keeps no records."""
        if not pipeline.has_state:
            return lambda _partition: LayeredState(MemoryStore(), cache_bytes=0)
        directory = self._directory(pipeline)
        return StateDirectory(directory, pipeline, self._runtime, self._memory, admin, self.cleaner.make_room).open

    def _open_table(self, pipeline: Pipeline, admin: Admin) -> Callable[[int], LayeredState] | None:
        """Choose how the tables of a plug-in's input are opened; None if it keeps none."""
        if not pipeline.has_table:
            return None
        directory, topic, make_room = self._table_directory(pipeline), pipeline.source, self.cleaner.make_room
        return StateDirectory(directory, pipeline, self._runtime, self._memory, admin, make_room, topic=topic).open

    def _table_directory(self, pipeline: Pipeline) -> Path:
        """Directory of the tables of a pipeline's input; no pipeline has this name."""
        return self._directory(pipeline).with_name(f"{pipeline.name}.{pipeline.processor_type.input.role}.table")

    def _directory(self, pipeline: Pipeline) -> Path:
        """Directory of a pipeline's states."""
        return self._config.state_dir / self._config.group_prefix / pipeline.name

    def _standbys(
        self, pipeline: Pipeline, group: str, admin: Admin, open_state: Callable[[int], LayeredState]
    ) -> Standbys:
        replicas = self._runtime.standby_replicas if pipeline.has_state else 0
        group_watcher = GroupWatcher(admin, group=group, topic=pipeline.source, replicas=replicas)
        return Standbys(
            processor=pipeline.name,
            sow=pipeline.output("sow"),
            group_watcher=group_watcher if replicas > 0 else None,
            admin=admin,
            # With a small queue: standbys are not urgent, and there is one reader for each pipeline.
            open_reader=partial(
                LogReader,
                self._config.kafka | {"queued.max.messages.kbytes": "8192"},
                group=group,
                collects_trouble=True,
            ),
            open_state=open_state,
        )

    def _consumer(
        self, pipeline: Pipeline, group: str, standbys: Standbys, listener: AssignmentListener
    ) -> GroupConsumer:
        if pipeline.has_state or pipeline.has_table:
            listener = self._claims(pipeline, group, standbys, listener)
        return GroupConsumer(
            {"client.id": self._slot.name} | self._config.kafka,  # Identifies the members of the group.
            group=group,
            topic=pipeline.source,
            session_timeout_s=self._runtime.session_timeout_s,
            listener=listener,
            instance=f"{group}.{self._slot.name}" if self._runtime.static_membership else None,
            prefetch_bytes=self._runtime.prefetch_bytes,
            rebuild_steps=_rebuild_steps(pipeline),
        )

    def _claims(self, pipeline: Pipeline, group: str, standbys: Standbys, listener: AssignmentListener) -> Claims:
        """Register the pipeline's states with the cleaner, which keeps those of claimed partitions."""
        claims = Claims(listener)

        def kept() -> frozenset[int]:
            return claims.partitions | standbys.partitions

        owned = partial(self._owned, group, pipeline.source)
        if pipeline.has_state:
            self.cleaner.add(Place(pipeline.name, self._directory(pipeline), kept, owned))
        if pipeline.has_table:
            self.cleaner.add(Place(pipeline.name, self._table_directory(pipeline), kept, owned))
        return claims

    def _owned(self, group: str, source: str) -> set[int] | None:
        """List the partitions that members of a group own; None during a rebalance, and if Kafka does not answer."""
        if self._admin is None:
            return None
        try:
            state = self._admin.ask_group(group, source, _ASK_TIMEOUT_S).answer()
        except Stop as error:
            log.info("former states stay: the group cannot be looked at", group=group, why=str(error))
            return None
        return {partition for _, partition in state.owners} if state.state == "stable" else None

    def _blocked(self, processor: str, call: str, seconds: float) -> None:
        """Count the time of a transaction call, which has returned or is being repeated."""
        self._beat()
        BLOCKED.labels(processor, call).inc(seconds)


def _without_missing_mark(pipeline: Pipeline, admin: Admin) -> Pipeline:
    """Drop the mark topic from a pipeline that can do without, if the installation has none."""
    mark = pipeline.output("mark")
    if pipeline.has_marks or not pipeline.keeps_position or mark in admin.cluster().topics:
        return pipeline
    return pipeline._replace(roles=tuple(role for role in pipeline.roles if role != "mark"))


def _rebuild_steps(pipeline: Pipeline) -> str:
    """Steps to rebuild a pipeline that is derived from another family; empty for other pipelines."""
    return rebuild_steps(pipeline.name, pipeline.source, pipeline.names) if pipeline.derived_from else ""


def _advice(pipeline: Pipeline) -> str:
    """Advice for the case that the offsets of a derived pipeline are gone."""
    steps = _rebuild_steps(pipeline)
    return f". If {pipeline.source} was deleted and made anew, {steps}" if steps else ""
