"""Records that are merged during a commit: the same result as merged after it, also when the commit fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import structlog
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.api import Context, Input, Output, Processor, Settings
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.config.runtime import RuntimeConfig
from processor.errors import StateDamaged, Stop, TransactionAborted
from processor.kafka.admin.admin import Admin
from processor.record import Stored
from processor.store.memory import MemoryStore
from processor.testing import ProcessorTestDriver
from processor.topics.family import TopicSpec
from processor.wire.headers import Name
from processor.wire.publisher_mark import mark_record, mark_text
from processor.wire.record_headers import stored_from
from tests.builtin.delta_merge.test_delta_merge_law import BODIES, NUMBERS
from tests.runtime.loop.turned_thread import TurnedThread
from tests.runtime.test_task import Script, Scripted
from tests.waiting import PATIENCE_S, next_message, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydantic import BaseModel

    from processor.record import Outgoing, Record, Stored
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


_RECORDS = 60
_KEYS = 3
_WHOLE = {b"%d" % key: _RECORDS // _KEYS for key in range(_KEYS)}
"""How often each key comes."""
_HALF_A_BATCH = 3
_BEHIND = RuntimeConfig(batch_records_max=4, internal={"commit_records_max": 4})
"""So little at a time that input waits at each commit."""


class Counting(Processor):
    """Counts the records of each key, to detect lost and repeated records."""

    settings_type: ClassVar[type[BaseModel]] = Settings
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"),)
    meddle: ClassVar[Callable[[Record], object]] = print
    """Is called before each record."""

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with the stored counts."""
        self._context = context

    def process(self, records: Sequence[Record]) -> None:
        """Count each record."""
        for record in records:
            type(self).meddle(record)
            assert record.key is not None
            before = self._context.state.get_many([record.key])[record.key]
            count = 1 if before is None else before.version + 1
            self._context.state.put_many({record.key: Stored(count, b"x")})
            self._context.forward("sow", record.key, b"x", [(Name.VERSION, b"%d" % count)])


class Behind(TurnedThread):
    """A thread that is behind its input, and meets one error while it commits."""

    def __init__(self, kafka: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = kafka
        super().__init__(kafka, Counting, Settings(), name, _BEHIND)
        self.meanwhile: list[int] = []
        """Offsets of records that came while a transaction was being committed."""
        self.error: Exception | None = None
        """Raised when half a batch of them is merged."""
        monkeypatch.setattr(Counting, "meddle", self._meddle)

    def _meddle(self, record: Record) -> None:
        if self.thread._transactions.is_committing:
            self.meanwhile.append(record.offset)
            if self.error is not None and len(self.meanwhile) == _HALF_A_BATCH:
                error, self.error = self.error, None
                raise error

    def until_all_is_committed(self) -> None:
        """Turn until all input is committed."""
        until(
            lambda: self.turn(1) and self.task.committed_offset >= _RECORDS, lambda: self.task.committed_offset,
            pause_s=0,
        )  # fmt: skip

    @property
    def counts(self) -> dict[bytes, int]:
        """Read the count of each key."""
        stored = self.task.state.get_many(list(_WHOLE))
        return {key: state.version for key, state in stored.items() if state is not None}


def committed(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Read key and count of each committed SOW record."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    rows: list[tuple[bytes | None, bytes]] = []
    while (message := next_message(reader)).error() is None:
        rows.append((message.key(), dict(message.headers() or [])[Name.VERSION]))
    reader.close()
    return rows


@pytest.fixture
def behind(bootstrap: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Behind]:
    """Create a thread with all of its input waiting."""
    kafka = {"bootstrap.servers": bootstrap}
    topics = [f"{unique}.{role}" for role in ("publish", "sow", "dlq")]
    Admin(kafka).create([TopicSpec(topic, topic.rpartition(".")[2], 1, {}) for topic in topics])
    owner = Producer(kafka)
    for number in range(_RECORDS):
        owner.produce(topics[0], b"{}", b"%d" % (number % _KEYS), 0)
    assert owner.flush(PATIENCE_S) == 0
    created = Behind(kafka, unique, monkeypatch)
    created.thread._consumer.begin(0, 0)
    yield created
    created.close()
    Admin(kafka).delete(topics)


def check(behind: Behind) -> None:
    """Check that every record was counted once, in the state and on the SOW topic."""
    assert behind.counts == _WHOLE
    expected = [(b"%d" % (number % _KEYS), b"%d" % (number // _KEYS + 1)) for number in range(_RECORDS)]
    bootstrap, topic = behind.kafka["bootstrap.servers"], behind.thread._pipeline.output("sow")
    # The marker of the last transaction comes after the call that has committed it.
    until(lambda: committed(bootstrap, topic) == expected, lambda: committed(bootstrap, topic))


@pytest.mark.broker
def test_waiting_input_is_merged_during_a_commit(behind: Behind) -> None:
    """Most records are merged during a commit; the first ones have no transaction before them."""
    behind.until_all_is_committed()
    check(behind)
    assert len(behind.meanwhile) > _RECORDS / 2


@pytest.mark.broker
@pytest.mark.parametrize("error", [ValueError("a bug in a plug-in"), StateDamaged("a flipped bit")])
def test_an_error_during_a_commit_leaves_the_committed_records(behind: Behind, error: Exception) -> None:
    """After an error of the processor or the state only uncommitted records are repeated."""
    behind.error = error
    behind.until_all_is_committed()
    assert behind.error is None, "the error did not happen"
    check(behind)


@pytest.mark.broker
def test_a_failed_commit_drops_the_records_merged_meanwhile(
    behind: Behind,
) -> None:
    """These records depend on states that were rolled back."""
    refused: list[int] = []
    original = behind._producer.begin_commit

    def begin_commit(_topic: str, offsets: dict[int, int], *_: Any, **__: Any) -> None:
        refused.append(offsets[0])
        behind._producer.begin_commit = original  # type: ignore[method-assign]
        behind._producer._commits.begin(refuse)

    def refuse() -> None:
        raise TransactionAborted("the broker wants it rolled back")

    behind._producer.begin_commit = begin_commit  # type: ignore[method-assign]
    behind.until_all_is_committed()
    assert len(refused) == 1
    check(behind)


@pytest.mark.broker
def test_a_stop_waits_for_the_commit_under_way(behind: Behind) -> None:
    """The prepared records are committed; the others wait for the next start."""
    behind.error = Stop("too many rejects")
    with pytest.raises(Stop):
        behind.until_all_is_committed()
    assert behind.thread._transactions.is_committing
    behind.thread._finish_commit()
    assert behind.task.committed_offset == behind.meanwhile[0]
