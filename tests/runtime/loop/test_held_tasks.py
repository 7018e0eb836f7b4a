"""Tests of held tasks: the schedule of their retries, operators' orders, and the tasks that are rewound with them."""

from __future__ import annotations

from queue import SimpleQueue

import pytest
from confluent_kafka import Message, Producer

from processor.builtin.conflate import Conflate
from processor.codec.contract import load_codec
from processor.config import ConflatedConfig, TopicConfig
from processor.errors import PartitionHeld
from processor.hosting.pipeline import Pipeline
from processor.record import Record
from processor.runtime.loop.held_tasks import PAUSE_MAX_S, HeldTasks, Hold, Holds, Resume
from processor.runtime.metrics import HELD, ThreadMetrics
from processor.runtime.task import Task
from processor.runtime.task_state import TaskState
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.runtime.loop.turned_thread import TurnedThread, mock_kafka
from tests.runtime.test_task import Script, Scripted, a_record
from tests.waiting import until


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


def error(text: str = "no") -> PartitionHeld:
    """Create a reason to hold a partition."""
    return PartitionHeld("registry", text)


def test_each_pause_is_twice_as_long_up_to_five_minutes():
    """A partition without progress is retried after 1, 2, 4 ... 300 s."""
    clock = Clock()
    holds = Holds(clock, lambda: 7)
    pauses_s = []
    for _ in range(11):
        hold = holds.add(3, error(), 40)
        pauses_s.append(hold.due_s - clock.now_s)
        assert holds.take_due() == []
        clock.now_s = hold.due_s
        assert holds.take_due() == [3]
    assert pauses_s == [1, 2, 4, 8, 16, 32, 64, 128, 256, PAUSE_MAX_S, PAUSE_MAX_S]
    assert hold.tries == 10


def test_a_retried_partition_is_not_held_and_not_forgotten():
    """Only progress resets the pause of a retried partition to a second."""
    clock = Clock()
    holds = Holds(clock, lambda: 7)
    holds.add(3, error(), 40)
    clock.now_s += 1
    assert holds.take_due() == [3]
    assert (holds.held, holds.asked) == ({}, {3})
    assert holds.add(3, error(), 40).tries == 1
    clock.now_s += 2
    assert holds.take_due() == [3]
    assert holds.released(3) is not None
    assert holds.released(3) is None
    assert holds.add(3, error(), 41)[4:6] == (0, clock.now_s + 1)


def test_a_hold_keeps_the_time_of_its_first_failure():
    """The start of a hold does not change with retries, or with another reason."""
    times_ms = iter((5, 6, 7))
    holds = Holds(Clock(), lambda: next(times_ms))
    holds.add(3, error("no"), 40)
    again = holds.add(3, error("never"), 40)
    assert (again.since_ms, again.message) == (5, "never")


def test_an_order_is_obeyed_at_once():
    """An order retries one partition or all held ones at once; partitions that are not held are left alone."""
    clock = Clock()
    holds = Holds(clock)
    for partition in (1, 2):
        holds.add(partition, error(), 0)
    assert holds.ask_now(9) == []
    assert holds.ask_now(2) == [2]
    assert holds.take_due() == [2]
    assert holds.ask_now(None) == [1]
    assert holds.take_due() == [1]


class Notices:
    """Keeps the published holds."""

    def __init__(self) -> None:
        self.published: list[tuple[str, int, Hold | None]] = []
        self.queue: SimpleQueue[Resume] = SimpleQueue()
        self.places: dict[int, tuple[int, str]] = {}

    def report(self, pipeline: str, partition: int, hold: Hold | None) -> None:
        """Keep a hold, or its end."""
        self.published.append((pipeline, partition, hold))

    def orders(self, _pipeline: str) -> SimpleQueue[Resume]:
        """Return the queue of orders."""
        return self.queue

    def stuck(self, _pipeline: str, partition: int) -> tuple[int, str] | None:
        """Return the place at which a former owner's processor did not return."""
        return self.places.get(partition)


