"""Watches the jobs of a pipeline: figures for Prometheus, and the latest state of each job for a terminal."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_integration.foundation.pyspark_private import STOPPED
from spark_integration.foundation.small_files import SmallFiles
from spark_integration.lag import LagListener, PartitionLag

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery


FILE: Final = "sowstream-progress.json"
"""The name of the file with the counts, in the directory of the checkpoint."""

Counts: TypeAlias = Mapping[str, int]
"""Rows of a micro-batch: `published`, `written`, and `quarantined.<reason>`."""

_STOP_MAX_S: Final = 60.0
_STOP_LOOK_S: Final = 0.02

BatchFunction: TypeAlias = Callable[["DataFrame", int], Counts]
"""Processes a micro-batch with its number, and returns its counts; of a repeated batch the same ones."""


class Draining(Exception):
    """A micro-batch did not begin, as the job is ending; the next start processes it."""


class MicroBatches:
    """Counts the micro-batches of one job, and keeps new ones from beginning while it drains."""

    def __init__(self, name: str, files: SmallFiles, on_counts: Callable[[str, Counts], None] | None = None) -> None:
        """Begin with the counts of earlier runs.

        Args:
            name: the name of the job.
            files: the files in the directory of its checkpoint.
            on_counts: called with the job's name and the counts of each micro-batch.
        """
        self._name, self._files, self._on_counts = name, files, on_counts
        self._draining = threading.Event()
        self.query: StreamingQuery | None = None
        """The query of the job, once it is started: a micro-batch that may not begin waits for its stop."""
        self.is_held = threading.Event()
        """Set while such a micro-batch waits."""
        content = json.loads(files.read(FILE) or "{}")
        self._last_batch: int = content.get("batch", -1)
        self.totals: Counter[str] = Counter(content.get("totals", {}))
        """The counts of all micro-batches since the checkpoint was created."""
        self.error: BaseException | None = None
        """The error with which the last micro-batch ended; None after a good end."""
        self.ended = 0
        """The number of micro-batches that have ended well in this run."""
        self.waits_for: str | None = None
        """What the job waits for, set by the job itself while its query runs; None: it has all it needs."""

    def drain(self) -> None:
        """Let the running micro-batch end, and no other begin."""
        self._draining.set()

    def counted(self, process: BatchFunction) -> Callable[[DataFrame, int], None]:
        """Create a function for `foreachBatch`.

        Args:
            process: processes one micro-batch.
        """

        def run(batch: DataFrame, batch_id: int) -> None:
            # Kept, as Spark turns an error of Python into text.
            self.error = None
            try:
                if self._draining.is_set():
                    self._await_stop()
                    raise Draining(f"{self._name}: batch {batch_id} is left to the next start ({STOPPED})")
                began = time.time()
                counts = process(batch, batch_id)
                self._record(batch_id, counts, began)
                self.ended += 1
            except BaseException as error:
                self.error = error
                raise

        return run

    def _await_stop(self) -> None:
        """Hold the micro-batch until its query is being stopped: an error before that would be a failure to Spark."""
        self.is_held.set()
        deadline_s = time.monotonic() + _STOP_MAX_S
        while self.query is not None and self.query.isActive and time.monotonic() < deadline_s:
            time.sleep(_STOP_LOOK_S)

    def _record(self, batch_id: int, counts: Counts, began: float) -> None:
        if batch_id > self._last_batch:  # A repeated batch is counted once.
            self.totals.update(counts)
            self._last_batch = batch_id
            if self._on_counts is not None:
                self._on_counts(self._name, counts)
        content = {"batch": batch_id, "at": time.time(), "took_s": round(time.time() - began, 3),
                   "counts": dict(counts), "totals": dict(self.totals)}  # fmt: skip
        self._files.write(FILE, json.dumps(content, indent=1))


log = structlog.stdlib.get_logger("sowstream.spark")

QUARANTINED: Final = "quarantined."
"""The beginning of the names of counts of rows that did not fit; the reason follows."""

# Micro-batches take from tens of milliseconds to minutes.
_BUCKETS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


@dataclass(slots=True)
class JobView:
    """The latest figures of a job."""

    state: str = "starting"
    """The state of the job, one of `STATES`."""
    batch: int | None = None
    """The number of the last micro-batch with rows; None before the first one of this run."""
    rows: int = 0
    """Input rows since the start of this run."""
    rows_per_s: float = 0.0
    """Input rows per second of the last micro-batch."""
    batch_s: float = 0.0
    """Duration of the last micro-batch, in seconds."""
    lag: int | None = None
    """Offsets between the query's position and the ends of its partitions; None for a source other than Kafka."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rows by outcome since the start of this run: see `Counts`."""

    @property
    def quarantined(self) -> int:
        """Rows that did not fit."""
        return sum(count for name, count in self.counts.items() if name.startswith(QUARANTINED))


