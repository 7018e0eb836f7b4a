"""Tests of supervision: a failed pipeline is restarted, and the others of its process go on."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import BrokerUnavailable, Stop, TopicFenced
from processor.hosting.pipeline import Pipeline
from processor.installation.hold import Resume
from processor.runtime.worker import supervision
from processor.runtime.worker.supervision import PipelineState, Supervised
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC = TopicConfig()
PIPELINE = Pipeline.of(DeltaMerge, TOPIC, name="orders", topic=TOPIC)


class Runs:
    """Scripted runs of a pipeline: raise at the start, run, or run until an error is ordered."""

    def __init__(self, *runs: Exception | None) -> None:
        self._runs = list(runs)
        self.begun = 0
        self.reported: list[str | None] = []
        self.supervised = Supervised(
            PIPELINE,
            self._run,
            report_failure=lambda _name, message: self.reported.append(message),
            first_pause_s=0.001,
        )

    def _run(self, _pipeline: Pipeline, stop: threading.Event, is_running: Callable[[], None]) -> None:
        self.begun += 1
        error = self._runs.pop(0) if self._runs else None
        if error is not None:
            raise error
        is_running()
        stop.wait()


@pytest.fixture
def started() -> Iterator[Callable[..., Runs]]:
    """Start pipelines, and end them after the test."""
    all_runs: list[Runs] = []

    def start(*runs: Exception | None) -> Runs:
        all_runs.append(Runs(*runs))
        all_runs[-1].supervised.thread.start()
        return all_runs[-1]

    yield start
    for runs in all_runs:
        runs.supervised.stop()
        runs.supervised.thread.join(60)
        assert not runs.supervised.thread.is_alive()


def test_a_pipeline_that_fails_is_started_again_until_it_runs(started: Callable[..., Runs]):
    """After any error, also a foreign one, the pipeline is restarted; error and recovery are reported."""
    runs = started(Stop("topics"), ValueError("a plug-in's"), None)
    until(lambda: runs.supervised.state is PipelineState.RUNNING)
    assert (runs.begun, runs.reported) == (3, ["topics", "a plug-in's", None])
    assert runs.supervised.error is None


def test_a_pipeline_that_is_made_to_fail_ends_its_run_first(started: Callable[..., Runs]):
    """A pipeline whose topic was deleted commits, fails with that error, and is restarted."""
    runs = started()
    until(lambda: runs.supervised.state is PipelineState.RUNNING)
    runs.supervised.fail(Stop("deleted"))
    until(lambda: runs.begun == 2 and runs.supervised.state is PipelineState.RUNNING)
    assert runs.reported == ["deleted", None]


def test_kafka_s_silence_is_no_failure(started: Callable[..., Runs], caplog: pytest.LogCaptureFixture):
    """While Kafka is silent the process waits, and logs it once, not with each try."""
    runs = started(*[BrokerUnavailable("silence")] * 3, None)
    until(lambda: runs.supervised.state is PipelineState.RUNNING)
    assert runs.begun == 4
    assert "silence" not in [message for message in runs.reported if message]


def test_waiting_for_kafka_does_not_count_as_failed(monkeypatch: pytest.MonkeyPatch):
    """A process does not end while Kafka is silent."""
    supervised = Supervised(PIPELINE, cast("Any", None))
    monkeypatch.setattr(supervision.PIPELINE_STATE, "labels", lambda *_: cast("Any", threading.local()))
    for error, has_failed in ((BrokerUnavailable("silence"), False), (Stop("disk"), True)):
        supervised.error, supervised.state = error, PipelineState.FAILED
        assert supervised.has_failed is has_failed


def test_the_pauses_grow_and_kafka_s_do_not():
    """Pauses are 1 s, 2 s ... five minutes; after Kafka's silence never more than five seconds."""
    supervised = Supervised(PIPELINE, cast("Any", None))
    pauses_s = [supervised._pause_s(Stop("disk")) for _ in range(12)]
    assert pauses_s == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert supervised._pause_s(BrokerUnavailable("silence")) == 5


def test_an_order_restarts_a_pipeline_at_once():
    """An operator who has mended the cause need not wait for the end of the pause."""
    orders: SimpleQueue[Resume] = SimpleQueue()
    supervised = Supervised(PIPELINE, cast("Any", None), orders=orders)
    orders.put(Resume(None, None, 0))
    began_s = time.monotonic()
    supervised._pause(300.0)
    assert time.monotonic() - began_s < 60
    assert orders.empty()


def test_a_fenced_pipeline_waits_and_is_no_failure(
    started: Callable[..., Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that Spark merges waits without counting as failed, is not reported, and runs after the handback."""
    monkeypatch.setattr(supervision, "_FENCE_PAUSE_S", 0.001)
    fenced = TopicFenced("Spark merges it")
    runs = started(*[fenced] * 20, None)
    until(lambda: runs.supervised.state is PipelineState.RUNNING)
    assert runs.begun == 21
    runs.supervised.fail(fenced)
    until(lambda: runs.begun == 22)
    assert not runs.supervised.has_failed
    assert not any(runs.reported)


class Slow:
    """A pipeline that begins to run, and ends its run after its stop, when it is told to."""

    def __init__(self) -> None:
        self.may_run, self.may_end = threading.Event(), threading.Event()
        self.supervised = Supervised(PIPELINE, self._run)
        self.supervised.thread.start()

    def _run(self, _pipeline: Pipeline, stop: threading.Event, is_running: Callable[[], None]) -> None:
        self.may_run.wait(PATIENCE_S)
        is_running()
        stop.wait()
        self.may_end.wait(PATIENCE_S)


def test_a_pipeline_that_is_not_running_is_left_at_the_end(monkeypatch: pytest.MonkeyPatch):
    """A pipeline that waits for Kafka has nothing to commit: the process does not wait for it."""
    monkeypatch.setattr(supervision, "_UNSTARTED_S", 0.01)
    slow = Slow()
    slow.supervised.stop()
    assert slow.supervised.has_ended(by_s=time.monotonic() + 20)
    assert slow.supervised.thread.is_alive()
    slow.may_run.set()
    slow.may_end.set()
    slow.supervised.thread.join(60)


def test_a_pipeline_that_begins_to_run_during_its_stop_has_the_time_of_any_other(monkeypatch: pytest.MonkeyPatch):
    """It is not ended by force after the short wait for one that does not run: it commits first."""
    slow = Slow()
    slow.supervised.stop()
    left_s = time.monotonic() + supervision._UNSTARTED_S
    looks = []

    def join(_seconds: float | None) -> None:
        looks.append(slow.supervised.state)
        if len(looks) == 1:
            slow.may_run.set()
            until(lambda: time.monotonic() > left_s + 0.1 and slow.supervised.state is PipelineState.RUNNING)
        else:
            slow.may_end.set()
            until(lambda: slow.supervised.state is PipelineState.STOPPED)

    monkeypatch.setattr(slow.supervised.thread, "join", join)
    assert slow.supervised.has_ended(by_s=time.monotonic() + 20)
    assert looks[:2] == [PipelineState.STARTING, PipelineState.RUNNING]


def test_a_pipeline_that_still_runs_at_the_deadline_is_told():
    """The process then ends by force."""
    slow = Slow()
    slow.may_run.set()
    until(lambda: slow.supervised.state is PipelineState.RUNNING)
    slow.supervised.stop()
    assert not slow.supervised.has_ended(by_s=time.monotonic())
    slow.may_end.set()
    slow.supervised.thread.join(60)
