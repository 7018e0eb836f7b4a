"""One partition's life: which moves are legal, how far its input is known, and what becomes of a poisonous record."""

import itertools

import pytest

from processor.api import Input, Output, Processor, Settings
from processor.codec import load_codec
from processor.config import TopicConfig
from processor.errors import PartitionHeld, ProcessorFailed, StateDamaged, Stop, TransactionAborted
from processor.hosting.pipeline import Pipeline
from processor.record import Record, Stored
from processor.runtime.task import Task
from processor.runtime.task_state import TaskState
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.testing import ProcessorTestDriver
from tests.builtin.reading import bodies, told


class Script(Settings):
    """What a `Scripted` processor does."""

    failing: frozenset[bytes] = frozenset()
    """Values on which it raises."""
    error: type[Exception] = ValueError
    """What it raises."""
    alone_only: bool = False
    """Raise only where the failing record comes together with others."""
    holds: int | None = None
    """The input offset it holds."""
    returns: bool | None = None
    """What its punctuation returns."""


class Scripted(Processor):
    """Counts the records of a key, forwards each with the count, and fails where it is told to."""

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
        """Forward one record after the other: what comes before the failing one is half done then."""
        for record in records:
            if record.value in self.script.failing and not (self.script.alone_only and len(records) == 1):
                raise self.script.error(f"cannot take {record.value!r}")
            old = self.context.state.get_many([record.key])[record.key]
            version = 1 if old is None else old.version + 1
            self.context.state.put_many({record.key: Stored(version, record.value)})
            self.context.forward("sow", record.key, record.value, [("version", b"%d" % version)])

    def punctuate(self, now_ms):
        """Fail like a record does."""
        if b"punctuate" in self.script.failing:
            raise self.script.error("cannot punctuate")
        return self.script.returns

    def close(self):
        """Count, and fail where it is told to."""
        type(self).closed += 1
        if b"close" in self.script.failing:
            raise self.script.error("cannot close")


def scripted(**script) -> ProcessorTestDriver:
    """A driver of a scripted processor."""
    return ProcessorTestDriver(Scripted, Script(**script), name="orders")


class Marker(Scripted):
    """Marks each key with its last value, and each punctuation."""

    outputs = (Output("sow"), Output("mark"))

    def process(self, records):
        """Mark."""
        for record in records:
            self.context.marks.put(record.key, record.value)

    def punctuate(self, now_ms):
        """Mark."""
        self.context.marks.put(b"punctuated", b"%d" % now_ms)


class Deaf(Scripted):
    """Does not want to hear of it."""

    def rejected(self, record, error):
        """Fail like a record does."""
        raise ValueError(f"cannot hear of {error.reason}")


def a_task(given=None, *, clock=(1,), **script) -> Task:
    """A task that was opened, of a scripted processor, or of the one given, or with the state given."""
    processor_type, state = (Scripted, given) if isinstance(given, LayeredState | None) else (given, None)
    pipeline = Pipeline.of(processor_type, Script(**script), name="orders", topic=TopicConfig())
    task = Task(pipeline, 3, load_codec("json"), lambda: clock[0])
    task.open(state or LayeredState(MemoryStore(), cache_bytes=0))
    return task


def a_record(offset: int, value: bytes = b"1") -> Record:
    """An input record."""
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
    """The drawing above `TaskState`."""

    @pytest.mark.parametrize(("path", "move"), list(itertools.product(LEGAL, MOVES)))
    def test_only_the_moves_that_are_drawn_are_made(self, path, move):
        """Any other is an error of ours, found at once, and changes nothing."""
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
    """A record that makes the processor raise is put aside alone."""

    def test_a_processor_that_cannot_hear_of_it_does_not_meet_it_again(self):
        """The dead letter is sent all the same, once, and the records behind it are processed."""
        driver = ProcessorTestDriver(Deaf, Script(failing=[b"1"]), name="orders")
        driver.pipe_batch([("k", b"%d" % n, None) for n in range(3)])
        driver.commit()
        assert [record.value for record in driver.read_output("sow")] == [b"0", b"2"]
        assert [record.value for record in driver.read_output("dlq")] == [b"1"]

    @pytest.mark.parametrize("batches", [1, 3, 9], ids=lambda number: f"in {number} batches")
    def test_it_goes_to_the_dead_letter_topic_and_the_others_are_processed_once(self, batches):
        """Whole, with the plug-in's name and what it raised; no other record is lost or done twice."""
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
        assert driver._task.host._suspects._verdicts == {}, "what is committed need not be remembered"

    def test_every_one_of_many_is_found(self):
        """Each costs two rewinds, and none of them hides another."""
        driver = scripted(failing=[b"0", b"2", b"3", b"6"])
        driver.pipe_batch([("k", b"%d" % n, None) for n in range(7)])
        driver.commit()
        assert bodies(driver.read_output("dlq")) == [0, 2, 3, 6]
        assert bodies(driver.read_output("sow")) == [1, 4, 5]

    def test_a_batch_that_only_fails_as_a_whole_is_processed_one_by_one(self):
        """No record is at fault, so none is rejected."""
        driver = scripted(failing=[b"1"], alone_only=True)
        driver.pipe_batch([("k", b"%d" % n, None) for n in range(3)])
        driver.commit()
        assert bodies(driver.read_output("sow")) == [0, 1, 2]
        assert driver.read_output("dlq") == []

    def test_a_rollback_and_a_crash_later_come_to_the_same(self):
        """Found again if it was forgotten, and in the dead-letter topic once."""
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
    def test_what_is_not_the_records_fault_is_not_blamed_on_it(self, error):
        """An order to stop, or a damaged store, goes to whoever runs the task."""
        driver = scripted(failing=[b"1"], error=error)
        with pytest.raises(error, match="cannot take"):
            driver.pipe_input("k", b"1")

    def test_whoever_runs_the_task_learns_which_records_failed(self):
        """So that a log can be read; and that the transaction is to be aborted."""
        task = a_task(failing=[b"bad"])
        task.start(0)
        with pytest.raises(
            ProcessorFailed, match=r"orders partition 3, offsets 7 to 8: the processor raised ValueError"
        ):
            task.process([a_record(7), a_record(8, b"bad")])
        assert issubclass(ProcessorFailed, TransactionAborted)


