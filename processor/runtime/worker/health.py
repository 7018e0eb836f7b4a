"""Judges the health of a worker process, and serves it: `/metrics`, `/livez`, `/readyz` and `/status`."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from processor.errors import BrokerUnavailable, TopicFenced
from processor.installation.hold import REMEDIES
from processor.kafka import outage
from processor.runtime.task_state import TaskState
from processor.runtime.worker.supervision import PipelineState
from processor.telemetry.page_server import Answer, PageServer, metrics_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.runtime.loop.task_reports import PipelineReport, TaskReport
    from processor.runtime.worker.supervision import Supervised


ALIVE_S: Final = 30.0
"""Longest time between two turns of the main thread's loop in a process that is alive; it turns five times a second."""
FAULT_S: Final = 60.0
"""For how long a held partition or a failed pipeline makes its process unready.

A fault may pass within this time, and a rollout should not go on before. A fault that lasts longer belongs to one
topic: a new process would not mend it, and the others of the process do their work, so the process is ready then.
"""


class Health:
    """The health of one process. Any thread may ask; the main thread calls `turned` and `stopping`."""

    def __init__(
        self,
        name: str,
        pipelines: Sequence[Supervised],
        reports: Mapping[str, PipelineReport],
        *,
        clock_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        away_s: Callable[[], float] = outage.seconds,
    ) -> None:
        """Create the judge of a process that starts now.

        Args:
            name: the name of the process.
            pipelines: its pipelines.
            reports: the reports of their tasks.
            clock_s: a clock that does not jump, in seconds.
            now_ms: the wall clock, milliseconds since the epoch.
            away_s: for how long Kafka has been unreachable; 0 while it answers.
        """
        self._name = name
        self._pipelines = pipelines
        self._reports = reports
        self._clock_s, self._now_ms, self._away_s = clock_s, now_ms, away_s
        self._turned_s = clock_s()
        self._is_stopping = False

    def turned(self) -> None:
        """Note a turn of the main thread's loop."""
        self._turned_s = self._clock_s()

    def stopping(self) -> None:
        """Note that the process ends: it is alive, and not ready."""
        self._is_stopping = True

    def dead(self) -> list[str]:
        """The reasons for which the process must be restarted; none: it is alive.

        An outage of Kafka is none of them, nor is a stuck stream thread, which the watchdog ends with its stack.
        """
        if self._is_stopping:
            return []  # It has a deadline of its own.
        silent_s = self._clock_s() - self._turned_s
        reasons = [f"the main thread has been stuck for {silent_s:.0f} s"] if silent_s > ALIVE_S else []
        return reasons + [f"the thread of {each.pipeline.name} has ended" for each in self._pipelines if each.is_dead]

    def unready(self) -> list[str]:
        """The reasons for which the process is not ready; none: it does all the work that it can."""
        if self._is_stopping:
            return ["stopping"]
        away_s = self._away_s()
        reasons = [f"Kafka has not answered for {away_s:.0f} s"] if away_s > 0 else []
        whys = ((pipeline.pipeline.name, self._unready(pipeline)) for pipeline in self._pipelines)
        return reasons + [f"{name}: {why}" for name, why in whys if why is not None]

    def status(self) -> dict[str, Any]:
        """The status of the process and of each task, as JSON."""
        unready = self.unready()
        return {
            "process": self._name,
            "is_ready": not unready,
            "reasons": [*self.dead(), *unready],
            "kafka_unreachable_s": round(self._away_s(), 1),
            "pipelines": [self._pipeline_status(pipeline) for pipeline in self._pipelines],
        }

    def _unready(self, pipeline: Supervised) -> str | None:
        """The reason for which a pipeline is not ready; None: it is, or its fault has lasted for too long to wait."""
        if isinstance(pipeline.error, TopicFenced):
            return None  # Spark merges the topic, maybe for days.
        if pipeline.fault_s > FAULT_S:
            return None
        if pipeline.state is PipelineState.FAILED:
            return "waiting for Kafka" if isinstance(pipeline.error, BrokerUnavailable) else f"failed: {pipeline.error}"
        if pipeline.state is not PipelineState.RUNNING:
            return str(pipeline.state.value)
        report = self._reports[pipeline.pipeline.name]
        if not report.is_member:
            return "joining its group"
        return "waiting for its first partitions" if report.is_settling else self._unsettled(report)

    def _unsettled(self, report: PipelineReport) -> str | None:
        """Describe the tasks that do not run, apart from those held for long; None: there are none."""
        counts = Counter(
            task.state.value
            for task in report.tasks.values()
            if task.state is not TaskState.RUNNING and not self._is_settled(task)
        )
        if not counts:
            return None
        states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        return f"of {len(report.tasks)} partitions {states}"

    def _is_settled(self, task: TaskReport) -> bool:
        """True if a task has been held for too long to wait for it."""
        return task.hold is not None and self._now_ms() - task.hold.since_ms > FAULT_S * 1000

    def _pipeline_status(self, pipeline: Supervised) -> dict[str, Any]:
        name = pipeline.pipeline.name
        report = self._reports[name]
        return {
            "name": name,
            "state": pipeline.state.value,
            "error": None if pipeline.error is None else str(pipeline.error),
            "is_member": report.is_member,
            "partitions": [_task_status(name, partition, task) for partition, task in sorted(report.tasks.items())],
        }


def _task_status(pipeline: str, partition: int, task: TaskReport) -> dict[str, Any]:
    """The status of one task, as JSON."""
    restore, hold = task.restore, task.hold
    eta_s = None if restore is None else restore.remaining_s
    progress = None if restore is None else {
        "done": restore.done, "total": restore.total, "remaining_s": None if eta_s is None else round(eta_s, 1)
    }  # fmt: skip
    held = None if hold is None else {
        "reason": hold.reason,
        "message": hold.message,
        "offset": hold.offset,
        "tries": hold.tries,
        "since": datetime.fromtimestamp(hold.since_ms / 1000, UTC).isoformat(),
        "to_do": REMEDIES.get(hold.reason, "").format(topic=pipeline, partition=partition),
    }  # fmt: skip
    return {"partition": partition, "state": task.state.value, "lag": task.lag, "restore": progress, "held": held}


def serve(port: int, health: Health, *, host: str = "") -> PageServer:
    """Serve the pages; returns their server, which ends with the process.

    Args:
        port: the port; 0: any free one.
        health: the source of the health pages.
        host: the address to listen on; empty: every address, of IPv6 too where there is IPv6.

    Raises:
        OSError: the address cannot be used.
        OverflowError: there is no such port.
    """
    probes = {"/livez": lambda _: _verdict(health.dead()), "/readyz": lambda _: _verdict(health.unready())}
    return PageServer(port, {"/metrics": metrics_page(), "/status": lambda _: _status(health)}, probes, host=host)


def _status(health: Health) -> Answer:
    status = json.dumps(health.status()).encode() + b"\n"
    return Answer(HTTPStatus.OK, status, (("Content-Type", "application/json"),))


def _verdict(reasons: list[str]) -> Answer:
    """A page that is 200 without reasons against it, or else 503 with a line for each."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Answer(status, "".join(f"{line}\n" for line in reasons or ["ok"]).encode())
