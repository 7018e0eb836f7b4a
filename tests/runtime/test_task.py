"""Tests of a task: its legal moves, its stream time, and the rejection of a record on which the processor raises."""

import itertools

import pytest
import structlog

from processor.api import Input, Output, Processor, RecordProcessor, RecordRejected, Settings
from processor.codec import load_codec
from processor.config import TopicConfig
from processor.errors import PartitionHeld, ProcessorFailed, StateDamaged, Stop, TransactionAborted
from processor.filter import compile_filter
from processor.filter.limits import STEPS_MAX
from processor.hosting.pipeline import Pipeline
from processor.record import Record, Stored
from processor.runtime.loop.state_access import start_writing
from processor.runtime.task import Task
from processor.runtime.task_state import TaskState
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import bodies, told


class Script(Settings):
    """The script of a `Scripted` processor."""

    failing: frozenset[bytes] = frozenset()
    """Values on which it raises."""
    error: type[Exception] = ValueError
    """The error that it raises."""
    alone_only: bool = False
    """Raise only where the failing record comes together with others."""
    holds: int | None = None
    """The input offset it holds."""
    returns: bool | None = None
    """The result of its punctuation."""


class Scripted(Processor):
    """Counts the records of a key, forwards each with the count, and raises as scripted."""

    settings_type = Script
    input = Input("publish", from_underlying=False)
    outputs = (Output("sow"),)
    closed = 0

    def init(self, context, settings):
        """Begin."""
        self.context, self.script = context, settings
        if settings.holds is not None:
            context.hold(settings.holds)

    def process(self, records):
        """Forward the records one by one, so that the outputs before a failing one are sent."""
        for record in records:
            if record.value in self.script.failing and not (self.script.alone_only and len(records) == 1):
                raise self.script.error(f"cannot take {record.value!r}")
            old = self.context.state.get_many([record.key])[record.key]
            version = 1 if old is None else old.version + 1
            self.context.state.put_many({record.key: Stored(version, record.value)})
            self.context.forward("sow", record.key, record.value, [("version", b"%d" % version)])

    def punctuate(self, now_ms):
        """Raise as for a record."""
        if b"punctuate" in self.script.failing:
            raise self.script.error("cannot punctuate")
        return self.script.returns

    def close(self):
        """Count the call, and raise as scripted."""
        type(self).closed += 1
        if b"close" in self.script.failing:
            raise self.script.error("cannot close")


def scripted(**script) -> ProcessorTestDriver:
    """Create a driver of a scripted processor."""
    return ProcessorTestDriver(Scripted, Script(**script), name="orders")


def test_a_processor_whose_start_was_refused_is_closed_at_once(monkeypatch):
    """The refusal is the error that comes out, though the instance cannot be closed either; the task closes it once."""

    def refuse(*_):
        raise Stop("its definition has changed")

    driver = scripted()
    monkeypatch.setattr(Scripted, "init", refuse)
    closed = Scripted.closed
    with pytest.raises(Stop, match="its definition has changed"):
        driver._begin(MemoryStore(), 0)
    assert Scripted.closed == closed + 1
    with structlog.testing.capture_logs() as lines:
        driver._task.close()
    assert lines == []


class Marker(Scripted):
    """Marks each key with its last value, and each punctuation."""

    outputs = (Output("sow"), Output("mark"))

    def process(self, records):
        """Put a mark."""
        for record in records:
            self.context.marks.put(record.key, record.value)

    def punctuate(self, now_ms):
        """Put a mark."""
        self.context.marks.put(b"punctuated", b"%d" % now_ms)


class Deaf(Scripted):
    """A processor whose `rejected` raises."""

    def rejected(self, record, error):
        """Raise as for a record."""
        raise ValueError(f"cannot hear of {error.reason}")


COSTLY = compile_filter("/a = 'x'")
"""A filter whose evaluation on `LONG` is over its budget."""
LONG = {"a": ["x"] * (STEPS_MAX + 1)}


class Filtering(Scripted):
    """Evaluates a filter over its budget in each of its calls, also in one that fails."""

    def init(self, context, settings):
        """Begin."""
        super().init(context, settings)
        COSTLY.matches(LONG)

    def process(self, records):
        """Evaluate it once for all of them."""
        COSTLY.matches(LONG)
        super().process(records)

    def punctuate(self, now_ms):
        """Evaluate it."""
        COSTLY.matches(LONG)
        return super().punctuate(now_ms)

    def flush(self):
        """Evaluate it."""
        COSTLY.matches(LONG)


