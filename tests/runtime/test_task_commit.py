"""Tests of a task's commit: position and note, state and marks, and records processed meanwhile."""

import pytest

from processor.errors import ProcessorFailed, TransactionAborted
from processor.hosting.commit_metadata import Redelivered
from processor.record import Record, Stored
from processor.runtime.task import Prepared, Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.runtime.test_task import Marker, Scripted, a_record, a_task


class Thorough(Marker):
    """A processor that uses everything that is committed: state, marks, note, event and rejection."""

    def process(self, records):
        """Store the last value everywhere."""
        Scripted.process(self, records)
        super().process(records)
        for record in records:
            self.context.count("seen")
            self.context.observe("took", 0.5)
            self.context.reject(record, "invalid", "as all are")
            self.context.hold(None, record.value.decode())


class TestCommit:
    """Only committed records reach the state."""

    def test_the_state_follows_with_the_position_after_the_last_sow_record(self):
        """The delivery report has the offset of that record."""
        task = a_task()
        task.start(10)
        task.process([a_record(10), a_record(11)])
        assert [len(records) for records in task.take_outputs().values()] == [2]
        task.await_delivery("sow")(41)
        task.prepare()
        task.committed()
        assert (task.state.position, task.committed_offset, task.next_offset) == (42, 12, 12)

    def test_without_a_delivery_report_the_state_is_read_back(self):
        """The records are committed at unknown offsets, so a rewind reads them from the SOW topic."""
        task = a_task()
        task.start(0)
        task.process([a_record(0)])
        task.await_delivery("sow")
        task.prepare()
        with pytest.raises(TransactionAborted, match="partition 3: committed without a delivery report"):
            task.committed()
        assert task.state.position == 0

    def test_a_transaction_without_sow_records_leaves_the_position(self):
        """A transaction of rejections moves the input offset only."""
        task = a_task(Marker)
        task.start(0)
        task.process([a_record(0)])
        task.prepare()
        task.committed()
        assert (task.state.position, task.committed_offset) == (0, 1)

    @pytest.mark.parametrize(("holds", "committable"), [(None, 12), (10, 10), (11, 11), (99, 12)])
    def test_held_offsets_are_not_committed(self, holds, committable):
        """Neither held nor unprocessed offsets are committed."""
        task = a_task(holds=holds)
        task.start(10)
        task.process([a_record(10), a_record(11)])
        assert task.committable_offset == committable

    @pytest.mark.parametrize(("holds", "taken"), [(None, [(700, 2), (900, 1)]), (10, [])])
    def test_batches_are_counted_with_the_timestamps_of_their_first_records(self, holds, taken):
        """The latency of records is known from these, unless the processor holds its input back."""
        task = a_task(holds=holds)
        task.start(10)
        for batch in ((10, 700), (11, 800)), ((12, 900),):
            task.process([a_record(offset)._replace(timestamp_ms=timestamp_ms) for offset, timestamp_ms in batch])
        assert task.prepare().counts.taken == taken
        task.await_delivery("sow")(41)
        task.committed()
        assert task.prepare().counts.taken == []

    def test_a_rewind_forgets_the_batches_that_come_again(self):
        """A record that is processed twice is counted once, with the transaction that was committed."""
        task = a_task()
        task.start(10)
        task.process([a_record(10)._replace(timestamp_ms=700)])
        task.rewind()
        task.start(10)
        assert task.prepare().counts.taken == []

    def test_a_rewind_drops_uncommitted_changes(self):
        """State, outputs and held offset are dropped; a new instance begins at the committed offset."""
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
    """Tests of the note that a processor commits with its input offset."""

    def test_the_note_is_that_of_the_last_hold(self):
        """It is committed with the offset, moved or not, and a rewind restores it."""
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

    def test_an_unchanged_note_is_committed_again(self):
        """A commit for another partition's sake must not lose the note."""
        task = a_task()
        task.committed_note = "found"
        task.start(4)
        assert str(task.commit_metadata) == "sowstream noted found"
        task.prepare()
        task.committed()
        assert task.committed_note == "found"

    def test_a_changed_note_causes_no_commit(self):
        """A note is committed with the next commit for another reason."""
        task = a_task()
        task.start(4)
        task._context.hold(None, "x")
        assert not task.has_uncommitted

    def test_the_note_stays_with_the_offset_among_redelivered_records(self):
        """Without transactions the processor is ahead of the committed offset, and so is its note."""
        task = a_task()
        task.redelivered, task.committed_note = Redelivered(4, 50, 7), "old"
        task.redelivered.applied[5] = [b"k"]
        task.start(4)
        task.process([a_record(4), a_record(5)])
        task._context.hold(None, "new")
        assert str(task.commit_metadata_with_ends) == "sow 0 mark 0 sowstream noted new"
        task.next_offset = 5
        assert str(task.commit_metadata_with_ends) == "sow 50 mark 7 sowstream noted old"


