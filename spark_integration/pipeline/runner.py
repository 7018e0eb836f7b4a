"""Runs the jobs of a pipeline in one Spark session, until they end, one of them fails, or a stop is requested."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import structlog

from processor.errors import ConfigurationError, SowstreamError, Stop
from spark_integration.foundation.pyspark_private import jvm_of
from spark_integration.foundation.small_files import small_files
from spark_integration.pipeline.job import Job, JobContext, identify
from spark_integration.pipeline.monitor import Draining, MicroBatches, Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings

log = structlog.stdlib.get_logger("sowstream.spark")

_POOL: Final = "spark.scheduler.pool"
_SHUFFLE_TASKS: Final = "spark.sql.shuffle.partitions"
_SHUFFLE_TASKS_OF_A_CORE: Final = 4
_SHUFFLE_TASKS_MIN: Final = 8
_SHUFFLE_TASKS_MAX: Final = 200
"""Spark's own default."""
_LOOK_S: Final = 0.2
"""Time between two looks at the queries."""

Watch = Callable[[], None]
"""Called between two looks, to show the progress."""


@dataclass(slots=True)
class RunningJob:
    """A job and its query."""

    name: str
    batches: MicroBatches
    query: StreamingQuery

    @property
    def failure(self) -> BaseException | None:
        """The error with which the query has ended; None while it runs, and after a good end."""
        if self.query.isActive:
            return None
        error = self.query.exception()
        return None if error is None or isinstance(self.batches.error, Draining) else self.batches.error or error


def create_job(
    pipeline: PipelineSettings, job: PipelineJob, session: SparkSession, monitor: Monitor
) -> tuple[Job[Any], MicroBatches]:
    """Create a job with its surroundings; nothing is started.

    Raises:
        ConfigurationError: its settings do not fit those of its topics, or its checkpoint cannot be used.
    """
    checkpoint = pipeline.checkpoint(job.name)
    files = small_files(checkpoint, session)
    assert files is not None, "with a session, every file system can be reached"
    used = {name: pipeline.topics.topic(name).model_dump(mode="json")
            for name in (*job.kind.reads(job.settings), *job.kind.publishes(job.settings))
            if name in pipeline.topics.topics}  # fmt: skip
    batches = MicroBatches(job.name, files, monitor.add_counts)
    context = JobContext(
        name=job.name,
        topics=pipeline.topics,
        kafka=pipeline.spark_kafka(job.settings.kafka),
        checkpoint=checkpoint,
        files=files,
        identity=identify(job.name, job.kind, job.settings, used, files),
        batches=batches,
    )
    return job.kind(context, job.settings), batches


def run_jobs(
    pipeline: PipelineSettings,
    jobs: Sequence[PipelineJob],
    session: SparkSession,
    *,
    once: bool,
    stop: Event,
    monitor: Monitor | None = None,
    watch: Watch | None = None,
) -> None:
    """Run jobs until they end or `stop` is set; then each running micro-batch ends first.

    Args:
        pipeline: the settings.
        jobs: the jobs to run.
        session: the session; each job gets a new one with the same executors.
        once: process the input that exists now, and end.
        stop: set by a signal.
        monitor: watches the jobs.
        watch: called several times a second.

    Raises:
        ConfigurationError: a job cannot start, or the session is one of Spark Connect.
        Stop: a job has failed; the others have drained.
    """
    jvm_of(session, "the jobs of a pipeline")
    monitor = monitor or Monitor()
    created = []
    for job in jobs:
        own = session.newSession()
        if job.kind.is_stateless:
            divide_shuffles(own)
        created.append((job.name, own, *create_job(pipeline, job, own, monitor)))
    running: list[RunningJob] = []
    try:
        for name, own, made, batches in created:
            monitor.watch(name, own)
            with _own_pool(own, name):
                running.append(RunningJob(name, batches, made.start(own, once=once)))
            monitor.set_state(name, "running")
            log.info("job started", job=name, checkpoint=pipeline.checkpoint(name))
        _await(running, stop, watch)
    finally:
        _drain(running, monitor)
    failures = {job.name: job.failure for job in running if job.failure is not None}
    if failures:
        raise _failed(failures)


def divide_shuffles(session: SparkSession) -> None:
    """Divide the shuffles of a session among a few tasks for each core, unless Spark's settings name their number.

    The plan of a micro-batch is not adaptive, and has Spark's 200 tasks for each shuffle. On two cores these took
    seconds of each micro-batch, and nearly all of them were empty.
    """
    context = session.sparkContext
    if not context.getConf().contains(_SHUFFLE_TASKS):
        tasks = _SHUFFLE_TASKS_OF_A_CORE * context.defaultParallelism
        session.conf.set(_SHUFFLE_TASKS, str(max(_SHUFFLE_TASKS_MIN, min(tasks, _SHUFFLE_TASKS_MAX))))


@contextmanager
def _own_pool(session: SparkSession, name: str) -> Iterator[None]:
    """Let a query that is started meanwhile run in a scheduler pool of its own.

    With `spark.scheduler.mode` FAIR the tasks of each job then get an equal share of the cores, where in the order of
    arrival a long micro-batch of one job would keep all others waiting. A query inherits the pool of its thread.
    """
    context = session.sparkContext
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, name)
    try:
        yield
    finally:
        context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]  # None removes it.


def _await(running: Sequence[RunningJob], stop: Event, watch: Watch | None) -> None:
    """Wait until a stop is requested, a job fails, or all have ended."""
    while not stop.wait(_LOOK_S):
        if watch is not None:
            watch()
        if any(job.failure is not None for job in running) or not any(job.query.isActive for job in running):
            return


def _drain(running: Sequence[RunningJob], monitor: Monitor) -> None:
    """End all queries: each after its running micro-batch."""
    for job in running:
        job.batches.drain()
        if job.query.isActive:
            monitor.set_state(job.name, "draining")
    for job in running:
        # A query between two micro-batches is stopped; one that begins another finds the door closed.
        while job.query.isActive and job.query.status["isTriggerActive"]:
            time.sleep(_LOOK_S / 4)
        job.query.stop()
        failure = job.failure
        monitor.set_state(job.name, "ended" if failure is None else "failed")
        log.info("job ended" if failure is None else "job failed", job=job.name)


def _failed(failures: Mapping[str, BaseException | None]) -> SowstreamError:
    """The error of the first job that failed, with its name; the traces of Spark's own errors go to the log."""
    (name, failure), *others = failures.items()
    for other, error in others:
        log.error("job failed too", job=other, error=str(error).partition("\n")[0])
    if isinstance(failure, SowstreamError):
        text = str(failure)
        kind = ConfigurationError if isinstance(failure, ConfigurationError) else Stop
        return kind(text if text.startswith(f"{name}:") else f"{name}: {text}")
    log.error("job failed", job=name, error=str(failure))
    return Stop(f"{name}: {str(failure).strip().partition(chr(10))[0]}; the log has the trace")
