"""Supervises the pipelines of a process: one that fails is restarted after a pause, and the others go on."""

from __future__ import annotations

import enum
import math
import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import BrokerUnavailable, DefinitionChanged, SowstreamError, TopicFenced
from processor.runtime.metrics import PIPELINE_STATE

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

    from processor.errors import Stop
    from processor.hosting.pipeline import Pipeline
    from processor.installation.hold import Resume

log = structlog.stdlib.get_logger("sowstream.worker")

FIRST_PAUSE_S: Final = 1.0
"""Time until the first restart of a failed pipeline; each pause is twice as long as the one before."""
PAUSE_MAX_S: Final = 300.0
"""Longest time between two restarts."""
_KAFKA_PAUSE_MAX_S: Final = 5.0  # Longest pause while Kafka is away.
_FENCE_PAUSE_S: Final = 1.0  # Between two looks at a fence.
_PROVEN_S: Final = 60.0  # After this running time a failure counts as the first one.
_KAFKA_LOG_S: Final = 60.0
_LOOK_S: Final = 0.2  # Interval to look for an order, and for the end of a thread.
_UNSTARTED_S: Final = 1.0  # Longest wait at the end for a pipeline that is not running.


class PipelineState(enum.Enum):
    """The life cycle of a pipeline; after `DefinitionChanged` it is not started again by itself.

    ::

        STARTING ──topics are right──▶ RUNNING ────stopped─────▶ STOPPED
           ▲  └───────error──────┐        │ error
           └──1 s … 5 min── FAILED ◀──────┘
    """

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"