class TestMarks:
    """Tests of marks, which last besides the records."""

    def test_marks_are_committed_with_the_position_behind_the_last_one(self):
        """So a rewind reads only new marks."""
        task = a_task(Marker)
        task.start(0)
        task.process([a_record(0)])
        assert task.marks.staged == [(b"k", b"1")]
        task.await_delivery("mark")(6)
        task.prepare()
        task.committed()
        assert (task.marks.position, task.marks.get(b"k"), task.marks.has_staged) == (7, b"1", False)

    def test_marks_alone_cause_a_commit(self):
        """A punctuation may change a mark while no record arrives."""
        task = a_task(Marker)
        task.start(0)
        assert not task.has_uncommitted
        task.punctuate()
        assert task.has_uncommitted
        task.await_delivery("mark")(0)
        task.prepare()
        task.committed()
        assert not task.has_uncommitted

    def test_without_a_delivery_report_marks_are_read_back(self):
        """They are committed at unknown offsets."""
        task = a_task(Marker)
        task.start(0)
        task.punctuate()
        task.await_delivery("mark")
        task.prepare()
        with pytest.raises(TransactionAborted, match="partition 3: committed without a delivery report"):
            task.committed()

    def test_a_rewind_drops_uncommitted_marks(self):
        """A late report of the aborted transaction does not affect the next one."""
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
    """Send outputs and marks to topics with this offset; returns the values of the SOW records."""
    sent = task.take_outputs().get("sow", [])
    for role in ("sow", "mark"):
        task.await_delivery(role)(offset)
    return [value for _, value, _ in sent]


def seen(task: Task) -> tuple[bytes | None, bytes | None]:
    """Read the processor's key from the state and from the marks."""
    stored = task.state.get_many([b"k"])[b"k"]
    return None if stored is None else stored.value, task.marks.get(b"k")


def contents(prepared: Prepared) -> tuple[object, ...]:
    """Collect all parts of a commit for a comparison."""
    counts = prepared.counts
    return prepared.offset, str(prepared.metadata), counts.events, counts.rejected, counts.observed["took"].times


class TestUnderWay:
    """Records are processed on while Kafka commits the records before them."""

    @pytest.fixture
    def task(self) -> Task:
        """Create a task with one prepared record and two later ones."""
        task = a_task(Thorough)
        task.start(0)
        task.process([a_record(0, b"1")])
        assert send(task, 0) == [b"1"]
        prepared = task.prepare()
        assert contents(prepared) == (1, "sowstream noted 1", {"seen": 1}, {"invalid": 1}, 1)
        task.process([a_record(1, b"2"), a_record(2, b"3")])
        assert contents(prepared) == (1, "sowstream noted 1", {"seen": 1}, {"invalid": 1}, 1)
        return task

    def test_nothing_is_committed_before_the_end_of_the_commit(self, task):
        """Meanwhile the processor sees the newest values."""
        assert (task.committed_offset, task.committed_note, task.state.position, task.marks.position) == (0, "", 0, 0)
        assert seen(task) == (b"3", b"3")

    def test_later_records_are_no_part_of_the_commit(self, task):
        """Position, note, counts and the state after a rewind do not include them."""
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

    def test_later_records_are_committed_with_the_next_commit(self, task):
        """They are sent once after the end of the commit before, with counts of their own."""
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

    def test_a_rewind_during_a_commit_drops_prepared_and_later_changes(self, task):
        """With unknown outcome committed records are read back, and others are repeated."""
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

    def test_a_missing_delivery_report_leads_to_a_rewind(self):
        """The records are committed at unknown offsets, so the state takes over none of them."""
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
        """Otherwise the first end would commit changes of the second; no commit ends twice."""
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

    def test_a_record_rejected_meanwhile_is_rejected_again(self):
        """It is repeated after a rewind, and need not fail once more."""
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
        """A hold after the prepare does not change the prepared position."""
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

    def test_closing_drops_prepared_and_later_changes(self):
        """The store has the records committed before."""
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


class TestMissedDeletes:
    """Deletes that have gone from the input come before the next record."""

    def commit(self, task: Task, batch: list[Record]) -> None:
        """Process and commit records."""
        task.process(batch)
        task.take_outputs()
        task.await_delivery("sow")(task.state.position)
        task.prepare()
        task.committed()

    def test_they_come_again_until_a_position_behind_them_is_committed(self):
        """A commit of a part of them moves no position, so that a successor compares again."""
        task = a_task()
        task.missed = [a_record(8), a_record(9)]
        task.start(10)
        self.commit(task, [task.left[0]])
        assert (task.next_offset, task.committed_offset) == (10, 10)
        task.rewind()
        task.start(10)
        assert task.left == task.missed != ()
        self.commit(task, [*task.left, a_record(10)])
        assert (task.committed_offset, task.missed) == (11, ())

    def test_an_order_to_skip_an_unreadable_batch_outlives_an_abort(self):
        """The dead letter is sent again until it is committed; from then on the order means nothing."""
        task = a_task()
        task.skip(5, is_readable=False)
        for _ in range(2):
            task.start(3)
            assert (task.next_offset, len(task.take_outputs()["dlq"])) == (6, 1)
            task.rewind()
        task.start(6)
        assert (task.next_offset, task.take_outputs()) == (6, {})

    def test_an_order_to_skip_records_does_not_skip_them(self):
        """The order names the records that are read, and these have earlier offsets."""
        task = a_task()
        task.missed = [a_record(9, b"missed")]
        task.skip(10, is_readable=True)
        task.start(10)
        task.process([*task.left, a_record(10, b"skipped"), a_record(11, b"next")])
        assert [value for _, value, _ in task.take_outputs()["sow"]] == [b"missed", b"next"]
        assert task.next_offset == 12