class TestPunctuation:
    """Nothing can be put aside for a punctuation."""

    def test_one_that_fails_stops_the_process(self):
        """With the name of the pipeline and the partition: it would fail again, for ever."""
        driver = scripted(failing=[b"punctuate"])
        with pytest.raises(
            PartitionHeld, match=r"orders partition 0: punctuate raised ValueError\('cannot punctuate'\)"
        ):
            driver.advance_time(1)

    @pytest.mark.parametrize(("returned", "has_more"), [(None, False), (False, False), (True, True)])
    def test_it_says_whether_there_is_more_to_do(self, returned, has_more):
        """Nothing said is nothing to do."""
        task = a_task(returns=returned)
        task.start(0)
        assert task.punctuate() is has_more

    def test_the_clock_stands_still_during_a_call(self):
        """The processor reads the time of its call, given by whoever runs it."""
        driver = scripted()
        driver.advance_time(5)
        driver.pipe_input("k", b"1")
        assert driver._task._context.now_ms == driver.now_ms


class TestStreamTime:
    """How far the input is known: expiry must not run ahead of deltas that wait to be read."""

    def test_before_any_record_and_before_the_end_nothing_is_known(self):
        """Nothing is due then, whatever the clock says."""
        task = a_task(clock=[1000])
        task.start(0)
        task.punctuate()
        assert (task._context.now_ms, task._context.stream_time_ms) == (1000, 0)

    def test_it_is_the_last_records_until_the_end_was_seen_and_then_the_clocks(self):
        """Then it goes on with the clock, until a record comes."""
        clock = [1000]
        task = a_task(clock=clock)
        task.start(0)
        task.process([Record(b"k", b"1", None, 0, 400), Record(b"k", b"2", None, 1, 300)])
        task.punctuate()
        assert task._context.stream_time_ms == 300
        task.reached_end()
        assert task._context.stream_time_ms == 1000
        clock[0] = 1020
        task.punctuate()
        assert task._context.stream_time_ms == 1020
        task.process([Record(b"k", b"3", None, 2, 900)])
        clock[0] = 1040
        task.punctuate()
        assert task._context.stream_time_ms == 900

    def test_it_is_never_in_the_future_nor_before_the_beginning(self):
        """A publisher's clock may be wrong, or tell no time."""
        task = a_task(clock=[1000])
        task.start(0)
        task.process([Record(b"k", b"1", None, 0, 5000)])
        assert task._context.stream_time_ms == 1000
        task.process([Record(b"k", b"1", None, 1, -1)])
        assert task._context.stream_time_ms == 0

    @pytest.mark.parametrize("clock_ms", [1000, 900])
    def test_a_record_of_the_future_is_not_the_end(self, clock_ms):
        """Whoever asks whether all was read compares it with the clock, also one that was set back."""
        clock = [1000]
        task = a_task(clock=clock)
        task.start(0)
        task.process([Record(b"k", b"1", None, 0, 5000)])
        clock[0] = clock_ms
        task.punctuate()
        assert task._context.stream_time_ms == clock_ms - 1

    def test_after_a_rewind_it_is_unknown_again(self):
        """The records that come again are in front of us."""
        task = a_task(clock=[1000])
        task.start(0)
        task.reached_end()
        task.rewind()
        task.start(0)
        task.punctuate()
        assert task._context.stream_time_ms == 0


class TestClose:
    """The end, however it comes."""

    @pytest.mark.parametrize("moves", [[], ["start"], ["start", "rewind"]])
    def test_the_store_is_closed_with_what_is_committed(self, moves):
        """Whatever the task was doing."""
        store = MemoryStore()
        task = a_task(LayeredState(store, cache_bytes=0))
        task.state.put_many({b"a": Stored(1, b"x")})
        task.state.prepare()
        task.state.commit(1)
        for move in moves:
            MOVES[move](task)
        task.close()
        assert store.get_many([b"a"]) == [Stored(1, b"x")]

    @pytest.mark.parametrize("error", [ValueError, StateDamaged])
    def test_a_processor_that_fails_to_close_keeps_nobody_from_closing(self, error):
        """Neither at the end nor in a rewind: the partition has its next owner."""
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

    def test_one_that_orders_to_stop_is_obeyed_after_the_store_is_closed(self):
        """The order goes on its way; nothing committed is lost by it."""
        store = MemoryStore()
        task = a_task(LayeredState(store, cache_bytes=0), failing=[b"close"], error=Stop)
        task.start(0)
        task.state.put_many({b"a": Stored(1, b"x")})
        task.state.prepare()
        task.state.commit(1)
        with pytest.raises(Stop):
            task.close()
        assert store.get_many([b"a"]) == [Stored(1, b"x")]