def a_task(given=None, *, clock=(1,), **script) -> Task:
    """Create an opened task, of a scripted processor unless another one or a state is given."""
    processor_type, state = (Scripted, given) if isinstance(given, LayeredState | None) else (given, None)
    pipeline = Pipeline.of(processor_type, Script(**script), name="orders", topic=TopicConfig())
    task = Task(pipeline, 3, load_codec("json"), lambda: clock[0])
    task.open(state or LayeredState(MemoryStore(), cache_bytes=0))
    return task


def a_record(offset: int, value: bytes = b"1") -> Record:
    """Create an input record."""
    return Record(b"k", value, None, offset, 0)


MOVES = {
    "open": lambda task: task.open(LayeredState(MemoryStore(), cache_bytes=0)),
    "start": lambda task: task.start(0),
    "rewind": lambda task: task.rewind(),
    "close": lambda task: task.close(),
}
LEGAL = {
    (): {"open": TaskState.RESTORING, "close": TaskState.CLOSED},
    ("open",): {"start": TaskState.RUNNING, "close": TaskState.CLOSED},
    ("open", "start"): {"rewind": TaskState.RESTORING, "close": TaskState.CLOSED},
    ("open", "start", "rewind"): {"start": TaskState.RUNNING, "close": TaskState.CLOSED},
    ("open", "start", "close"): {},
    ("close",): {},
}


class TestStates:
    """Tests of the life cycle drawn in `TaskState`."""

    @pytest.mark.parametrize(("path", "move"), list(itertools.product(LEGAL, MOVES)))
    def test_only_legal_moves_are_possible(self, path, move):
        """An illegal move raises at once and changes nothing."""
        pipeline = Pipeline.of(Scripted, Script(), name="orders", topic=TopicConfig())
        task = Task(pipeline, 0, load_codec("json"), lambda: 1)
        for step in path:
            MOVES[step](task)
        before = task.task_state
        if move in LEGAL[path]:
            MOVES[move](task)
            assert task.task_state is LEGAL[path][move]
        else:
            with pytest.raises(AssertionError, match=f"{move} is no move of a task that is {before.value}"):
                MOVES[move](task)
            assert task.task_state is before


