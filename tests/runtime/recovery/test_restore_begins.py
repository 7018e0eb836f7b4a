"""The begin of a restore, the ranges that it reads, and the progress that it reports."""

from __future__ import annotations

import io
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from prometheus_client import REGISTRY
from rich.console import Console

from processor.codec import load_codec
from processor.config import TopicConfig
from processor.errors import ConfigurationError, StateDamaged
from processor.hosting.pipeline import Pipeline
from processor.kafka import errors as kafka_errors
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import Committed
from processor.kafka.admin.questions import Question
from processor.kafka.clients.log_reader import LogReader, Position
from processor.record import Record, Stored
from processor.runtime.recovery import job as jobs
from processor.runtime.recovery import restorer as restoring
from processor.runtime.recovery.input_position import InputPositions, Start
from processor.runtime.recovery.job import RestoreBar, RestoreJob, RestoreProgress
from processor.runtime.recovery.log_replay import PresentKeys
from processor.runtime.recovery.restore_range import RestoreRange, RestoreRanges
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.runtime.test_task import Script, Scripted
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from processor.store.contract import Progress


class Troubled(MemoryStore):
    """A store that is damaged while it is in use, until it is wiped."""

    is_damaged = False

    def progress(self) -> Progress:
        """Raise the damage, or return the progress."""
        if self.is_damaged:
            raise StateDamaged("a block's checksum is wrong")
        return super().progress()

    def wipe(self) -> None:
        """Delete all data, and the damage."""
        self.is_damaged = False
        super().wipe()


@pytest.fixture
def begin() -> Iterator[Callable[[Callable[[int], LayeredState], int], Restorer]]:
    """Create a restorer with partitions to restore, whose topics are empty."""
    mock = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = mock.list_topics(timeout=PATIENCE_S).brokers.values()
    for topic in ("orders.publish", "orders.sow"):
        mock.list_topics(topic, timeout=PATIENCE_S)
    kafka = {"bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers)}
    restorers: list[Restorer] = []

    def derived_from(open_state: Callable[[int], LayeredState], partitions: int) -> Restorer:
        restorer = Restorer(
            reader=LogReader(kafka, group="g"),
            admin=Admin(kafka),
            source="orders.publish",
            sow="orders.sow",
            mark=None,
            open_state=open_state,
            stall_timeout_s=60.0,
        )
        restorer._ranges.horizons_ms["orders.sow"] = 86_400_000.0  # That cluster tells no settings of topics.
        pipeline = Pipeline.of(Scripted, Script(), name="orders", topic=TopicConfig())
        for partition in range(partitions):
            restorer.add(Task(pipeline, partition, load_codec("json")))
        restorers.append(restorer)
        return restorer

    yield derived_from
    for one in restorers:
        one.close()
    mock.flush(0)


def until_ready(restorer: Restorer) -> list[tuple[Task, int]]:
    """Advance until every partition is ready; returns them with their input offsets."""
    ready: list[tuple[Task, int]] = []
    until(lambda: ready.extend(restorer.advance(0.01)) or not restorer.is_busy, "a restore", pause_s=0)
    return ready


_HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("horizon_h", "behind_h", "ago_h", "is_compared", "is_late"),
    [
        (24, 30, 6, False, True),  # It was less than a day behind at its start, which compared nothing.
        (24, 30, 6, True, False),  # All deletes of the last day are still there, or were found.
        (24, 30, 25, True, True),
        (24, 20, 25, True, False),
        (24, 30, 0.1, False, False),
        (0, 0.001, 25, True, False),  # As far behind as a healthy task; its topic keeps deletes for no time at all.
        (0, 0.2, 0.1, True, False),
        (0, 0.2, 0.3, True, True),
    ],
)
def test_a_task_that_reads_too_late_is_compared_once_in_the_time_that_deletes_stay(
    begin, horizon_h, behind_h, ago_h, is_compared, is_late
):
    """That time counts from the last comparison, not from a rewind, and is ten minutes at least."""
    restorer = begin(lambda _: LayeredState(MemoryStore(), cache_bytes=1_000), 1)
    [(task, _)] = until_ready(restorer)
    restorer.comparison.is_on = True
    restorer._ranges.horizons_ms["orders.publish"] = horizon_h * _HOUR_MS
    young = -1 if is_compared else 0
    now_ms = int(time.time() * 1000)
    task.compare_after_ms = 0.0
    restorer.comparison.note(task, Start(5, end=9, young=young), 5)
    task.compare_after_ms -= ago_h * _HOUR_MS
    task.start(5)
    task.process([Record(b"k", b"{}", None, 5, int(now_ms - behind_h * _HOUR_MS))])
    task.rewind()
    task.start(5)
    task.process([Record(b"k", b"{}", None, 5, int(now_ms - behind_h * _HOUR_MS))])
    assert restorer.comparison.lacks_deletes(task) is is_late


