"""What a task commits: the position and its note, the state and its marks, and what is processed meanwhile."""

import pytest

from processor.errors import ProcessorFailed, TransactionAborted
from processor.record import Record, Stored
from processor.runtime.recovery.redelivered import Redelivered
from processor.runtime.task import Prepared, Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.runtime.test_task import Marker, Scripted, a_record, a_task


class Thorough(Marker):
    """Has something of everything that is committed: state, marks, a note, an event and a rejection of each record."""

    def process(self, records):
        """Leave the last value everywhere."""
        Scripted.process(self, records)
        super().process(records)
        for record in records:
            self.context.count("seen")
            self.context.observe("took", 0.5)
            self.context.reject(record, "invalid", "as all are")
            self.context.hold(None, record.value.decode())


class TestCommit:
    """Only what Kafka has committed reaches the state."""

    def test_the_state_follows_with_the_position_after_the_last_sow_record(self):
        """Where that went, the delivery report says."""
        task = a_task()
        task.start(10)
        task.process([a_record(10), a_record(11)])
        assert [len(records) for records in task.take_outputs().values()] == [2]
        task.await_delivery("sow")(41)
        task.prepare()
        task.committed()
        assert (task.state.position, task.committed_offset, task.next_offset) == (42, 12, 12)

    def test_without_a_delivery_report_the_state_has_to_ask(self):
        """Committed it is, but where? A rewind reads it from the SOW topic."""
        task = a_task()
        task.start(0)
        task.process([a_record(0)])
        task.await_delivery("sow")
        task.prepare()
        with pytest.raises(TransactionAborted, match="partition 3: committed without a delivery report"):
            task.committed()
        assert task.state.position == 0

    def test_a_transaction_without_sow_records_leaves_the_position(self):
        """Rejections alone move the input on, and nothing else."""
        task = a_task(Marker)
        task.start(0)
        task.process([a_record(0)])
        task.prepare()
        task.committed()
        assert (task.state.position, task.committed_offset) == (0, 1)

    @pytest.mark.parametrize(("holds", "committable"), [(None, 12), (10, 10), (11, 11), (99, 12)])
    def test_what_is_held_is_not_committed(self, holds, committable):
        """Nor is what was not processed."""
        task = a_task(holds=holds)
        task.start(10)
        task.process([a_record(10), a_record(11)])
        assert task.committable_offset == committable

    def test_a_rewind_forgets_what_was_not_committed(self):
        """State, outputs and what was held; a new instance begins at the committed position."""
        task = a_task()
        task.start(5)
        task.process([a_record(5)])
        task.await_delivery("sow")
        closed = Scripted.closed
        task.rewind()
        assert Scripted.closed == closed + 1
        task.start(5)
        assert task.take_outputs() == {}
        assert task.state.get_many([b"k"]) == {b"k": None}
        task.prepare()
        task.committed()
        assert (task.next_offset, task.committable_offset) == (5, 5)


class TestNote:
    """The text that a processor keeps beside its input position."""

    def test_it_is_what_the_last_hold_said(self):
        """Committed with the position, moved or not; a rewind brings it back, as it was committed."""
        task = a_task(holds=4)
        task.start(4)
        task._context.hold(4, "one")
        task.prepare()
        task.committed()
        assert (task.committed_offset, task.committed_note) == (4, "one")
        task._context.hold(4, "two")
        assert str(task.commit_metadata) == "sowstream noted two"
        task.rewind()
        assert task.committed_note == "one"
        task.start(4)
        assert task._context.noted == "one"

    def test_one_that_nobody_changed_is_committed_again(self):
        """A commit for another partition's sake must not lose what a processor has not come to yet."""
        task = a_task()
        task.committed_note = "found"
        task.start(4)
        assert str(task.commit_metadata) == "sowstream noted found"
        task.prepare()
        task.committed()
        assert task.committed_note == "found"

    def test_a_change_of_it_alone_causes_no_commit(self):
        """It is committed whenever something else is."""
        task = a_task()
        task.start(4)
        task._context.hold(None, "x")
        assert not task.has_uncommitted

    def test_while_the_position_stays_for_what_comes_again_its_note_does_too(self):
        """Without transactions: the processor is ahead of the offset that is committed, and so is what it would say."""
        task = a_task()
        task.redelivered, task.committed_note = Redelivered(4, 50, 7), "old"
        task.redelivered.applied[5] = [b"k"]
        task.start(4)
        task.process([a_record(4), a_record(5)])
        task._context.hold(None, "new")
        assert str(task.commit_metadata_with_ends) == "sow 0 mark 0 sowstream noted new"
        task.host.next_offset = 5
        assert str(task.commit_metadata_with_ends) == "sow 50 mark 7 sowstream noted old"