class TestPoison:
    """A record on which the processor raises is rejected alone."""

    def test_a_rejection_survives_an_error_of_the_rejected_method(self):
        """The dead letter is sent once, and the records behind it are processed."""
        driver = ProcessorTestDriver(Deaf, Script(failing=[b"1"]), name="orders")
        driver.pipe_batch([("k", b"%d" % n, None) for n in range(3)])
        driver.commit()
        assert [record.value for record in driver.read_output("sow")] == [b"0", b"2"]
        assert [record.value for record in driver.read_output("dlq")] == [b"1"]

    @pytest.mark.parametrize("batches", [1, 3, 9], ids=lambda number: f"in {number} batches")
    def test_a_failing_record_becomes_a_dead_letter(self, batches):
        """The dead letter has plug-in and error; no other record is lost or repeated."""
        driver = scripted(failing=[b"4"])
        for first in range(0, 9, 9 // batches):
            driver.pipe_batch([("k", b"%d" % n, {"trace": str(n)}) for n in range(first, first + 9 // batches)])
        driver.commit()
        assert [record.value for record in driver.read_output("sow")] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"5",
            b"6",
            b"7",
            b"8",
        ]
        assert [told(record)["version"] for record in driver.read_output("sow")] == [*"12345678"]
        [rejected] = driver.read_output("dlq")
        assert (rejected.key, rejected.value) == (b"k", b"4")
        assert told(rejected) == {
            "trace": "4",
            "dlq_reason": "plugin_failed",
            "dlq_detail": "Scripted raised ValueError: cannot take b'4'",
            "source": "orders.publish/0/4",
        }
        assert driver.rejections == {"plugin_failed": 1}
        assert driver.committed_offset == 9
        assert driver._task.suspects._verdicts == {}, "what is committed need not be remembered"

    def test_each_of_many_failing_records_is_found(self):
        """Each failing record costs two rewinds, and none hides another."""
        driver = scripted(failing=[b"0", b"2", b"3", b"6"])
        driver.pipe_batch([("k", b"%d" % n, None) for n in range(7)])
        driver.commit()
        assert bodies(driver.read_output("dlq")) == [0, 2, 3, 6]
        assert bodies(driver.read_output("sow")) == [1, 4, 5]

    def test_a_batch_that_only_fails_as_a_whole_is_processed_one_by_one(self):
        """If no single record is at fault, none is rejected."""
        driver = scripted(failing=[b"1"], alone_only=True)
        driver.pipe_batch([("k", b"%d" % n, None) for n in range(3)])
        driver.commit()
        assert bodies(driver.read_output("sow")) == [0, 1, 2]
        assert driver.read_output("dlq") == []

    def test_a_failing_record_is_rejected_once_in_spite_of_a_crash(self):
        """It is found again after a crash, and has one dead letter."""
        driver = scripted(failing=[b"1"])
        driver.pipe_batch([("k", b"%d" % n, None) for n in range(3)])
        driver.abort()
        driver.crash()
        driver.commit()
        driver.crash()
        driver.commit()
        assert bodies(driver.read_output("sow")) == [0, 2]
        assert bodies(driver.read_output("dlq")) == [1]

    @pytest.mark.parametrize("error", [Stop, StateDamaged])
    def test_a_stop_or_a_damaged_store_rejects_no_record(self, error):
        """These errors are raised to the caller of the task."""
        driver = scripted(failing=[b"1"], error=error)
        with pytest.raises(error, match="cannot take"):
            driver.pipe_input("k", b"1")

    def test_the_error_has_the_offsets_of_the_failed_records(self):
        """The caller can log the offsets, and must abort the transaction."""
        task = a_task(failing=[b"bad"])
        task.start(0)
        with pytest.raises(
            ProcessorFailed, match=r"orders partition 3, offsets 7 to 8: the processor raised ValueError"
        ):
            task.process([a_record(7), a_record(8, b"bad")])
        assert issubclass(ProcessorFailed, TransactionAborted)


class Waiting(RecordProcessor):
    """Counts the records of each key; in front of a record `wait` it pauses or stops once, after a count of it."""

    input = Input("publish")
    outputs = (Output("sow"),)
    waits = "pause"

    def setup(self, settings):
        """Begin."""
        self.waited = False

    def process_record(self, record):
        """Count one record, and wait in front of the one that says so."""
        if record.value == b'"wait"' and not self.waited:
            self.waited = True
            getattr(self.context, self.waits)(record.offset)
        else:
            self.put(record.key, {"n": (self.get(record.key) or {"n": 0})["n"] + 1})

    def punctuate(self, now_ms):
        """Go on."""
        self.context.resume()


@pytest.mark.parametrize("waits", ["pause", "stop"])
def test_records_behind_a_pause_or_a_stop_are_counted_once(monkeypatch, waits):
    """A processor that takes its records one at a time gets none behind such a record before it comes again."""
    monkeypatch.setattr(Waiting, "waits", waits)
    driver = ProcessorTestDriver(Waiting, {}, name="visits")
    driver.pipe_batch([("a", {}, None), ("b", b'"wait"', None), ("a", {}, None), ("a", {}, None)])
    driver.advance_time(10)
    driver.commit()
    assert [(record.key, record.value) for record in driver.read_output("sow")] == [
        (b"a", b'{"n":1}'),
        (b"b", b'{"n":1}'),
        (b"a", b'{"n":2}'),
        (b"a", b'{"n":3}'),
    ]


class TestPunctuation:
    """Tests of punctuation, for whose errors no record can be rejected."""

    def test_a_failing_punctuation_holds_the_partition(self):
        """The error has the names of pipeline and partition: a repetition would fail again."""
        driver = scripted(failing=[b"punctuate"])
        with pytest.raises(
            PartitionHeld, match=r"orders partition 0: punctuate raised ValueError\('cannot punctuate'\)"
        ):
            driver.advance_time(1)

    @pytest.mark.parametrize("call", ["init", "punctuate", "flush"])
    @pytest.mark.parametrize("error", [RecordRejected("too_large", "a result"), ValueError("no number")], ids=type)
    def test_an_error_without_a_record_holds_the_partition(self, monkeypatch, call, error):
        """As of a result that is too large to `put`, of a record that `get` cannot decode, or of an unreadable note."""

        class Failing(Scripted):
            """Fails in one of its calls."""

            def flush(self):
                """Do nothing."""

        def fail(*_):
            raise error

        driver = ProcessorTestDriver(Failing, Script(), name="orders")
        driver.pipe_input("k", b"1")
        former = driver._task.processor
        monkeypatch.setattr(Failing, call, fail)
        closed = Failing.closed
        act = {"init": driver.abort, "punctuate": lambda: driver.advance_time(1), "flush": driver.commit}[call]
        with pytest.raises(PartitionHeld, match=f"orders partition 0: {call} raised {type(error).__name__}") as held:
            act()
        assert held.value.reason == "plugin_failed"
        monkeypatch.undo()
        driver.abort()
        driver.commit()
        instances = 2 if call == "init" else 1  # The former one, and the one whose start failed.
        assert Failing.closed - closed == instances, "each instance is closed once"
        assert driver._task.processor is not former
        assert bodies(driver.read_output("sow")) == [1]

    @pytest.mark.parametrize(("returned", "has_more"), [(None, False), (False, False), (True, True)])
    def test_a_punctuation_returns_whether_there_is_more_work(self, returned, has_more):
        """A punctuation that returns None has no more work."""
        task = a_task(returns=returned)
        task.start(0)
        assert task.punctuate() is has_more

    def test_the_clock_stands_still_during_a_call(self):
        """The processor reads the time at which its call began."""
        driver = scripted()
        driver.advance_time(5)
        driver.pipe_input("k", b"1")
        assert driver._task._context.now_ms == driver.now_ms


class TestStreamTime:
    """Tests of stream time: expiration must not run ahead of deltas that wait to be read."""

    def test_stream_time_is_unknown_before_a_record_and_before_the_end(self):
        """No record expires then, at any time of the clock."""
        task = a_task(clock=[1000])
        task.start(0)
        task.punctuate()
        assert (task._context.now_ms, task._context.stream_time_ms) == (1000, 0)

    def test_the_input_is_complete_by_its_end_alone(self):
        """No timestamp proves it; a rewind and a clock that was set back make it unknown."""
        clock = [1000]
        task = a_task(clock=clock)
        task.start(0)
        task.process([Record(b"k", b"1", None, 0, 995)])
        assert task._context.complete_until_ms == 0
        task.has_seen(990)
        assert task._context.complete_until_ms == 990
        clock[0] = 980
        task.punctuate()
        assert task._context.complete_until_ms == 0
        task.has_seen(970)
        task.rewind()
        task.start(0)
        assert task._context.complete_until_ms == 0

    def test_stream_time_is_the_last_timestamp_or_the_time_up_to_which_all_was_seen(self):
        """Stream time is the later of both, and never the clock alone: a record may wait since the last look."""
        clock = [1000]
        task = a_task(clock=clock)
        task.start(0)
        task.process([Record(b"k", b"1", None, 0, 400), Record(b"k", b"2", None, 1, 300)])
        task.punctuate()
        assert (task._context.stream_time_ms, task._context.is_at_end) == (300, False)
        task.reached_end()
        task.has_seen(990)
        clock[0] = 1020
        task.punctuate()
        assert (task._context.stream_time_ms, task._context.is_at_end) == (990, True)
        task.process([Record(b"k", b"3", None, 2, 900)])
        clock[0] = 1040
        task.punctuate()
        assert (task._context.stream_time_ms, task._context.is_at_end) == (990, False)

    def test_stream_time_of_a_clock_that_was_set_back_is_dropped(self):
        """A record may wait that came since: the input is known again with the next record, or the next end."""
        clock = [1000]
        task = a_task(clock=clock)
        task.start(0)
        task.process([Record(b"k", b"1", None, 0, 400)])
        task.has_seen(990)
        clock[0] = 950
        task.punctuate()
        assert (task._context.stream_time_ms, task.seen_ms) == (0, 0)
        clock[0] = 2000
        task.punctuate()
        assert task._context.stream_time_ms == 0, "the clock has come to that time again"
        task.process([Record(b"k", b"2", None, 1, 1500)])
        assert task._context.stream_time_ms == 1500

    def test_stream_time_is_neither_in_the_future_nor_negative(self):
        """The clock of a publisher may be wrong, and timestamps may be missing."""
        task = a_task(clock=[1000])
        task.start(0)
        task.process([Record(b"k", b"1", None, 0, 5000)])
        assert task._context.stream_time_ms == 1000
        task.process([Record(b"k", b"1", None, 1, -1)])
        assert task._context.stream_time_ms == 0

    def test_stream_time_is_unknown_after_a_rewind(self):
        """The repeated records are still to come."""
        task = a_task(clock=[1000])
        task.start(0)
        task.reached_end()
        task.has_seen(900)
        task.rewind()
        task.start(0)
        task.punctuate()
        assert (task._context.stream_time_ms, task._context.is_at_end) == (0, False)


class TestClose:
    """Tests of the end of a task."""

    @pytest.mark.parametrize("moves", [[], ["start"], ["start", "rewind"]])
    def test_the_store_is_closed_with_the_committed_records(self, moves):
        """This holds in every state of the task."""
        store = MemoryStore()
        task = a_task(LayeredState(store, cache_bytes=0))
        task.state.put_many({b"a": Stored(1, b"x")})
        task.state.prepare()
        task.state.commit(1)
        for move in moves:
            MOVES[move](task)
        task.close()
        assert store.get_many([b"a"]) == [Stored(1, b"x")]

    def test_a_store_is_as_old_as_the_last_commit(self):
        """A process that was frozen, or cut off from Kafka, has lost the partition long before it is told."""
        store, clock, day_ms = MemoryStore(), [1_000_000], 86_400_000
        task = a_task(LayeredState(store, cache_bytes=0), clock=clock)
        task.start(0)
        task.process([Record(b"k", b"1", None, 0, 400)])
        task.state.put_many({b"a": Stored(1, b"x")})
        task.prepare()
        task.committed()
        clock[0] += 3 * day_ms
        start_writing([task], clock[0])
        task.state.write_some(10)
        assert store.progress().applied_at_ms == 1_000_000
        task.close()
        assert store.progress().applied_at_ms == 1_000_000

    def test_a_commit_by_a_clock_that_was_set_back_is_no_proof(self):
        """Its time lies in the future: the store keeps its age until the next commit, which is made at once."""
        store, clock = MemoryStore(), [1_000_000]
        task = a_task(LayeredState(store, cache_bytes=0), clock=clock)
        task.start(0)
        task.prepare()
        task.committed()
        assert not task.has_uncommitted
        clock[0] -= 300_000
        assert task.as_of_ms(task.state, clock[0]) == 0
        assert task.has_uncommitted
        task.prepare()
        task.committed()
        assert not task.has_uncommitted
        assert task.as_of_ms(task.state, clock[0]) == clock[0]

    def test_a_quiet_task_commits_now_and_then(self):
        """Its unchanged offset is the proof that the partition is still its own, and its store does not grow old."""
        store, clock = MemoryStore(), [1_000_000]
        task = a_task(LayeredState(store, cache_bytes=0), clock=clock)
        task.start(0)
        clock[0] += 599_999
        assert not task.has_uncommitted
        clock[0] += 1
        assert task.has_uncommitted
        task.prepare()
        task.committed()
        assert not task.has_uncommitted
        start_writing([task], clock[0])
        task.state.write_some(10)
        assert store.progress().applied_at_ms == clock[0]

    @pytest.mark.parametrize("error", [ValueError, StateDamaged])
    def test_an_error_of_close_does_not_stop_the_end_of_a_task(self, error):
        """Neither at the end nor in a rewind: the partition must get its next owner."""
        store = MemoryStore()
        task = a_task(LayeredState(store, cache_bytes=0), failing=[b"close"], error=error)
        task.start(0)
        task.rewind()
        task.start(0)
        task.state.put_many({b"a": Stored(1, b"x")})
        task.state.prepare()
        task.state.commit(1)
        task.close()
        assert store.get_many([b"a"]) == [Stored(1, b"x")]

    def test_a_stop_raised_by_close_follows_after_the_store_is_closed(self):
        """No committed record is lost."""
        store = MemoryStore()
        task = a_task(LayeredState(store, cache_bytes=0), failing=[b"close"], error=Stop)
        task.start(0)
        task.state.put_many({b"a": Stored(1, b"x")})
        task.state.prepare()
        task.state.commit(1)
        with pytest.raises(Stop):
            task.close()
        assert store.get_many([b"a"]) == [Stored(1, b"x")]


def test_a_task_counts_the_evaluations_over_the_budget_of_its_own_processor():
    """Those of its thread between its calls, as of other tasks, of subscribers or of a test before it, are not its."""
    COSTLY.matches(LONG)
    task = a_task(Filtering)
    task.start(0)
    COSTLY.matches(LONG)
    assert task.prepare().counts.events == {"filter_over_budget": 1}
    task.committed()
    task.process([a_record(0)])
    COSTLY.matches(LONG)
    task.punctuate()
    COSTLY.matches(LONG)
    task.flush()
    assert task.prepare().counts.events == {"filter_over_budget": 3}


def test_only_a_processor_with_results_of_its_own_is_called_before_a_commit():
    """Most have none: the loop does not call them, so that the watchdog and the guards have no work for nothing."""
    for processor_type, flushes in ((Scripted, False), (Filtering, True)):
        task = a_task(processor_type)
        task.start(0)
        assert task.flushes == flushes


def test_an_evaluation_over_the_budget_counts_also_where_its_processor_fails():
    """The reason of a failure may be that a filter was NULL, so that the count tells of it."""
    task = a_task(Filtering, failing=frozenset([b"1"]))
    task.start(0)
    with pytest.raises(ProcessorFailed):
        task.process([a_record(0)])
    assert task.prepare().counts.events == {"filter_over_budget": 2}