class Monitor:
    """The figures of all jobs of a process."""

    def __init__(self, registry: CollectorRegistry | None = None, *listeners: StreamingQueryListener) -> None:
        """Create a monitor.

        Args:
            registry: the registry of the metrics; None: none are kept.
            listeners: more listeners of the jobs' queries.
        """
        self._lock = threading.Lock()
        self._views: dict[str, JobView] = {}
        self._metrics = None if registry is None else _Metrics(registry)
        self._listeners: tuple[StreamingQueryListener, ...] = (
            LagListener(self._set_lags, registry=registry),
            _ProgressListener(self),
            *listeners,
        )

    def watch(self, job: str, session: SparkSession) -> None:
        """Begin to watch the query of a job, in the session of this job alone."""
        with self._lock:
            self._views[job] = JobView()
        for listener in self._listeners:
            session.streams.addListener(listener)
        self.set_state(job, "starting")

    def views(self) -> Mapping[str, JobView]:
        """The latest figures, by job."""
        with self._lock:
            return dict(self._views)

    def set_state(self, job: str, state: str) -> None:
        """Record the state of a job: one of `STATES`."""
        with self._lock:
            self._views.setdefault(job, JobView()).state = state
        if self._metrics is not None:
            self._metrics.set_state(job, state)

    def add_counts(self, job: str, counts: Counts) -> None:
        """Add the counts of a micro-batch."""
        with self._lock:
            self._views.setdefault(job, JobView()).counts.update(counts)
        if self._metrics is not None:
            self._metrics.add_counts(job, counts)

    def add_batch(self, job: str, batch: int, rows: int, rows_per_s: float, batch_s: float) -> None:
        """Add the figures of a micro-batch."""
        with self._lock:
            view = self._views.setdefault(job, JobView())
            if rows:
                view.batch, view.batch_s = batch, batch_s
            view.rows += rows
            view.rows_per_s = rows_per_s
        if self._metrics is not None:
            self._metrics.add_batch(job, rows, rows_per_s, batch_s)

    def _set_lags(self, lags: Sequence[PartitionLag]) -> None:
        with self._lock:
            for query in {lag.query for lag in lags}:
                view = self._views.setdefault(query, JobView())
                view.lag = sum(lag.offsets for lag in lags if lag.query == query)


STATES: Final = ("starting", "waiting", "running", "retrying", "draining", "ended", "failed")
"""The states of a job: see `JobRun`."""


class _Metrics:
    """The metrics of Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter as Total  # noqa: PLC0415 - only where metrics are wanted
        from prometheus_client import Gauge, Histogram  # noqa: PLC0415

        self._rows = Total("sowstream_spark_rows_total", "Input rows of a job.", ("job",), registry=registry)
        self._rate = Gauge(
            "sowstream_spark_rows_per_second", "Input rows per second of the last micro-batch.", ("job",),
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "sowstream_spark_batch_seconds", "Duration of the micro-batches.", ("job",), buckets=_BUCKETS_S,
            registry=registry,
        )  # fmt: skip
        self._quarantined = Total(
            "sowstream_spark_quarantined_rows_total", "Rows that did not fit, by reason.", ("job", "reason"),
            registry=registry,
        )  # fmt: skip
        self._outcomes = {
            "published": Total(
                "sowstream_spark_published_rows_total", "Rows published to a topic.", ("job",), registry=registry
            ),
            "written": Total(
                "sowstream_spark_written_rows_total", "Rows written to a table or an archive.", ("job",),
                registry=registry,
            ),
        }  # fmt: skip
        self._state = Gauge(
            "sowstream_spark_job_state", "1 for the state in which a job is.", ("job", "state"), registry=registry
        )

    def add_counts(self, job: str, counts: Counts) -> None:
        for name, count in counts.items():
            if name.startswith(QUARANTINED):
                self._quarantined.labels(job, name.removeprefix(QUARANTINED)).inc(count)
            elif name in self._outcomes:
                self._outcomes[name].labels(job).inc(count)

    def add_batch(self, job: str, rows: int, rows_per_s: float, batch_s: float) -> None:
        self._rows.labels(job).inc(rows)
        self._rate.labels(job).set(rows_per_s)
        if rows:
            self._seconds.labels(job).observe(batch_s)

    def set_state(self, job: str, state: str) -> None:
        for each in STATES:
            self._state.labels(job, each).set(each == state)


class _ProgressListener(StreamingQueryListener):
    """Passes the progress of queries to the monitor; its errors never reach the queries."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Record nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - as above
        """Record the figures of a micro-batch."""
        try:
            progress = event.progress
            rate = progress.processedRowsPerSecond
            self._monitor.add_batch(
                progress.name or str(progress.id),
                progress.batchId,
                progress.numInputRows,
                rate if rate == rate else 0.0,  # noqa: PLR0124 - it is not a number where no time has passed
                progress.durationMs.get("triggerExecution", 0) / 1000,
            )
        except Exception:
            log.exception("recording the progress of a query failed; the query goes on")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - as above
        """Record nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - as above
        """Record nothing."""
