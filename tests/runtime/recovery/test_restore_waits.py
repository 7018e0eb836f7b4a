"""Tests of restores that wait: for an answer, for records, or after a wrong answer of Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from confluent_kafka import Producer, TopicPartition

from processor.builtin.conflate import Conflate
from processor.codec import load_codec
from processor.config import ConflatedConfig, TopicConfig
from processor.errors import PartitionHeld
from processor.hosting.pipeline import Pipeline
from processor.kafka import outage
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader, Position, ReadResult
from processor.runtime.recovery import job, log_replay
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.topics.family import TopicSpec
from tests.programs.faults.broker.broker import Broker
from tests.programs.faults.broker.fault import Act, Api, Fault, Way
from tests.programs.faults.broker.proxy import Proxy
from tests.runtime.test_task import Script, Scripted
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.broker


class Restoring:
    """Two partitions of a topic, with records in SOW and committed input offsets."""

    def __init__(self, bootstrap: str, name: str, *, through: str | None = None, stall_timeout_s: float = 60.0) -> None:
        kafka = {"bootstrap.servers": bootstrap}
        self.name, self.held, self.ready = name, list[tuple[int, str, str]](), dict[int, int]()
        self.wiped: list[str] = []
        self._owner = Admin(kafka)
        self._owner.create([TopicSpec(f"{name}.{role}", role, 2, {}) for role in ("publish", "sow")])
        self.writer = Producer(kafka | {"transactional.id": name, "transaction.timeout.ms": 60_000})
        self.writer.init_transactions(120)
        self._group = LogReader(kafka, group=name)
        for partition in (0, 1):
            self.begin(partition)
            self.writer.commit_transaction(120)
        kafka = {"bootstrap.servers": through or bootstrap}
        self.admin = Admin(kafka)
        self.reader = LogReader(kafka, group=name, collects_trouble=True)
        self.restorer = Restorer(
            reader=self.reader, admin=self.admin, source=f"{name}.publish", sow=f"{name}.sow", mark=None,
            open_state=self._open, stall_timeout_s=stall_timeout_s,
        )  # fmt: skip
        self.restorer.on_held = self._hold
        self.tasks = self._tasks()

    def begin(self, partition: int) -> None:
        """Begin a transaction with a SOW record and an input offset."""
        self.writer.begin_transaction()
        self.writer.produce(f"{self.name}.sow", b"{}", b"k", partition, headers=[("version", b"1")])
        offset = [TopicPartition(f"{self.name}.publish", partition, 0)]
        self.writer.send_offsets_to_transaction(offset, self._group.group_metadata(), 30)
        assert self.writer.flush(120) == 0

    def add(self, *partitions: int) -> None:
        """Begin to restore a partition."""
        for partition in partitions:
            self.restorer.add(self.tasks[partition])

    def until(self, reached: Callable[[], object]) -> None:
        """Advance until a condition is true."""

        def is_reached() -> object:
            self.ready |= {task.partition: offset for task, offset in self.restorer.advance(0.01)}
            return reached()

        until(is_reached, lambda: (self.ready, self.held, self.awaited()), pause_s=0)

    def awaited(self) -> dict[int, str]:
        """Describe the event that each partition waits for."""
        return {number: self.restorer._awaited(job) for number, job in self.restorer._jobs.items()}

    def stall(self, timeout_s: float = 2.0) -> None:
        """Change the patience with stalled restores."""
        self.restorer._stalls._timeout_s = timeout_s

    def close(self) -> None:
        """Close all clients."""
        self.restorer.close()
        self._group.close()
        self._owner.delete([f"{self.name}.publish", f"{self.name}.sow"])

    def _tasks(self) -> list[Task]:
        pipeline = Pipeline.of(Scripted, Script(), name=self.name, topic=TopicConfig())
        return [Task(pipeline, partition, load_codec("json")) for partition in (0, 1)]

    def _open(self, _partition: int) -> LayeredState:
        return LayeredState(MemoryStore(), cache_bytes=1_000, on_wipe=self.wiped.append)

    def _hold(self, task: Task, error: PartitionHeld) -> None:
        self.held.append((task.partition, error.reason, str(error)))


@pytest.mark.parametrize(
    ("kept_ms", "missed", "present_max"), [(0, [b"gone"], 10), (0, [b"gone"], 1), (86_400_000, [], 10)]
)
def test_deletes_that_left_the_input_while_the_group_was_away_are_made(
    bootstrap: str, unique: str, kept_ms: int, missed: list[bytes], present_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy has a key that its input lacks; the input is read only if its deletes may be gone since the commit.

    It is read for one partition after the other, and several times where its keys do not fit into memory.
    """
    monkeypatch.setattr(log_replay, "_PRESENT_MAX", present_max)
    kafka = {"bootstrap.servers": bootstrap}
    copy, source = f"{unique}_copy", f"{unique}.sow"
    admin, group = Admin(kafka), LogReader(kafka, group=copy)
    settings = {"cleanup.policy": "compact", "delete.retention.ms": str(kept_ms)}
    admin.create([TopicSpec(name, "sow", 2, settings) for name in (source, f"{copy}.sow")])
    writer = Producer(kafka | {"transactional.id": copy})
    writer.init_transactions(120)
    writer.begin_transaction()
    for topic, keys in ((source, (b"old", b"stays", b"new")), (f"{copy}.sow", (b"gone", b"stays"))):
        for key in keys:
            for partition in (0, 1):
                writer.produce(topic, b"{}", key, partition, headers=[("version", b"7")])
    places = [TopicPartition(source, partition, 1) for partition in (0, 1)]
    writer.send_offsets_to_transaction(places, group.group_metadata(), 30)
    writer.commit_transaction(120)
    pipeline = Pipeline.of(
        Conflate, ConflatedConfig(underlying=unique), name=copy, topic=TopicConfig(), underlying=unique
    )
    restorer = Restorer(
        reader=LogReader(kafka, group=copy, collects_trouble=True), admin=Admin(kafka), source=source,
        sow=f"{copy}.sow", mark=None, open_state=lambda _: LayeredState(MemoryStore(), cache_bytes=1_000),
        stall_timeout_s=60.0, is_copy=True,
    )  # fmt: skip
    for partition in (0, 1):
        restorer.add(Task(pipeline, partition, load_codec("json")))
    ready: list[tuple[Task, int]] = []

    def are_ready() -> bool:
        ready.extend(restorer.advance(0.01))
        assert sum(job.present is not None for job in restorer._jobs.values()) <= 1
        return len(ready) == 2

    until(are_ready, "a restore", pause_s=0)
    for task, offset in ready:
        assert offset == 1
        deletes = [(record.key, record.value, record.offset) for record in task.missed]
        assert deletes == [(key, None, 0) for key in missed]
        task.start(offset)
        assert [record.key for record in task.left] == missed
        assert not restorer.comparison.lacks_deletes(task), "it has just been compared, or has young records to read"
    restorer.close()
    group.close()
    admin.delete([source, f"{copy}.sow"])