def test_a_comparison_reads_to_the_end_of_its_own_time(begin, monkeypatch):
    """A key whose record before the former end was removed by compaction has a newer one behind it, and is kept."""
    monkeypatch.setattr(restoring, "_BATCH_RECORDS_MAX", 1)
    restorer = begin(lambda _: LayeredState(MemoryStore(), cache_bytes=1_000), 1)
    [(task, _)] = until_ready(restorer)
    task.state.restore({b"updated": Stored(1, b"{}"), b"gone": Stored(4, b"{}")}, 2, 0)
    properties = restorer._ranges._admin._properties
    writer = Producer({"bootstrap.servers": properties["bootstrap.servers"]})
    for key in (b"a", b"b", b"c", b"d", b"updated"):
        writer.produce("orders.publish", b"{}", key, 0)
    assert writer.flush(PATIENCE_S) == 0
    restorer._jobs[0] = compared = RestoreJob(task, 0.0, start=Start(1, end=2, young=-1))
    compared.present = PresentKeys("orders.publish", 0, 0, 2, task.state)
    compared.logs = {"orders.publish": compared.present}
    restorer._reader.add([Position("orders.publish", 0, 0)])
    restorer._stalls.moved(0)
    until_ready(restorer)
    assert [record.key for record in task.missed] == [b"gone"]


@pytest.mark.parametrize(("slow_s", "is_empty"), [(60.0, True), (0.1, False)])
def test_a_comparison_that_makes_no_progress_delays_no_other_partition(begin, monkeypatch, slow_s, is_empty):
    """A partition without records needs no comparison, and another one gets its turn; the stuck one waits for it."""
    monkeypatch.setattr(jobs, "_SLOW_S", slow_s)
    monkeypatch.setattr(Scripted, "keeps_input_keys", True)
    restorer = begin(lambda _: LayeredState(MemoryStore(), cache_bytes=1_000), 2)
    ready: list[tuple[Task, int]] = []
    for task, _ in sorted(until_ready(restorer), key=lambda each: each[0].partition):
        stuck = task.partition == 0
        if stuck or not is_empty:
            task.state.restore({b"gone": Stored(4, b"{}")}, 2, 0)
        # The end of the first partition is never reached, as that behind an open transaction.
        job = restorer._jobs[task.partition] = RestoreJob(task, 0.0, start=Start(1, end=100 if stuck else 3, young=-1))
        restorer._stalls.moved(task.partition)
        restorer._complete(job, ready)
    properties = restorer._ranges._admin._properties
    writer = Producer({"bootstrap.servers": properties["bootstrap.servers"]})
    for _ in range(3):
        writer.produce("orders.publish", b"{}", b"a", 1)
    assert writer.flush(PATIENCE_S) == 0
    until(lambda: ready.extend(restorer.advance(0.01)) or ready, "the other partition", pause_s=0)
    assert [task.partition for task, _ in ready] == [1]
    assert [record.key for record in ready[0][0].missed] == ([] if is_empty else [b"gone"])
    until(lambda: restorer.advance(0.01) or restorer.comparison.current is not None, "its next turn", pause_s=0)
    assert list(restorer._jobs) == [0]


def test_a_clock_that_was_set_back_makes_no_task_late(begin):
    """The end of its input is found again within a second or so; until then its last record may be old."""
    restorer = begin(lambda _: LayeredState(MemoryStore(), cache_bytes=1_000), 1)
    [(task, _)] = until_ready(restorer)
    restorer.comparison.is_on = True
    restorer._ranges.horizons_ms["orders.publish"] = 24 * _HOUR_MS
    task.compare_after_ms = 0.0
    task.start(5)
    task.process([Record(b"k", b"{}", None, 5, int(time.time() * 1000) - 30 * _HOUR_MS)])
    assert restorer.comparison.lacks_deletes(task)
    task.has_seen(int(time.time() * 1000) + 300_000)
    task.punctuate()
    assert not restorer.comparison.lacks_deletes(task)


