"""A stream thread that a test turns by hand, with librdkafka's mock cluster as Kafka."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import Producer

from processor.codec import load_codec
from processor.config import TopicConfig
from processor.config.runtime import RuntimeConfig
from processor.hosting.pipeline import Pipeline
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.group_consumer import GroupConsumer
from processor.kafka.clients.log_reader import LogReader
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.runtime.loop.clients import Clients, SeenInput
from processor.runtime.loop.committer import TransactionCommitter
from processor.runtime.loop.stream_thread import StreamThread
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.recovery.standbys import Standbys
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel

    from processor.api import Processor


@contextmanager
def mock_kafka(name: str = "orders") -> Iterator[dict[str, str]]:
    """Create a broker within this process, with one record on the topics of a family."""
    owner = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    for role in ("publish", "sow"):  # Made by the first record.
        owner.produce(f"{name}.{role}", b"{}", b"7", 0)
    assert owner.flush(60) == 0
    brokers = owner.list_topics(timeout=60).brokers.values()
    yield {"bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers)}
    owner.flush(0)


class Assigned:
    """A listener that notes its partitions."""

    partitions: tuple[int, ...] = ()

    def on_assigned(self, partitions: list[int]) -> None:
        """Add partitions."""
        self.partitions = tuple(partitions)

    def on_revoked(self, partitions: list[int]) -> None:
        """Remove partitions."""

    def on_lost(self, partitions: list[int]) -> None:
        """Remove partitions."""


class TurnedThread:
    """The thread of one processor's only partition."""

    def __init__(
        self,
        kafka: dict[str, str],
        processor_type: type[Processor],
        settings: BaseModel,
        name: str = "orders",
        runtime: RuntimeConfig | None = None,
        clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        underlying: str | None = None,
    ) -> None:
        """Join the group; the partition is ready at once."""
        topic = settings if isinstance(settings, TopicConfig) else TopicConfig()
        pipeline = Pipeline.of(processor_type, settings, name=name, topic=topic, underlying=underlying)
        self.commits = 0
        producer = TransactionalProducer(kafka, transactional_id=name, transaction_timeout_s=60, blocked=self._called)
        self._reader = LogReader(kafka, group=name)
        restorer = Restorer(
            reader=self._reader, admin=Admin(kafka), source=pipeline.source, sow=f"{name}.sow", mark=None,
            open_state=lambda _: LayeredState(MemoryStore(), cache_bytes=1_000), stall_timeout_s=60,
        )  # fmt: skip
        standbys = Standbys(
            processor=name, sow=f"{name}.sow", group_watcher=None, admin=Admin(kafka),
            open_reader=lambda: self._reader, open_state=cast("Any", None),
        )  # fmt: skip
        seen = SeenInput(Admin(kafka), pipeline.source, clock_ms)
        clients = Clients(cast("Any", None), TransactionCommitter(producer), restorer, standbys, seen)
        self.thread = StreamThread(pipeline, clients, runtime or RuntimeConfig(), load_codec("json"))
        assigned = Assigned()
        self.thread._consumer = GroupConsumer(
            kafka, group=name, topic=pipeline.source, session_timeout_s=60, listener=assigned
        )
        consumer = self.thread._consumer
        until(lambda: consumer.poll(1, 0.1) or 0 in assigned.partitions, "an assignment", pause_s=0)
        self.task = self.thread._tasks[0] = Task(pipeline, 0, load_codec("json"), clock_ms)
        self.task.open(LayeredState(MemoryStore(), cache_bytes=1_000))
        self.task.start(0)
        producer.start()
        self._producer = producer

    def _called(self, call: str, seconds: float) -> None:
        self.commits += call == "commit"

    def turn(self, turns: int) -> float:
        """Run this number of turns of the loop; returns the seconds they took."""
        began_s = time.monotonic()
        for _ in range(turns):
            self.thread._turn()
        return time.monotonic() - began_s

    def close(self) -> None:
        """Close all clients."""
        self.thread._consumer.close()
        self._producer.close()
        self._reader.close()