@pytest.fixture
def restoring(bootstrap: str, unique: str) -> Iterator[Restoring]:
    """Create two partitions on the broker that all tests share."""
    created = Restoring(bootstrap, unique)
    yield created
    created.close()


def test_an_unstable_offset_delays_no_other_partition(restoring: Restoring) -> None:
    """The partition with an open transaction is held with the reason, and ready after its end."""
    restoring.begin(1)
    restoring.add(0, 1)
    restoring.until(lambda: restoring.ready)
    assert (restoring.ready, restoring.held) == ({0: 0}, [])
    restoring.stall()
    restoring.until(lambda: restoring.held)
    [(partition, reason, why)] = restoring.held
    assert (partition, reason) == (1, "open_transaction")
    assert "the committed offset of" in why
    assert "`sowstream transactions list` names it" in why
    assert not restoring.restorer.is_busy
    restoring.writer.commit_transaction(120)
    restoring.stall(PATIENCE_S)
    restoring.add(1)
    restoring.until(lambda: 1 in restoring.ready)


def test_a_transaction_that_is_open_in_sow_is_named(restoring: Restoring) -> None:
    """If records do not arrive because of an open transaction, the error has the last stable offset."""
    restoring.writer.begin_transaction()
    restoring.writer.produce(f"{restoring.name}.sow", b"{}", b"k", 1, headers=[("version", b"1")])
    assert restoring.writer.flush(120) == 0
    restoring.add(0, 1)
    restoring.until(lambda: restoring.ready)
    restoring.stall()
    restoring.until(lambda: restoring.held)
    [(partition, reason, why)] = restoring.held
    assert (partition, reason) == (1, "open_transaction")
    assert "A transaction is open there from offset 2 on" in why
    restoring.writer.abort_transaction(120)
    assert restoring.ready == {0: 0}