class TestMarks:
    """What lasts besides the records."""

    def test_they_are_committed_with_the_position_after_the_last_one_sent(self):
        """So that a rewind reads only what is new."""
        task = a_task(Marker)
        task.start(0)
        task.process([a_record(0)])
        assert task.marks.staged == [(b"k", b"1")]
        task.await_delivery("mark")(6)
        task.prepare()
        task.committed()
        assert (task.marks.position, task.marks.get(b"k"), task.marks.has_staged) == (7, b"1", False)

    def test_marks_alone_want_a_commit(self):
        """A punctuation may change one while no record comes."""
        task = a_task(Marker)
        task.start(0)
        assert not task.has_uncommitted
        task.punctuate()
        assert task.has_uncommitted
        task.await_delivery("mark")(0)
        task.prepare()
        task.committed()
        assert not task.has_uncommitted

    def test_without_a_delivery_report_they_have_to_be_read_back(self):
        """Committed they are, but where?"""
        task = a_task(Marker)
        task.start(0)
        task.punctuate()
        task.await_delivery("mark")
        task.prepare()
        with pytest.raises(TransactionAborted, match="partition 3: committed without a delivery report"):
            task.committed()

    def test_a_rewind_forgets_those_that_were_not_committed(self):
        """And a late report of the transaction that was given up says nothing about the next one."""
        task = a_task(Marker)
        task.start(0)
        task.process([a_record(0)])
        late = task.await_delivery("mark")
        task.rewind()
        task.start(0)
        assert task.marks.get(b"k") is None
        task.process([a_record(0, b"2")])
        task.await_delivery("mark")
        late(5)
        task.prepare()
        with pytest.raises(TransactionAborted):
            task.committed()


def send(task: Task, offset: int) -> list[bytes | None]:
    """Send what was forwarded, and the marks, to a topic of this offset each; the values of the SOW records."""
    sent = task.take_outputs().get("sow", [])
    for role in ("sow", "mark"):
        task.await_delivery(role)(offset)
    return [value for _, value, _ in sent]


def seen(task: Task) -> tuple[bytes | None, bytes | None]:
    """What the processor finds under its key: of the state, and of the marks."""
    stored = task.state.get_many([b"k"])[b"k"]
    return None if stored is None else stored.value, task.marks.get(b"k")


def contents(prepared: Prepared) -> tuple[object, ...]:
    """All of it, to be compared."""
    counts = prepared.counts
    return prepared.offset, str(prepared.metadata), counts.events, counts.rejected, counts.observed["took"].times