class Scene:
    """Two tasks of one thread, at input offset 40."""

    def __init__(self, name: str) -> None:
        self.clock = Clock()
        self.notices = Notices()
        self.name = name
        self.held = HeldTasks(name, ThreadMetrics(name), self.notices, Holds(self.clock, lambda: 1_000))
        topic = TopicConfig(dlq_window_records=4, dlq_max_ratio=0.5)
        pipeline = Pipeline.of(Scripted, Script(), name=name, topic=topic)
        self.tasks = {number: Task(pipeline, number, load_codec("json")) for number in (1, 2)}
        for task in self.tasks.values():
            task.open(LayeredState(MemoryStore(), cache_bytes=1_000))
            task.start(40)

    def hold(self, partition: int, error: PartitionHeld) -> None:
        """Hold a task as the thread does."""
        self.tasks[partition].rewind()
        self.held.hold(self.tasks[partition], error)

    def shown(self, reason: str) -> float:
        """Read the value of the metric."""
        return HELD.labels(self.name, reason)._value.get()


@pytest.fixture
def scene(unique: str) -> Scene:
    """Create a scene without held tasks."""
    return Scene(unique)


def test_a_hold_is_published_and_counted_until_the_first_commit(scene: Scene):
    """A hold ends with the first commit, not with the retry, which may fail again."""
    scene.hold(1, PartitionHeld("registry", "silent"))
    assert 1 in scene.held.holds.held
    assert 2 not in scene.held.holds.held
    assert scene.shown("registry") == 1
    assert [(partition, hold.offset, hold.reason) for _, partition, hold in scene.notices.published if hold] == [
        (1, 40, "registry")
    ]
    assert scene.held.due(scene.tasks) == []
    scene.clock.now_s += 1
    task = scene.tasks[1]
    assert scene.held.due(scene.tasks) == [task]
    assert scene.shown("registry") == 0
    task.start(40)
    scene.held.release_recovered(scene.tasks.values())
    assert scene.notices.published[-1][2] is not None, "nothing is committed yet"
    task.committed_offset = 41
    scene.held.release_recovered(scene.tasks.values())
    assert scene.notices.published[-1] == (scene.name, 1, None)


def test_an_order_older_than_the_hold_is_ignored(scene: Scene):
    """The topic of orders is read from its beginning: an old order must not accept today's rejected records."""
    scene.hold(1, PartitionHeld("rejects", "bad"))
    scene.notices.queue.put(Resume(1, None, 999))
    scene.notices.queue.put(Resume(2, None, 2_000))
    assert scene.held.due(scene.tasks) == []
    scene.notices.queue.put(Resume(None, None, 2_000))
    assert scene.held.due(scene.tasks) == [scene.tasks[1]]


@pytest.mark.parametrize(("until", "is_due"), [(39, False), (40, True), (42, True)])
def test_an_order_to_skip_begins_where_the_partition_stands(scene: Scene, until: int, is_due: bool):
    """An order to skip records that are processed already has no effect, so it may be read repeatedly."""
    scene.hold(1, PartitionHeld("rejects", "bad"))
    scene.notices.queue.put(Resume(1, until, 0))
    assert (scene.held.due(scene.tasks) == [scene.tasks[1]]) is is_due


def test_skipped_records_are_dead_letters_and_the_next_one_is_processed(scene: Scene):
    """Skipped records become dead letters without a call of the processor."""
    task = scene.tasks[1]
    scene.hold(1, PartitionHeld("rejects", "bad"))
    scene.notices.queue.put(Resume(1, 41, 0))
    assert scene.held.due(scene.tasks) == [task]
    task.start(40)
    task.process([Record(b"k", b"%d" % offset, None, offset, 0) for offset in (40, 41, 42)])
    outputs = task.take_outputs()
    assert [(value, dict(headers)["dlq_reason"]) for _, value, headers in outputs["dlq"]] == [
        (b"40", b"skipped"),
        (b"41", b"skipped"),
    ]
    assert task.next_offset == 43


def test_unreadable_records_are_skipped_with_one_dead_letter(scene: Scene):
    """One dead letter without a value stands for all unreadable records; its detail has their offsets."""
    task = scene.tasks[1]
    scene.hold(1, PartitionHeld("unreadable_batch", "bad"))
    scene.notices.queue.put(Resume(1, 49, 0))
    assert scene.held.due(scene.tasks) == [task]
    task.start(40)
    assert task.next_offset == 50
    ((key, value, headers),) = task.take_outputs()["dlq"]
    assert (key, value, dict(headers)["source"]) == (None, None, f"{scene.name}.publish/1/40".encode())
    assert b"offsets 40 to 49" in (dict(headers)["dlq_detail"] or b"")
    assert task.task_state is TaskState.RUNNING
    assert task.has_uncommitted


@pytest.mark.parametrize(("order", "waits_on"), [(Resume(1, 40, 0), False), (Resume(None, None, 2_000), False),
                                                 (Resume(1, 39, 0), True), (Resume(2, 40, 0), True)])  # fmt: skip