class Confused:
    """A client whose first answers for some ends are librdkafka's invalid offset."""

    def __init__(self, client: Any, partitions: Sequence[int], times: int) -> None:
        self._client = client
        self._partitions = partitions
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def list_offsets(self, asked: dict[TopicPartition, Any], **more: Any) -> dict[TopicPartition, Future[Any]]:
        """Return the real answers, or the invalid offset."""
        answers = self._client.list_offsets(asked, **more)
        if self.left == 0:
            return cast("dict[TopicPartition, Future[Any]]", answers)
        self.left -= 1
        wrong: Future[Any] = Future()
        wrong.set_result(SimpleNamespace(offset=-1001))
        return {at: wrong if at.partition in self._partitions else answer for at, answer in answers.items()}


def test_an_invalid_offset_wipes_no_state_and_completes_no_restore(restoring: Restoring) -> None:
    """The invalid offset -1001 is not the end of a topic: a good state would be ahead of it."""
    restoring.add(0)
    restoring.until(lambda: 0 in restoring.ready)
    task = restoring.tasks[0]
    position = task.state.position
    restoring.begin(0)
    restoring.writer.commit_transaction(120)
    confused = Confused(restoring.admin._client, [0], 6)
    restoring.admin._client = cast("Any", confused)
    restoring.ready.clear()
    restoring.add(0)
    restoring.until(lambda: 0 in restoring.ready)
    assert confused.left == 0
    assert restoring.wiped == []
    assert task.state.position == position + 2  # The record and its marker.


