"""Who has more to do than one punctuation takes is called again at once: librdkafka's mock cluster is Kafka here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from confluent_kafka import Producer

from processor.api import Context, Input, Output, Processor, Settings
from processor.codec import load_codec
from processor.config import TopicConfig
from processor.config.runtime import RuntimeConfig
from processor.kafka.admin import Admin
from processor.kafka.group_consumer import GroupConsumer
from processor.kafka.log_reader import LogReader
from processor.kafka.transactional_producer import TransactionalProducer
from processor.runtime.pipeline import Pipeline
from processor.runtime.restore import Restorer
from processor.runtime.standby import Standbys
from processor.runtime.stream_thread import Clients, StreamThread
from processor.runtime.task import Task
from processor.state.memory import MemoryStore
from processor.state.transactional import TransactionalState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel

    from processor.record import Record

_PIECES = 1_000
_IDLE_S = 0.02
"""What a thread waits for input between two punctuations of a processor that has nothing to do."""


class Pieces(Settings):
    """How much there is to do."""

    pieces: int = _PIECES
    """How many punctuations it takes."""
    is_silent: bool = False
    """Whether it does not say that there is more."""


class Piecemeal(Processor):
    """Forwards one record at each punctuation, until all is done."""

    settings_type: ClassVar[type[BaseModel]] = Pieces
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"),)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with all of it to do."""
        assert isinstance(settings, Pieces)
        self._context, self._left, self._is_silent = context, settings.pieces, settings.is_silent

    def process(self, records: Sequence[Record]) -> None:
        """Take nothing."""

    def punctuate(self, now_ms: int) -> bool | None:
        """Do a piece."""
        if self._left:
            self._left -= 1
            self._context.forward("sow", b"k", b"%d" % self._left, [("version", b"1")])
        return None if self._is_silent else self._left > 0


class Assigned:
    """Hears that a partition has come."""

    partitions: tuple[int, ...] = ()

    def on_assigned(self, partitions: list[int]) -> None:
        """They are ours."""
        self.partitions = tuple(partitions)

    def on_revoked(self, partitions: list[int]) -> None:
        """They go."""

    def on_lost(self, partitions: list[int]) -> None:
        """They are gone."""


@pytest.fixture
def kafka() -> Iterator[dict[str, str]]:
    """A broker within this process."""
    owner = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    for topic in ("orders.publish", "orders.sow"):  # Made by the first record.
        owner.produce(topic, b"{}", b"7", 0)
    assert owner.flush(10) == 0
    brokers = owner.list_topics(timeout=10).brokers.values()
    yield {"bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers)}
    owner.flush(0)


class Harness:
    """A thread of one partition that is turned by hand."""

    def __init__(self, kafka: dict[str, str], pieces: Pieces) -> None:
        pipeline = Pipeline.of(Piecemeal, pieces, name="orders", topic=TopicConfig())
        self.commits = 0
        producer = TransactionalProducer(kafka, transactional_id="x", transaction_timeout_s=10, blocked=self._called)
        self._reader = LogReader(kafka, group="g")
        restorer = Restorer(
            reader=self._reader, admin=Admin(kafka), source="orders.publish", sow="orders.sow", mark=None,
            open_state=lambda _: TransactionalState(MemoryStore(), cache_bytes=1_000), stall_timeout_s=10,
        )  # fmt: skip
        standbys = Standbys(
            processor="orders", sow="orders.sow", lookout=None, admin=Admin(kafka),
            open_reader=lambda: self._reader, open_state=cast("Any", None),
        )  # fmt: skip
        clients = Clients(cast("Any", None), producer, restorer, standbys)
        self.thread = StreamThread(pipeline, clients, RuntimeConfig(), load_codec("json"))
        assigned = Assigned()
        self.thread._consumer = GroupConsumer(
            kafka, group="g", topic="orders.publish", session_timeout_s=6, listener=assigned
        )
        deadline_s = time.monotonic() + 20
        while 0 not in assigned.partitions:
            assert time.monotonic() < deadline_s, "nothing was assigned"
            self.thread._consumer.poll(1, 0.1)
        self.task = self.thread._tasks[0] = Task(pipeline, 0, self.thread._codec)
        self.task.open(TransactionalState(MemoryStore(), cache_bytes=1_000))
        self.task.start(0)
        producer.start()
        self._producer = producer

    def _called(self, call: str, seconds: float) -> None:
        self.commits += call == "commit"

    def turn(self, turns: int) -> float:
        """So many turns of the loop; the seconds they took."""
        began_s = time.monotonic()
        for _ in range(turns):
            self.thread._step()
        return time.monotonic() - began_s

    def close(self) -> None:
        """End all clients."""
        self.thread._consumer.close()
        self._producer.close()
        self._reader.close()


def test_a_processor_with_more_to_do_is_not_kept_waiting_for_input(kafka: dict[str, str]) -> None:
    """A thousand pieces take far less than as many idle polls, and not a commit each."""
    harness = Harness(kafka, Pieces())
    seconds = harness.turn(_PIECES)
    assert harness.task._processor._left == 0  # type: ignore[attr-defined]
    assert seconds < _PIECES * _IDLE_S / 2
    assert harness.commits < _PIECES / 10
    harness.close()


@pytest.mark.parametrize("pieces", [Pieces(pieces=0), Pieces(is_silent=True)], ids=["nothing to do", "says nothing"])
def test_one_that_does_not_ask_for_it_waits_for_input(kafka: dict[str, str], pieces: Pieces) -> None:
    """An idle worker sleeps: plug-ins that return nothing are called as ever."""
    harness = Harness(kafka, pieces)
    assert harness.turn(20) >= 20 * _IDLE_S * 0.9
    harness.close()
