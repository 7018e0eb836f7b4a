"""One job of a running pipeline: it waits for its input, runs, and is started again after a failure.

    starting ─┬─▶ running ─┬─▶ ended      all input is processed (`once`), or a stop was requested
       ▲      │            ├─▶ retrying ──(pause)──▶ starting
       │      │            └─▶ failed     too many failures in a row, or another process has taken the job
       │      ├─▶ retrying, failed        the same, at its start; settings that do not fit are not tried again
       └──────┴── waiting                 the input does not exist yet, or another driver may live, see `DriverClaim`

A failure is that of this job alone: the others go on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog

from processor.errors import ConfigurationError, SowstreamError, Stop
from spark_integration.foundation.small_files import small_files
from spark_integration.pipeline.driver_claim import LEASE_S, DriverClaim
from spark_integration.pipeline.job import InputMissing, Job, JobContext, identify
from spark_integration.pipeline.monitor import Draining, MicroBatches, Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings

log = structlog.stdlib.get_logger("sowstream.spark")

_POOL: Final = "spark.scheduler.pool"
_WAIT_S: Final = 5.0
"""Time between two looks for an input that does not exist yet."""
_CLAIM_LOOK_S: Final = 1.0
"""Time between two looks at the claim of another driver."""
_DRAIN_LOOK_S: Final = 0.05
_CONCURRENT: Final = re.compile("CONCURRENT_STREAM_LOG_UPDATE|concurrently using|somebody else has written snapshot")
"""Errors of Spark, and of our tables, that mean that another process runs the same job: both would go on in turn."""
_TRACEBACK: Final = "Traceback (most recent call last):"
_PYTHON_ERROR: Final = re.compile(r"^[A-Za-z_][\w.]*: .*$", re.MULTILINE)
_STACK: Final = "JVM stacktrace:"
_SENTENCE_MAX: Final = 600
"""Characters of an error in a log line; the log of Spark has the rest."""


class JobRun:
    """One job and its query; `look` makes its steps, all on the caller's thread."""

    def __init__(
        self, pipeline: PipelineSettings, job: PipelineJob, session: SparkSession, monitor: Monitor, *, once: bool
    ) -> None:
        """Set up; nothing is started.

        Args:
            pipeline: the settings.
            job: the job.
            session: a session of this job alone.
            monitor: gets its figures and states.
            once: process the input that exists now, and end.
        """
        self.name = job.name
        self.failure: BaseException | None = None
        """The last failure; None while the job does well, and after a good end."""
        self._pipeline, self._job, self._session, self._monitor, self._once = pipeline, job, session, monitor, once
        self._query: StreamingQuery | None = None
        self._batches: MicroBatches | None = None
        self._state, self._waits_for = "", ""
        self._failures, self._due_s, self._is_claimed = 0, 0.0, False
        files = small_files(pipeline.checkpoint(job.name), session)
        assert files is not None, "with a session, every file system can be reached"
        self.claim = DriverClaim(job.name, files)
        """Keeps other processes from running the job."""

    @property
    def is_over(self) -> bool:
        """True if the job has ended, or was given up."""
        return self._state in ("ended", "failed")

    def begin(self) -> None:
        """Claim the job, so that `look` can start it."""
        self._monitor.watch(self.name, self._session)
        self._set("starting")
        self._claim()

    def look(self) -> None:
        """Make the next step, if it is time for one."""
        if self.is_over:
            return
        query, batches = self._query, self._batches
        if query is None or batches is None:
            if time.monotonic() >= self._due_s:
                self._start() if self._is_claimed else self._claim()
            return
        if self.claim.lost:
            self.drain()
            self.stop()
            return
        if not query.isActive:
            self._query = None
            failure = _failure_of(query, batches)
            self._end() if failure is None else self._fail(failure)
            return
        if batches.ended:
            self._failures, self.failure = 0, None
        if batches.waits_for is not None:
            self._show_wait(batches.waits_for)
        elif self._state != "running":
            self._set("running")
            self._waits_for = ""

    def drain(self) -> None:
        """Let no other micro-batch begin."""
        if self._query is not None and self._batches is not None:
            self._batches.drain()
            if self._query.isActive:
                self._set("draining")

    def stop(self) -> None:
        """End the query after its running micro-batch; `drain` was called."""
        query, batches = self._query, self._batches
        if not self._state:
            return
        if query is not None and batches is not None:
            # A query between two micro-batches is stopped; one that begins another waits at the door for that.
            while query.isActive and query.status["isTriggerActive"] and not batches.is_held.is_set():
                time.sleep(_DRAIN_LOOK_S)
            query.stop()
            self._query = None
            self.failure = _failure_of(query, batches) or self.failure
        if self.claim.lost:
            self.failure = Stop(f"{self.name}: {self.claim.lost}")
        if not self.is_over:
            self._end() if self.failure is None else self._give_up(self.failure)

    def _claim(self) -> None:
        """Claim the job; the first look afterwards makes sure of it."""
        try:
            holder = self.claim.take()
        except ConfigurationError as error:
            self._give_up(error)
            return
        except Exception as error:  # noqa: BLE001 - the file system may answer the next time
            self._fail(error)
            return
        self._is_claimed, self._due_s = holder is None, time.monotonic()
        if holder is not None:
            self._due_s += _CLAIM_LOOK_S
            self._show_wait(f"whether this driver still lives is not known yet: {holder}; {LEASE_S:.0f} s decide")

    def _start(self) -> None:
        name = self.name
        self._set("starting")
        try:
            self.claim.settle()
            made, self._batches = create_job(self._pipeline, self._job, self._session, self._monitor)
            with _own_pool(self._session, name):
                self._query = self._batches.query = made.start(self._session, once=self._once)
        except InputMissing as error:
            self._wait(error)
        except ConfigurationError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - any other failure may be over at the next start
            self._fail(error)
        else:
            self._set("running")
            log.info("job started", job=name, checkpoint=self._pipeline.checkpoint(name))

    def _wait(self, missing: InputMissing) -> None:
        if self._once:
            # Nothing would start it again: where nothing can be read, a good end would be a lie.
            self._give_up(missing) if not missing.is_empty else self._end(str(missing))
            return
        self._due_s = time.monotonic() + _WAIT_S
        self._show_wait(str(missing))

    def _show_wait(self, reason: str) -> None:
        self._set("waiting", reason)
        if reason != self._waits_for:
            self._waits_for = reason
            log.info("job waits", job=self.name, why=reason)

    def _fail(self, failure: BaseException) -> None:
        self._failures += 1
        settings = self._job.settings
        if self._once or self._failures > settings.retries or _CONCURRENT.search(str(failure)):
            self._give_up(failure)
            return
        pause_s = min(settings.retry_delay * 2 ** min(self._failures - 1, 40), settings.retry_delay_max)
        self.failure, self._due_s = failure, time.monotonic() + pause_s
        self._set("retrying", sentence(failure))
        log.error("job failed", job=self.name, error=sentence(failure), failures=self._failures,
                  retries=settings.retries, next_try_s=round(pause_s, 1))  # fmt: skip

    def _give_up(self, failure: BaseException) -> None:
        self.failure = failure
        self._set("failed", sentence(failure))
        log.error("job failed", job=self.name, error=sentence(failure), advice="it is not tried again in this run")

    def _end(self, why: str = "") -> None:
        self._set("ended")
        log.info("job ended", job=self.name, **({"why": why} if why else {}))

    def _set(self, state: str, why: str = "") -> None:
        self.claim.note(state, why)
        if state != self._state:
            self._state = state
            self._monitor.set_state(self.name, state)
        if self.is_over:
            self.claim.release()


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


def _failure_of(query: StreamingQuery, batches: MicroBatches) -> BaseException | None:
    """The error with which a query has ended; None after a good end."""
    error = query.exception()
    return None if error is None or isinstance(batches.error, Draining) else batches.error or error


def sentence(failure: BaseException) -> str:
    """The cause of a failure, without the traces of Java and Python around it."""
    text = str(failure).strip()
    if isinstance(failure, SowstreamError):
        return text
    text = text.partition(_STACK)[0].strip()
    if _TRACEBACK in text:
        # Of an executor's Python: the error stands below its trace.
        ends = _PYTHON_ERROR.findall(text.rpartition(_TRACEBACK)[2])
        if ends:
            return str(ends[-1]).removeprefix("processor.errors.")[:_SENTENCE_MAX]
    # The last cause is the first event; a trace of Java begins with its consequences.
    causes = re.findall(r"^Caused by: (.*)$", text, re.MULTILINE) or re.findall(r"^: (.*)$", text, re.MULTILINE)
    cause = causes[-1] if causes else text.partition("\n")[0]
    return (cause.strip() or type(failure).__name__)[:_SENTENCE_MAX]