def test_an_order_that_comes_during_a_retry_is_for_the_next_hold(scene: Scene, order: Resume, waits_on: bool):
    """A partition that is being retried is not held for a moment; an order may come just then, and must not be lost."""
    scene.hold(1, PartitionHeld("rejects", "bad"))
    scene.clock.now_s += 1
    assert scene.held.due(scene.tasks) == [scene.tasks[1]]
    scene.tasks[1].start(40)
    scene.notices.queue.put(order)
    assert scene.held.due(scene.tasks) == []
    published = len(scene.notices.published)
    scene.hold(1, PartitionHeld("rejects", "still bad"))
    assert scene.held.due(scene.tasks) == ([] if waits_on else [scene.tasks[1]])
    assert len(scene.notices.published) == published + waits_on, "no answer before the order has taken effect"
    if not waits_on:
        scene.tasks[1].start(40)
        scene.hold(1, PartitionHeld("rejects", "and still"))
        assert [hold.order_ms for _, _, hold in scene.notices.published[-1:] if hold] == [order.at_ms]


def test_an_order_is_over_with_the_hold_that_it_waited_for(scene: Scene):
    """An order for a partition that went on by itself has no effect on a later hold."""
    task = scene.tasks[1]
    scene.hold(1, PartitionHeld("rejects", "bad"))
    scene.clock.now_s += 1
    scene.held.due(scene.tasks)
    scene.notices.queue.put(Resume(1, 100, 0))
    scene.held.due(scene.tasks)
    task.start(40)
    task.committed_offset = 41
    scene.held.release_recovered(scene.tasks.values())
    scene.hold(1, PartitionHeld("rejects", "bad again"))
    assert scene.held.due(scene.tasks) == []


def records(*offsets: int) -> list[Record]:
    """Build records at these offsets."""
    return [Record(b"k", b"%d" % offset, None, offset, 0) for offset in offsets]


def test_a_successor_holds_a_task_that_begins_where_a_processor_did_not_return(scene: Scene):
    """A task whose input begins at the place of a stuck call is held before it starts, until an order alone."""
    task = scene.tasks[1]
    task.rewind()
    scene.notices.places[1] = (40, "it hung")
    assert scene.held.inherit(task, 40)
    assert 1 in scene.held.holds.held
    hold = scene.held.holds.last(1)
    assert hold is not None
    assert (hold.reason, hold.offset, hold.message) == ("stuck", 40, "it hung")
    scene.clock.now_s += 1_000_000
    assert scene.held.due(scene.tasks) == []
    scene.notices.queue.put(Resume(1, 40, 2_000))
    assert scene.held.due(scene.tasks) == [task]
    assert not scene.held.inherit(task, 40), "it was ordered to go on"
    task.start(40)
    task.process(records(40, 41))
    assert [value for _, value, _ in task.take_outputs()["dlq"]] == [b"40"]
    assert task.next_offset == 42


def test_a_successor_commits_the_records_before_the_place_and_holds_there(scene: Scene):
    """Records in front of the place of a stuck call are processed and committed; the record itself is not processed."""
    task = scene.tasks[1]
    task.rewind()
    scene.notices.places[1] = (42, "it hung")
    assert not scene.held.inherit(task, 40)
    task.start(40)
    scene.held.task_started(task)
    assert scene.notices.published == [], "the hold is still to come"
    batch = records(40, 41, 42, 43)
    assert task.suspects.until >= 40
    share = task.suspects.share(batch, 200)
    assert share == 2, "those before it are committed first"
    task.process(batch[:share])
    assert task.next_offset == 42
    with pytest.raises(PartitionHeld, match="it hung") as held:
        task.process(batch[share:])
    assert held.value.reason == "stuck"
    scene.hold(1, held.value)
    scene.notices.queue.put(Resume(1, None, 2_000))
    assert scene.held.due(scene.tasks) == [task]
    task.start(42)
    assert task.suspects.until >= 42, "if it hangs again, the record is known"
    task.process(batch[share:])
    assert task.next_offset == 44


def test_a_place_that_was_passed_holds_nothing(scene: Scene):
    """A notice of a place before the input position is of the past, and so is none for another partition."""
    task = scene.tasks[1]
    task.rewind()
    scene.notices.places = {1: (39, "it hung"), 2: (40, "it hung")}
    assert not scene.held.inherit(task, 40)
    task.start(40)
    scene.held.task_started(task)
    assert scene.notices.published == [(scene.name, 1, None)]


