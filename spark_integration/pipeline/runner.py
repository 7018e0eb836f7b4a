"""Runs the jobs of a pipeline in one Spark session, until all have ended or a stop is requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError, SowstreamError, Stop
from spark_integration.foundation.pyspark_private import jvm_of
from spark_integration.pipeline.driver_claim import kept_alive
from spark_integration.pipeline.job_run import JobRun, sentence
from spark_integration.pipeline.monitor import Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings

_SHUFFLE_TASKS: Final = "spark.sql.shuffle.partitions"
_SHUFFLE_TASKS_OF_A_CORE: Final = 4
_SHUFFLE_TASKS_MIN: Final = 8
_SHUFFLE_TASKS_MAX: Final = 200
"""Spark's own default."""
_LOOK_S: Final = 0.2
"""Time between two looks at the queries."""

Watch = Callable[[], None]
"""Called between two looks, to show the progress."""


def run_jobs(
    pipeline: PipelineSettings,
    jobs: Sequence[PipelineJob],
    session: SparkSession,
    *,
    once: bool,
    stop: Event,
    monitor: Monitor | None = None,
    watch: Watch | None = None,
) -> bool:
    """Run jobs until they end or `stop` is set; then each running micro-batch ends first.

    A job that fails is tried again, see `JobRun`, and the others go on.

    Args:
        pipeline: the settings.
        jobs: the jobs to run.
        session: the session; each job gets a new one with the same executors.
        once: process the input that exists now, and end.
        stop: set by a signal.
        monitor: watches the jobs.
        watch: called several times a second.

    Returns:
        True if all jobs have ended by themselves, false if `stop` has ended one.

    Raises:
        ConfigurationError: the settings of a job do not fit, or the session is one of Spark Connect.
        Stop: a job has failed, and the others have ended.
    """
    jvm_of(session, "the jobs of a pipeline")
    monitor = monitor or Monitor()
    runs = []
    for job in jobs:
        own = session.newSession()
        if job.kind.is_stateless:
            divide_shuffles(own)
        runs.append(JobRun(pipeline, job, own, monitor, once=once))
    with kept_alive([run.claim for run in runs]):
        is_complete = _run(runs, stop, watch)
    failures = {run.name: run.failure for run in runs if run.failure is not None}
    if failures:
        raise _error_of(failures, len(runs))
    return is_complete


def _run(runs: Sequence[JobRun], stop: Event, watch: Watch | None) -> bool:
    """Make the steps of all jobs, and end them together; returns true if they had ended by themselves."""
    try:
        for run in runs:
            run.begin()
        while not stop.wait(_LOOK_S) and not all(run.is_over for run in runs):
            if watch is not None:
                watch()
            for run in runs:
                if not stop.is_set():
                    run.look()
        return all(run.is_over for run in runs)
    finally:
        for run in runs:
            run.drain()
        for run in runs:
            run.stop()


def divide_shuffles(session: SparkSession) -> None:
    """Divide the shuffles of a session among a few tasks for each core, unless Spark's settings name their number.

    The plan of a micro-batch is not adaptive, and has Spark's 200 tasks for each shuffle. On two cores these took
    seconds of each micro-batch, and nearly all of them were empty.
    """
    context = session.sparkContext
    if not context.getConf().contains(_SHUFFLE_TASKS):
        tasks = _SHUFFLE_TASKS_OF_A_CORE * context.defaultParallelism
        session.conf.set(_SHUFFLE_TASKS, str(max(_SHUFFLE_TASKS_MIN, min(tasks, _SHUFFLE_TASKS_MAX))))


def _error_of(failures: Mapping[str, BaseException], jobs: int) -> SowstreamError:
    """The error of a run in which jobs have failed: a line for each."""
    kind = ConfigurationError if all(isinstance(one, ConfigurationError) for one in failures.values()) else Stop
    lines = []
    for name, failure in failures.items():
        text = sentence(failure)
        lines.append(text if text.startswith(f"{name}:") else f"{name}: {text}")
    if jobs == 1:
        return kind(lines[0])
    return kind("\n  ".join([f"{len(lines)} of {jobs} jobs failed:", *lines]))
