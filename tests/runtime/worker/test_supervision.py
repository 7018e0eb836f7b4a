"""The supervision of pipelines: failures, restarts, and fences that keep one from its start."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.forward import Forward, ForwardSettings
from processor.config import Config, TopicConfig
from processor.errors import BrokerUnavailable, ConfigurationError, DefinitionChanged, Stop, TopicFenced
from processor.hosting.pipeline import Pipeline
from processor.installation.configured_pipelines import pipelines
from processor.installation.control_thread import ControlThread
from processor.installation.hold import Resume
from processor.runtime.worker import supervision
from processor.runtime.worker.fenced_pipelines import FencedPipelines
from processor.runtime.worker.supervision import PipelineState, Supervised
from processor.wire.control import Fence
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


def test_a_view_with_another_definition_is_not_started_again(started: Callable[..., Runs]):
    """The settings of a process and the rows stay as they are: the stage has failed, and stays so until its stop."""
    runs = started()
    until(lambda: runs.supervised.state is PipelineState.RUNNING)
    runs.supervised.fail(DefinitionChanged("rows"))
    until(lambda: runs.reported == ["rows"])
    assert runs.supervised._pause_s(DefinitionChanged("rows")) == float("inf")
    assert (runs.begun, runs.supervised.has_failed) == (1, True)


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


CONFIG = Config.model_validate({"topics": {"orders": {}, "orders_12": {"partitions": 12, "moved_from": "orders"}}})


class _Fences:
    """The fences that were read."""

    def __init__(self, **fences: Fence) -> None:
        self._fences = fences

    def fence_of(self, pipeline: str) -> Fence | None:
        """The fence of a pipeline."""
        return self._fences.get(pipeline)

    def learn_fence(self, pipeline: str, fence: Fence) -> None:
        """Keep a fence that was found in the marks."""
        self._fences[pipeline] = fence

    def fence(self, pipeline: str) -> TopicFenced | None:
        """The refusal of a pipeline whose fence is up."""
        fence = self._fences.get(pipeline)
        return TopicFenced(fence.phase) if fence is not None and fence.is_up else None


def place(name: str, config: Config = CONFIG, **fences: Fence) -> Pipeline:
    """The pipeline of a topic as it is to run."""
    (pipeline,) = pipelines(CONFIG, [name])
    return FencedPipelines(config, cast("ControlThread", _Fences(**fences))).of(pipeline)


def fence(phase: str, **more: object) -> Fence:
    """A fence."""
    return Fence.model_validate({"at_ms": 1, "phase": phase, "number": 0, "moved_to": "orders_12", **more})


def test_before_a_move_the_topic_merges_and_the_other_waits() -> None:
    """Also while the records are copied."""
    assert place("orders").processor_type is DeltaMerge
    with pytest.raises(TopicFenced, match="sowstream reshard orders"):
        place("orders_12")
    for phase in ("workers", "resharding", "spark"):
        with pytest.raises(TopicFenced):
            place("orders_12", orders=fence(phase))
    with pytest.raises(TopicFenced):
        place("orders", orders=fence("resharding"))


def test_after_a_move_the_topic_forwards_and_the_other_merges() -> None:
    """The forwarding pipeline has the partitions of the fence, also those by which the input has grown."""
    moved = fence("moved", offsets=dict.fromkeys(range(6), 0), waiting=[4, 5])
    merging = place("orders_12", orders=moved)
    assert merging.processor_type is DeltaMerge
    assert merging.outlets["moved_acks"] == ("orders.ack", 6)
    forwarding = place("orders", orders=moved)
    assert (forwarding.processor_type, forwarding.topic.partitions) == (Forward, 6)
    assert forwarding.settings == ForwardSettings(
        moved_to="orders_12", kafka_topic="orders_12.publish", waiting=frozenset({4, 5})
    )
    assert forwarding.outlets["moved"] == ("orders_12.publish", 12)
    assert forwarding.source == "orders.publish"
    assert forwarding == place("orders", orders=moved)
    assert forwarding != place("orders", orders=moved.model_copy(update={"waiting": []}))


def test_a_fence_in_the_marks_holds_a_pipeline_that_merges() -> None:
    """A fence that is up or of a newer version holds a partition, although the control topic has not shown it."""
    fences = _Fences()
    fenced = FencedPipelines(CONFIG, cast("ControlThread", fences))
    (merging,) = pipelines(CONFIG, ["orders"])
    for phase in ("resharding", "spark", "to_spark", "backfill", "replacing", "a phase of a newer version"):
        why = fenced.refusal(merging, fence(phase, by="anna@desk").encode())
        assert why is not None
        assert "by its marks" in why
        assert fenced.of(merging) is merging, "only a move that is over makes another pipeline of it"
    assert "newer version" in str(fenced.refusal(merging, b'{"format": 99}'))
    assert fenced.refusal(merging, fence("workers").encode()) is None


def test_a_topic_that_has_moved_forwards_by_its_marks_alone() -> None:
    """The fence in the marks has all that forwarding needs, unless partitions wait for others."""
    for waiting in ([], [4]):
        fences = _Fences()
        fenced = FencedPipelines(CONFIG, cast("ControlThread", fences))
        (merging,) = pipelines(CONFIG, ["orders"])
        moved = fence("moved", offsets=dict.fromkeys(range(6), 0), waiting=waiting)
        assert "orders_12 has taken its place" in str(fenced.refusal(merging, moved.encode()))
        running = fenced.of(merging)
        assert running.processor_type is (DeltaMerge if waiting else Forward)
        if not waiting:
            assert fenced.refusal(running, moved.encode()) is None


def test_a_move_to_a_topic_that_the_settings_lack_is_an_error() -> None:
    """Its input would wait for ever, without a word."""
    with pytest.raises(ConfigurationError, match=r"topics\.orders_12 with `moved_from: orders`"):
        place("orders", Config.model_validate({"topics": {"orders": {}}}), orders=fence("moved", offsets={0: 0}))