class TestUnderWay:
    """Records are processed on while Kafka commits what was sent before them."""

    @pytest.fixture
    def task(self) -> Task:
        """One that has prepared a record and processed two more since."""
        task = a_task(Thorough)
        task.start(0)
        task.process([a_record(0, b"1")])
        assert send(task, 0) == [b"1"]
        prepared = task.prepare()
        assert contents(prepared) == (1, "sowstream noted 1", {"seen": 1}, {"invalid": 1}, 1)
        task.process([a_record(1, b"2"), a_record(2, b"3")])
        assert contents(prepared) == (1, "sowstream noted 1", {"seen": 1}, {"invalid": 1}, 1)
        return task

    def test_nothing_is_committed_before_kafka_says_so(self, task):
        """But the processor sees the newest."""
        assert (task.committed_offset, task.committed_note, task.state.position, task.marks.position) == (0, "", 0, 0)
        assert seen(task) == (b"3", b"3")

    def test_what_came_after_the_prepare_is_no_part_of_what_is_committed(self, task):
        """Neither of the position, the note and the counts, nor of what a rewind comes back to."""
        task.committed()
        assert (task.committed_offset, task.committed_note, task.state.position, task.marks.position) == (1, "1", 1, 1)
        assert seen(task) == (b"3", b"3")
        assert task.has_uncommitted
        task.rewind()
        assert (task.committed_offset, task.committed_note) == (1, "1")
        task.start(1)
        assert seen(task) == (b"1", b"1")
        assert not task.has_uncommitted
        assert task.take_outputs() == {}
        assert task.state.get_many([b"k"]) == {b"k": Stored(1, b"1")}

    def test_it_is_all_of_the_next_commit(self, task):
        """Sent after the end of the one before, with its own counts, and none of it twice."""
        task.committed()
        assert send(task, 5) == [b"2", b"3"]
        prepared = task.prepare()
        assert contents(prepared) == (3, "sowstream noted 3", {"seen": 2}, {"invalid": 2}, 2)
        task.committed()
        assert (task.committed_offset, task.committed_note, task.state.position, task.marks.position) == (3, "3", 6, 6)
        assert not task.has_uncommitted
        task.rewind()
        task.start(3)
        assert seen(task) == (b"3", b"3")

    def test_a_rewind_before_the_end_drops_both(self, task):
        """Nobody knows whether it was committed: what was will be read back, and the rest comes again."""
        task.rewind()
        assert (task.committed_offset, task.committed_note, task.state.position, task.marks.position) == (0, "", 0, 0)
        task.start(0)
        assert seen(task) == (None, None)
        assert task.take_outputs() == {}
        with pytest.raises(AssertionError):
            task.committed()
        task.process([a_record(0, b"4")])
        assert send(task, 7) == [b"4"]
        assert task.prepare().offset == 1
        task.committed()
        assert (task.committed_offset, task.committed_note, seen(task)) == (1, "4", (b"4", b"4"))

    def test_a_missing_delivery_report_leaves_both_to_a_rewind(self):
        """Committed without a word of where: the state keeps nothing of it, until it has asked."""
        task = a_task(Thorough)
        task.start(0)
        task.process([a_record(0)])
        task.await_delivery("sow")
        task.prepare()
        task.process([a_record(1, b"2")])
        with pytest.raises(TransactionAborted):
            task.committed()
        assert task.committed_offset == 0
        task.rewind()
        task.start(0)
        assert seen(task) == (None, None)

    def test_one_commit_ends_before_the_next_is_prepared(self, task):
        """Else the first one's end would keep what is in the second; nor does one end twice."""
        idle = a_task()
        idle.start(0)
        idle.prepare()
        with pytest.raises(AssertionError):
            idle.prepare()
        with pytest.raises(AssertionError):
            task.prepare()
        task.committed()
        with pytest.raises(AssertionError):
            task.committed()

    def test_a_record_put_aside_meanwhile_is_put_aside_again(self):
        """It comes again after a rewind, and needs not fail once more to be known."""
        task = a_task(failing=[b"bad"])
        task.start(0)
        with pytest.raises(ProcessorFailed):
            task.process([a_record(1, b"bad")])
        task.rewind()
        task.start(0)
        task.process([a_record(0)])
        task.take_outputs()
        task.prepare()
        task.process([a_record(1, b"bad")])
        task.committed()
        task.rewind()
        task.start(1)
        task.process([a_record(1, b"bad")])
        assert list(task.take_outputs()) == ["dlq"]

    def test_an_input_position_that_is_held_later_is_not_moved(self):
        """What was prepared had nothing to wait for."""
        task = a_task()
        task.start(0)
        task.process([a_record(0), a_record(1)])
        task.take_outputs()
        task.prepare()
        task._context.hold(0)
        task.process([a_record(2)])
        task.committed()
        assert task.committed_offset == 2
        task.prepare()
        task.committed()
        assert task.committed_offset == 2, "it never goes back"

    def test_closing_drops_both(self):
        """The store has what was committed before."""
        store = MemoryStore()
        task = a_task(LayeredState(store, cache_bytes=0))
        task.start(0)
        task.process([a_record(0)])
        task.await_delivery("sow")(0)
        task.prepare()
        task.committed()
        task.process([Record(b"prepared", b"1", None, 1, 0)])
        task.prepare()
        task.process([Record(b"staged", b"1", None, 2, 0), a_record(3)])
        task.close()
        assert dict(store.scan()) == {b"k": Stored(1, b"1")}
        assert store.progress().position == 1