class Supervised:
    """One pipeline and its thread. `run` is the body of that thread; the main thread calls all other methods."""

    def __init__(
        self,
        pipeline: Pipeline,
        run_once: Callable[[Pipeline, threading.Event, Callable[[], None]], None],
        *,
        orders: SimpleQueue[Resume] | None = None,
        report_failure: Callable[[str, str | None], None] = lambda _pipeline, _message: None,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """Create the thread without starting it.

        Args:
            pipeline: the pipeline to run.
            run_once: checks its topics, calls the third argument, and runs it until the event is set; raises if it
                fails.
            orders: the queue of operators' orders, any of which restarts a failed pipeline at once; None: no orders.
            report_failure: called with the pipeline's error, and with None when it runs again.
            first_pause_s: time until the first restart.
        """
        self.pipeline = pipeline
        self.error: Exception | None = None
        """The error that ended its last run; None while it is running."""
        self.state = PipelineState.STARTING
        self._run_once = run_once
        self._orders = orders
        self._report_failure = report_failure
        self._first_pause_s = first_pause_s
        self._stop = threading.Event()  # The process ends.
        self._end_run = threading.Event()  # This run ends.
        self._cause: Stop | None = None
        self._failures = 0
        self._began_s = 0.0
        self._faulty_s: float | None = None  # Since when it has failed, also while it is being restarted.
        self._kafka_logged_s: float | None = None
        self._fence_logged = ""
        self.thread = threading.Thread(target=self.run, name=pipeline.name, daemon=True)
        """The thread of the pipeline, not started yet."""

    @property
    def has_failed(self) -> bool:
        """True if it has failed for another reason than a missing answer of Kafka."""
        return self.state is PipelineState.FAILED and not isinstance(self.error, BrokerUnavailable)

    @property
    def fault_s(self) -> float:
        """Seconds since its first failure, other than a missing answer of Kafka; 0 after a minute of running."""
        faulty_s, now_s = self._faulty_s, time.monotonic()
        if faulty_s is None or (self.state is PipelineState.RUNNING and now_s - self._began_s > _PROVEN_S):
            return 0.0
        return now_s - faulty_s

    @property
    def is_dead(self) -> bool:
        """True if its thread has ended although it was not stopped."""
        return self.thread.ident is not None and not self.thread.is_alive() and not self._stop.is_set()

    def stop(self) -> None:
        """End the pipeline after a last commit."""
        self._stop.set()
        self._end_run.set()

    def has_ended(self, by_s: float) -> bool:
        """Wait for the thread after `stop`; False if it still processes records at this time of `time.monotonic()`.

        A pipeline that waits for Kafka's answer has nothing to commit: it is left after a second. It may begin to run
        in that second, and then has as long as any other.
        """
        left_s = min(by_s, time.monotonic() + _UNSTARTED_S)
        while self.thread.is_alive():
            is_running = self.state is PipelineState.RUNNING
            rest_s = (by_s if is_running else left_s) - time.monotonic()
            if rest_s <= 0.0:
                return not is_running
            self.thread.join(min(rest_s, _LOOK_S))
        return True

    def fail(self, cause: Stop) -> None:
        """End this run after a last commit; then the pipeline has failed with this error."""
        if self.state is PipelineState.RUNNING:
            self._cause = cause
            self._end_run.set()

    def run(self) -> None:
        """Run the pipeline, and restart it after errors, until `stop` is called."""
        while not self._stop.is_set():
            self._show(PipelineState.STARTING)
            try:
                self._run_once(self.pipeline, self._end_run, self._is_running)
                if self._cause is not None:
                    raise self._cause
            except Exception as error:  # noqa: BLE001 - also a plug-in's: the others go on
                self._failed(error)
                self._pause(self._pause_s(error))
            if not self._stop.is_set():
                self._end_run.clear()
            self._cause = None
        if self.state is not PipelineState.FAILED:
            self._show(PipelineState.STOPPED)

    def _pause(self, seconds: float) -> None:
        """Wait for the end of the pause, an operator's order, or the end of the process."""
        until_s = time.monotonic() + seconds
        while (rest_s := until_s - time.monotonic()) > 0 and not self._stop.wait(min(rest_s, _LOOK_S)):
            if self._orders is not None and not self._orders.empty():
                self._orders.get()
                return

    def _is_running(self) -> None:
        self._began_s = time.monotonic()
        self._kafka_logged_s, self._fence_logged = None, ""
        if self.error is not None:
            log.info("pipeline runs again", pipeline=self.pipeline.name)
            self._report_failure(self.pipeline.name, None)
        self.error = None
        self._show(PipelineState.RUNNING)

    def _failed(self, error: Exception) -> None:
        if self.state is PipelineState.RUNNING and time.monotonic() - self._began_s > _PROVEN_S:
            self._failures, self._faulty_s = 0, None
        self.error = error
        if isinstance(error, TopicFenced):
            self._waits(error)
            return
        self._show(PipelineState.FAILED)
        if isinstance(error, BrokerUnavailable):
            now_s = time.monotonic()
            if self._kafka_logged_s is not None and now_s - self._kafka_logged_s < _KAFKA_LOG_S:
                return
            self._kafka_logged_s = now_s
            log.warning("waiting for Kafka", pipeline=self.pipeline.name, why=str(error))
            return
        if self._faulty_s is None:
            self._faulty_s = time.monotonic()
        log.error(
            "pipeline failed",
            pipeline=self.pipeline.name,
            error=str(error),
            exc_info=not isinstance(error, SowstreamError),
        )
        self._report_failure(self.pipeline.name, str(error))

    def _waits(self, error: TopicFenced) -> None:
        """Wait for the end of a fence, which is no failure."""
        self._show(PipelineState.STARTING)
        if str(error) != self._fence_logged:
            self._fence_logged = str(error)
            log.warning("waiting behind a fence", pipeline=self.pipeline.name, why=str(error))

    def _pause_s(self, error: Exception) -> float:
        """Compute the pause before the next restart."""
        if isinstance(error, TopicFenced):
            return _FENCE_PAUSE_S
        if isinstance(error, DefinitionChanged):
            return math.inf
        pause_s = min(self._first_pause_s * 2.0 ** min(self._failures, 16), PAUSE_MAX_S)
        self._failures += 1
        return min(pause_s, _KAFKA_PAUSE_MAX_S) if isinstance(error, BrokerUnavailable) else pause_s

    def _show(self, state: PipelineState) -> None:
        self.state = state
        for each in PipelineState:
            PIPELINE_STATE.labels(self.pipeline.name, each.value).set(each is state)