class FlushFails(Scripted):
    """Fails before a commit in partition 1."""

    def init(self, context, settings):
        """Begin."""
        super().init(context, settings)
        self.partition = context.partition

    def flush(self):
        """Raise."""
        if self.partition == 1:
            raise ValueError("cannot flush")


class TwoPolls:
    """The consumer, whose second poll with a record revokes another partition."""

    def __init__(self, consumer, on_revoked, record):
        """Wrap a consumer."""
        self._consumer, self._on_revoked = consumer, on_revoked
        self._polls, self.begun = iter([[], [record], None]), []

    def __getattr__(self, name):
        """Take all else from the consumer."""
        return getattr(self._consumer, name)

    def poll(self, records_max, timeout_s):
        """Return the next scripted messages."""
        messages = next(self._polls)
        if messages is None:
            self._on_revoked([1])
            return []
        return messages

    def pause(self, partition):
        """Do nothing."""

    def begin(self, partition, offset):
        """Note the place."""
        self.begun.append((partition, offset))


def test_a_record_behind_a_rewind_between_two_polls_comes_again():
    """Its partition begins again before it, so it must not be processed first."""
    with mock_kafka() as kafka:
        turned = TurnedThread(kafka, FlushFails, Script())
        thread = turned.thread
        turned.task.process([a_record(0)])
        other = thread._tasks[1] = Task(turned.task.pipeline, 1, load_codec("json"))
        other.open(LayeredState(MemoryStore(), cache_bytes=1_000))
        other.start(0)
        message = Message(topic="orders.publish", partition=0, offset=1, key=b"7", value=b"{}")
        thread._consumer = TwoPolls(thread._consumer, thread.on_revoked, message)
        assert thread._poll() == []
        assert thread._consumer.begun == [(0, 0)]
        turned.close()


def test_a_copy_delivers_its_updates_before_it_is_held_at_input_that_cannot_be_read():
    """The hold is at the offset that cannot be read: an order to skip from there passes over no update before."""
    now_ms = [1_000_000]
    with mock_kafka() as kafka:
        settings = ConflatedConfig(underlying="orders", interval="1s")
        turned = TurnedThread(kafka, Conflate, settings, "orders_1s", None, lambda: now_ms[0], underlying="orders")
        thread, task = turned.thread, turned.task
        producer = Producer(kafka)
        for version in (b"1", b"2"):
            producer.produce("orders.sow", b'{"id":7}', b"7", 0, headers=[("version", version)])
        assert producer.flush(60) == 0
        thread._consumer.begin(0, 1)
        until(lambda: turned.turn(1) and task.next_offset == 3, "the updates", pause_s=0)
        thread._consumer._hold(0, PartitionHeld("unreadable_batch", "it does not unpack"))
        turned.turn(2)
        assert (0 in thread._held.holds.held, task.committed_offset) == (False, 1)
        now_ms[0] += 1_000
        until(lambda: turned.turn(1) and 0 in thread._held.holds.held, "the hold", pause_s=0)
        hold = thread._held.holds.last(0)
        assert hold is not None
        assert (hold.reason, hold.offset) == ("unreadable_batch", 3)
        turned.close()


class InitFails(Scripted):
    """Fails to begin with partition 1 at offset 7."""

    def init(self, context, settings):
        """Raise, as for a note of a former version."""
        super().init(context, settings)
        if context.partition == 1 and context.lives.next_offset == 7:
            int("n=7")


def test_a_processor_that_cannot_begin_holds_its_partition_alone():
    """The error ends neither the thread nor the other partitions, which are rewound with it."""
    with mock_kafka() as kafka:
        turned = TurnedThread(kafka, InitFails, Script())
        thread = turned.thread
        held = thread._tasks[1] = Task(turned.task.pipeline, 1, load_codec("json"))
        held.open(LayeredState(MemoryStore(), cache_bytes=1_000))
        thread._consumer = TwoPolls(thread._consumer, thread.on_revoked, None)
        with thread._transaction():
            thread._start(held, 7)
        hold = thread._held.holds.last(1)
        assert (hold.reason, hold.offset, 0 in thread._held.holds.held) == ("plugin_failed", 7, False)
        assert "orders partition 1: init raised ValueError" in hold.message
        assert (held.task_state, turned.task.task_state) == (TaskState.RESTORING, TaskState.RUNNING)
        with thread._transaction():
            thread._start(held, 8)
        assert held.task_state is TaskState.RUNNING
        turned.close()
