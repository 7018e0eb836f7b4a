"""Tests that records merged during a commit have the same result as records merged after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.store.memory import MemoryStore
from processor.testing import ProcessorTestDriver
from processor.wire.publisher_mark import mark_record, mark_text
from processor.wire.record_headers import stored_from
from tests.builtin.delta_merge.test_delta_merge_law import BODIES, NUMBERS
from tests.runtime.test_task import Script, Scripted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.record import Outgoing, Stored
    from processor.runtime.task import Prepared
    from processor.topics.family import Role

KEYS = st.sampled_from(["7", "8", "9"])
LIVES = ["begin", "begin", "begin", "end", "end", "write", "write a piece"]
DEATHS = ["aborted", "aborted", "lost and done", "lost and not done", "killed", "killed, disk kept"]


class Noting(Scripted):
    """A processor that uses everything that a transaction contains, and raises on chosen records."""

    outputs = (*Scripted.outputs, DeltaMerge.outputs[-1])

    def init(self, context, settings):
        """Begin with the committed note."""
        super().init(context, settings)
        self.taken = int(context.noted or 0)

    def process(self, records):
        """Mark and count each record, and note the number of records so far."""
        super().process(records)
        for record in records:
            self.context.marks.put(b"last of " + record.key, record.value)
            self.context.count("taken")
            self.taken += 1
        self.context.hold(None, str(self.taken))


class Merging(ProcessorTestDriver):
    """A driver that merges on during a commit, as the loop does, and sends the output after its end."""

    _prepared: Prepared | None = None  # What is being committed.

    def begin(self) -> None:
        """Begin a commit of the records sent, after the end of the one before."""
        self.end()
        if self._task.marks is not None:
            self._send("mark", [mark_record(name, text) for name, text in self._task.marks.staged])
        self._prepared = self._task.prepare()

    def end(self) -> None:
        """Finish the commit: commit the state, and send the output of the records merged meanwhile."""
        if (prepared := self._prepared) is not None:
            self._kafka_commits()
            self._task.committed()
            self.events.update(prepared.counts.events)
            self.rejections.update(prepared.counts.rejected)
            self._emit()

    def write_a_piece(self) -> None:
        """Write some committed records to the store."""
        state = self._task.state
        state.start_writing(self.now_ms)
        if state.is_writing:
            state.write_some(1)

    def meet(self, death: str) -> None:
        """Lose the transaction, Kafka's answer or the process; the next instance gets the uncommitted records."""
        offset, noted = self._task.committed_offset, self._task.committed_note
        if death == "lost and done" and (prepared := self._prepared) is not None:
            offset, noted = prepared.offset, prepared.metadata.note
            self._kafka_commits()
            # What nobody told the metrics is not in them; here it is, to compare.
            self.events.update(prepared.counts.events)
            self.rejections.update(prepared.counts.rejected)
        self._prepared = None
        self._finish_aborted()
        if death.startswith("killed"):
            self._begin(self._store if death.endswith("kept") else MemoryStore(), offset, noted)
        else:
            self._task.rewind()
            self._task.committed_note = noted
            self._restore(offset)
        self.feed()

    def committed_states(self) -> dict[bytes, Stored]:
        """Read the states from the SOW topic."""
        states = {record.key or b"": stored_from(record) for record in self.read_output("sow")}
        return {key: stored for key, stored in states.items() if stored is not None}

    def _kafka_commits(self) -> None:
        self._prepared = None
        for log in self._logs.values():
            log.finish(commit=True)

    def _send(self, role: Role, outgoing: Sequence[Outgoing]) -> None:
        assert self._prepared is None, "one transaction at a time"
        super()._send(role, outgoing)

    def _emit(self) -> None:
        if self._prepared is None:
            super()._emit()

    def _roll_back(self) -> None:
        """Finish the commit under way, then roll back the rest."""
        self.end()
        super()._roll_back()


def ends(driver: ProcessorTestDriver) -> dict[str, Any]:
    """Collect all results of a run."""
    driver.write()
    outputs = {
        role: [(record.key, record.value, record.headers) for record in driver.read_output(role)]
        for role in driver._logs
        if role != "mark"
    }
    marks = {r.key: mark_text(r.key, r.value, r.headers) for r in driver.read_output("mark")}
    assert {name: driver.marks.get(name) for name in marks} == marks
    return {
        "outputs": outputs,
        "marks": marks,
        "states": dict(driver._store.scan()),
        "seen": driver.state.get_many([b"7", b"8", b"9"]),
        "offset": driver.committed_offset,
        "noted": driver.noted,
        "events": driver.events,
        "rejections": driver.rejections,
    }


def live(driver: Merging, step: Any) -> None:
    """Do one step; a store must contain committed records only."""
    if isinstance(step, list):
        driver.pipe_batch(step)
    elif step in DEATHS:
        driver.meet(step)
    else:
        getattr(driver, step.replace(" ", "_"))()
    if step == "write":
        assert dict(driver._store.scan()) == driver.committed_states()
        assert driver._store.progress().position == driver._task.state.position


def steps(values: st.SearchStrategy[Any], headers: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Generate batches of records, and the events between them."""
    batches = st.lists(st.tuples(KEYS, values, headers), min_size=1, max_size=4)
    return st.lists(batches | batches | st.sampled_from(LIVES) | st.sampled_from(DEATHS), min_size=2, max_size=25)


GIVEN = {
    DeltaMerge: (TopicConfig(), steps(BODIES | st.none() | st.just(b"{"), st.just({}) | NUMBERS)),
    Noting: (Script(failing=frozenset([b"6"])), steps(st.sampled_from([b"1", b"2", b"3", b"6"]), st.just({}))),
}


@pytest.mark.random
@pytest.mark.parametrize("processor_type", GIVEN)
def test_merging_during_commits_ends_as_if_each_were_awaited(processor_type):
    """State, marks, outputs, offset, note and counts agree after rollbacks, lost answers and kills."""
    script, lives = GIVEN[processor_type]

    @settings(max_examples=150, deadline=None, print_blob=True)
    @given(lives)
    def check_all(life):
        patient = ProcessorTestDriver(processor_type, script, name="orders")
        merging = Merging(processor_type, script, name="orders")
        for step in life:
            live(merging, step)
            if isinstance(step, list):
                patient.pipe_batch(step)
                patient.commit()
        merging.begin()
        merging.end()
        patient.commit()
        assert ends(merging) == ends(patient)

    with structlog.testing.capture_logs():  # Each failure with its stack, else.
        check_all()