class Distant(Restoring):
    """A restore whose questions pass through a proxy."""

    def __init__(self, broker: Broker, proxy: Proxy, name: str, **more: float) -> None:
        super().__init__(broker.bootstrap, name, through=broker.proxied_bootstrap, **more)
        self.proxy = proxy


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Create a broker whose answers can be lost."""
    with Broker(tmp_path_factory.mktemp("waits") / "broker") as created:
        yield created


@pytest.fixture
def distant(broker: Broker, unique: str) -> Iterator[Callable[..., Distant]]:
    """Create a restore behind a proxy."""
    created: list[Distant] = []
    with Proxy(broker.proxied_port, broker.target_port) as proxy:

        def make(**more: float) -> Distant:
            created.append(Distant(broker, proxy, unique, **more))
            return created[-1]

        yield make
        proxy.clear()
        proxy.flow()
        for each in created:
            each.close()


def lose(proxy: Proxy, *apis: Api) -> list[Fault]:
    """Drop every answer to these requests."""
    return [proxy.inject(Fault(api, Way.ANSWER, Act.LOSE, times=10_000)) for api in apis]


@pytest.mark.long
def test_a_question_that_stays_unanswered_costs_the_client(distant: Callable[..., Distant], monkeypatch) -> None:
    """If the coordinator is silent, the wait is logged, and a new client gets the answer."""
    monkeypatch.setattr(job, "_SLOW_S", 1.0)
    restoring = distant()
    [fault] = lose(restoring.proxy, Api.OFFSET_FETCH)
    with structlog.testing.capture_logs() as lines:
        restoring.add(0)
        restoring.until(lambda: restoring.admin.renewal.count > 0)
        restoring.until(lambda: [line for line in lines if line["event"] == "a restore waits"])
        assert "the committed offset of" in restoring.awaited()[0]
    assert fault.met >= 3
    line = next(line for line in lines if line["event"] == "a restore waits")
    assert "the committed offset of" in line["waits_for"]
    restoring.proxy.clear()
    restoring.until(lambda: 0 in restoring.ready)
    assert restoring.held == []


@pytest.mark.long
def test_a_silent_coordinator_holds_the_partition(distant: Callable[..., Distant]) -> None:
    """While other questions are answered, the partition is held as `kafka_silent` and the process goes on."""
    restoring = distant(stall_timeout_s=3.0)
    lose(restoring.proxy, Api.OFFSET_FETCH)
    restoring.add(0)
    restoring.until(lambda: restoring.held)
    [(partition, reason, why)] = restoring.held
    assert (partition, reason) == (0, "kafka_silent")
    assert "the committed offset of" in why


@pytest.mark.long
def test_a_kafka_that_is_away_holds_nothing(distant: Callable[..., Distant]) -> None:
    """While Kafka is away partitions wait longer than the timeout of a stall, and are ready once it is back."""
    restoring = distant(stall_timeout_s=PATIENCE_S)
    restoring.proxy.refuse()
    restoring.add(0, 1)
    restoring.until(outage.is_away)
    restoring.stall(4.0)
    until_s = time.monotonic() + 12
    restoring.until(lambda: time.monotonic() > until_s)
    assert (restoring.ready, restoring.held) == ({}, [])
    restoring.stall(PATIENCE_S)
    restoring.proxy.admit()
    restoring.until(lambda: len(restoring.ready) == 2)
    assert restoring.held == []
    assert outage.seconds() == 0


def test_a_renewed_reader_continues_at_its_positions(restoring: Restoring) -> None:
    """Each record is read once, before or after the renewal, and each partition's end is reported."""
    sow = f"{restoring.name}.sow"
    for _ in range(5):
        restoring.begin(0)
        restoring.writer.commit_transaction(120)
    reader = restoring.reader
    reader.add([Position(sow, 0, 0), Position(sow, 1, 0)])
    seen: list[tuple[int | None, int | None]] = []
    ends: set[int] = set()

    def has_ended() -> bool:
        read = reader.read(1, 0.1)
        seen.extend((message.partition(), message.offset()) for message in read.messages)
        ends.update(end.partition for end in read.ends)
        if read.messages and len(seen) in (2, 5):
            reader.renew()
        return ends == {0, 1}

    until(has_ended, lambda: (seen, ends), pause_s=0)
    assert sorted(seen) == [(0, 0), (0, 2), (0, 4), (0, 6), (0, 8), (0, 10), (1, 0)]


def test_records_that_come_all_the_time_do_not_keep_a_restore_from_its_end(
    restoring: Restoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view's table is restored from a topic that others write: Kafka reports no end of it without a pause."""
    read = restoring.reader.read

    def read_without_ends(records_max: int, timeout_s: float) -> ReadResult:
        restoring.begin(0)
        restoring.writer.commit_transaction(120)
        return ReadResult(read(records_max, timeout_s).messages, [])

    monkeypatch.setattr(restoring.reader, "read", read_without_ends)
    restoring.add(0)
    restoring.until(lambda: restoring.ready)
    assert (restoring.ready, restoring.held) == ({0: 0}, [])