def test_damage_that_is_found_before_anything_is_read_is_healed(begin):
    """The store is wiped and restored, as with damage that is found later."""
    store = Troubled()

    def open_state(_: int) -> LayeredState:
        state = LayeredState(store, cache_bytes=1_000)
        store.is_damaged = True
        return state

    until_ready(begin(open_state, 1))
    assert not store.is_damaged


def test_many_partitions_are_opened_over_many_turns(begin, monkeypatch):
    """Opening takes longer than a turn may, and ready partitions have their turns in between."""
    monkeypatch.setattr(restoring, "_OPEN_S", 0.0)
    opened: list[int] = []

    def open_state(partition: int) -> LayeredState:
        opened.append(partition)
        return LayeredState(MemoryStore(), cache_bytes=1_000)

    restorer = begin(open_state, 3)
    restorer.advance(0.0)
    assert opened == [0]
    until_ready(restorer)
    assert opened == [0, 1, 2]


def test_a_processor_without_state_and_marks_is_ready_at_once(begin):
    """Only the committed offset is asked for; no directory is opened."""
    restorer = begin(lambda _: LayeredState(MemoryStore(), cache_bytes=0), 2)
    restorer._sow = None
    assert [(task.partition, offset) for task, offset in until_ready(restorer)] == [(0, 0), (1, 0)]


def restorer(code: int) -> Restorer:
    """Create a restorer whose first question, the id of the SOW topic, is answered with an error."""

    def open_state(_: int) -> NoReturn:
        error = KafkaException(KafkaError(code))
        raise kafka_errors.stop(error, "looking at the topic orders.sow") from error

    created = Restorer(
        reader=cast("Any", SimpleNamespace(group="g")),  # Nobody else is asked before.
        admin=cast("Any", SimpleNamespace(renewal=None)),
        source="orders.publish",
        sow="orders.sow",
        mark=None,
        open_state=open_state,
        stall_timeout_s=60.0,
    )
    pipeline = Pipeline.of(Scripted, Script(), name="orders", topic=TopicConfig())
    created.add(Task(pipeline, 0, load_codec("json")))
    return created


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TRANSPORT])
def test_a_broker_that_does_not_know_its_topics_yet_is_asked_again(code):
    """The topics existed at the start of the worker, so the question is repeated until it is answered."""
    waiting = restorer(code)
    assert waiting.advance(0.0) == []
    assert waiting.is_busy


def test_a_broker_that_refuses_ends_the_worker():
    """A refused question is not repeated."""
    with pytest.raises(ConfigurationError, match="ACLs"):
        restorer(KafkaError.TOPIC_AUTHORIZATION_FAILED).advance(0.0)


class Asked:
    """An admin client that keeps the questions; the test answers them."""

    renewal = SimpleNamespace(answered=lambda _: None)

    def __init__(self) -> None:
        self.futures: dict[tuple[str, str], Future[Any]] = {}

    def answer(self, question: str, topic: str, value: Any) -> None:
        """Answer a question."""
        self.futures[question, topic].set_result(value)

    def ask_committed(self, _group: str, topic: str, partitions: Iterable[int]) -> dict[int, Question[Committed]]:
        """Ask for the committed offset."""
        return self._ask("committed", topic, partitions)

    def ask_offsets(self, topic: str, partitions: Iterable[int], kind: str) -> dict[int, Question[int]]:
        """Ask for an offset of a log."""
        return self._ask(kind, topic, partitions)

    def ask_config(self, topic: str) -> Question[dict[str, str]]:
        """Ask for settings."""
        return self._ask("settings", topic, [0])[0]

    def ask_topic(self, topic: str) -> Question[tuple[str, int]]:
        """Ask for an id."""
        return self._ask("id", topic, [0])[0]

    def _ask(self, question: str, topic: str, partitions: Iterable[int]) -> dict[int, Question[Any]]:
        future = self.futures[question, topic] = Future()
        return {partition: Question(question, future, 60.0) for partition in partitions}


