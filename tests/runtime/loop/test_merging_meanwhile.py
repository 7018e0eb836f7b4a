"""Tests of errors while a transaction is being committed and the next records are merged, on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from processor.api import Context, Input, Output, Processor, Settings
from processor.config.runtime import RuntimeConfig
from processor.errors import StateDamaged, Stop, TransactionAborted
from processor.kafka.admin.admin import Admin
from processor.record import Stored
from processor.topics.family import TopicSpec
from processor.wire.headers import Name
from tests.runtime.loop.turned_thread import TurnedThread
from tests.waiting import PATIENCE_S, next_message, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydantic import BaseModel

    from processor.record import Record

pytestmark = pytest.mark.broker

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


def test_waiting_input_is_merged_during_a_commit(behind: Behind) -> None:
    """Most records are merged during a commit; the first ones have no transaction before them."""
    behind.until_all_is_committed()
    check(behind)
    assert len(behind.meanwhile) > _RECORDS / 2


@pytest.mark.parametrize("error", [ValueError("a bug in a plug-in"), StateDamaged("a flipped bit")])
def test_an_error_during_a_commit_leaves_the_committed_records(behind: Behind, error: Exception) -> None:
    """After an error of the processor or the state only uncommitted records are repeated."""
    behind.error = error
    behind.until_all_is_committed()
    assert behind.error is None, "the error did not happen"
    check(behind)


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


def test_a_stop_waits_for_the_commit_under_way(behind: Behind) -> None:
    """The prepared records are committed; the others wait for the next start."""
    behind.error = Stop("too many rejects")
    with pytest.raises(Stop):
        behind.until_all_is_committed()
    assert behind.thread._transactions.is_committing
    behind.thread._finish_commit()
    assert behind.task.committed_offset == behind.meanwhile[0]