def test_the_ends_of_the_logs_are_asked_for_once_the_committed_offset_is_known():
    """An end from before that offset may lack records that were committed with it, and the state would lack them."""
    admin = Asked()
    positions = InputPositions("desk", "orders", "orders.publish")
    ranges = RestoreRanges(
        cast("Any", admin), positions, group="g", source="orders.publish", sow="orders.sow", mark="orders.mark"
    )
    ranges.add(0)
    ranges.turn()
    admin.answer("oldest", "orders.publish", 0)
    admin.answer("settings", "orders.sow", {})
    admin.answer("id", "orders.publish", ("first", 1))
    ranges.turn()
    logs = ("orders.sow", "orders.mark")
    assert not any(("end", log) in admin.futures for log in logs)
    admin.answer("committed", "orders.publish", Committed(7, None))
    ranges.turn()
    for log in logs:
        admin.answer("end", log, 5)
        admin.answer("oldest", log, 0)
    outcome = ranges.turn()[0]
    assert isinstance(outcome, RestoreRange)
    assert (outcome.start.offset, outcome.ends) == (7, dict.fromkeys(logs, 5))


def test_each_topic_has_its_own_retention_of_deletes():
    """The state and a table come from two topics, and each is judged by the settings of its own."""
    admin = Asked()
    positions = InputPositions("desk", "orders", "orders.parts")
    ranges = RestoreRanges(
        cast("Any", admin), positions, group="g", source="orders.parts", sow="orders.sow", mark=None, table=True
    )
    ranges.add(0)
    ranges.turn()
    for topic, kept_ms in (("orders.parts", "5000"), ("orders.sow", "60000")):
        admin.answer("settings", topic, {"delete.retention.ms": kept_ms})
    ranges.turn()
    assert ranges.horizons_ms == {"orders.parts": 5_000, "orders.sow": 60_000}


@pytest.mark.parametrize(
    ("offset", "young", "lacks"),
    [
        (7, 8, True),  # What was between them may be gone.
        (7, -1, True),  # No record is young.
        (7, 7, False),
        (7, 3, False),
        (19, -1, False),  # The last offset of a partition is never compacted.
        (20, -1, False),
        (0, 8, False),  # Nothing was read yet.
    ],
)
def test_deletes_may_be_gone_where_no_record_up_to_the_offset_is_young(offset, young, lacks):
    """All records behind a young one are young, and so their deletes are still there."""
    assert Start(offset, end=20, young=young).lacks_deletes(offset) is lacks


def shown_progress(*, is_terminal, seconds, term="xterm-256color"):
    """Draw the restores of two processors of the given duration."""
    file = io.StringIO()
    clock = iter(range(0, 1000, seconds))
    bar = RestoreBar(
        Console(file=file, force_terminal=is_terminal, width=100, _environ={"TERM": term}), lambda: next(clock) * 1.0
    )
    for left in (90, 100, 40):
        bar.update("orders", left)
        bar.update("trades", left)
    bar.update("orders", 0)
    bar.update("trades", 10)
    bar.update("trades", 0)
    assert bar._progress is None
    return file.getvalue()


def test_a_terminal_sees_a_bar_of_each_processor_that_restores_for_long():
    """The total of a bar is the largest number of remaining offsets: the topic may grow."""
    drawn = shown_progress(is_terminal=True, seconds=2)
    assert "restoring orders" in drawn
    assert "restoring trades" in drawn
    assert "/100" in drawn


def test_a_short_restore_draws_no_bar():
    """Most restarts restore little."""
    file = io.StringIO()
    bar = RestoreBar(Console(file=file, force_terminal=True), lambda: 0.0)
    for left in (5, 3, 0):
        bar.update("orders", left)
    assert file.getvalue() == ""


def test_without_a_terminal_there_are_log_lines_only():
    """A bar would fill a file with escape sequences."""
    assert shown_progress(is_terminal=False, seconds=2) == ""


def test_a_dumb_terminal_gets_log_lines_only():
    """A terminal without cursor movement would get an empty line for each step of a bar."""
    assert shown_progress(is_terminal=True, seconds=2, term="dumb") == ""


def test_restored_records_are_counted():
    """The rate of the counter is the rate of the restore."""
    progress = RestoreProgress("counted", RestoreBar(Console(file=io.StringIO())))
    progress.took(5)
    progress.took(7)
    assert REGISTRY.get_sample_value("sowstream_restored_records_total", {"processor": "counted"}) == 12
