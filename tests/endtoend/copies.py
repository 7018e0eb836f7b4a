"""A topic with conflated copies, and a worker and a conflater for all of them, shared by the tests of one module."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.endtoend.oracle import Seen
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S, next_message

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.endtoend.world import Worker

INTERVAL_MS = 200


class Copies(World):
    """`name`, and `conflated`, which delivers each key every 200 ms at most; more copies and processors by last names.

    Everything is in one partition, so later records are delivered later. Tests share the topics, but no key.
    """

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        conflated: Mapping[str, Mapping[str, Any]],
        processors: Mapping[str, Mapping[str, Any]] | None = None,
        topics: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Make the topics.

        Args:
            bootstrap: the broker.
            directory: for settings, state and logs.
            conflated: more copies by last name; `underlying` is a last name too, and nothing is the topic.
            processors: processors by last name, the same way.
            topics: more topics by last name; each has one partition.
        """
        name = f"t{uuid.uuid4().hex[:8]}"
        given = {"conflated": conflated, "processors": processors or {}}
        sections: dict[str, dict[str, Any]] = {
            kind: {
                f"{name}_{last}": {**settings, "underlying": f"{name}_{settings.get('underlying', '')}".rstrip("_")}
                for last, settings in entries.items()
            }
            for kind, entries in given.items()
        }
        sections["topics"] = {f"{name}_{last}": {"partitions": 1, **each} for last, each in (topics or {}).items()}
        super().__init__(bootstrap, directory, name, interval=f"{INTERVAL_MS}ms", partitions=1, sections=sections)
        common = {"bootstrap.servers": bootstrap}
        self._publisher = Producer(common | {"transactional.id": f"{name}-publisher", "linger.ms": 20})
        self._publisher.init_transactions(PATIENCE_S)
        self._reader = Consumer(
            common
            | {"group.id": "reader", "enable.auto.commit": False, "isolation.level": "read_committed",
               "enable.partition.eof": True, "fetch.wait.max.ms": 10}
        )  # fmt: skip
        self._read: dict[str, list[Seen]] = {}

    def work(self) -> tuple[Worker, Worker]:
        """Start a worker for all merged topics and a conflater for all copies."""
        merged = [*self.config.topics, *self.config.processors]
        return self.start("worker", merged), self.start("conflate", list(self.config.conflated))

    def at_once(self, *records: tuple[str, Any, dict[str, str]]) -> None:
        """Publish in one transaction: its records are merged in one, and reach a copy within one interval."""
        self._publisher.begin_transaction()
        for key, value, headers in records:
            data = None if value is None else json.dumps(value).encode()
            self._publisher.produce(f"{self.name}.publish", data, key.encode(), headers=headers or None)
        self._publisher.commit_transaction(PATIENCE_S)

    def read(self, role: str, name: str | None = None) -> list[Seen]:
        """Read a topic, from the end of the last read: a test reads often."""
        topic = f"{name or self.name}.{role}"
        if topic not in self._read:
            self._read[topic] = []
            self._reader.list_topics(topic, timeout=PATIENCE_S)  # Or it hears of the topic a second later.
        seen = self._read[topic]
        self._reader.assign([TopicPartition(topic, 0, seen[-1].offset + 1 if seen else 0)])
        while True:
            message = next_message(self._reader)
            if message.error() is not None:
                return [*seen]
            headers = {name: value.decode() for name, value in message.headers() or ()}
            place = message.partition(), message.offset()
            seen.append(Seen(*place, message.key(), message.value(), headers, message.timestamp()[1]))

    def of(self, key: str, role: str = "sow", name: str | None = None) -> list[Seen]:
        """Return the records of one key in a copy or another topic."""
        return [record for record in self.read(role, name or self.conflated) if record.key == key.encode()]

    def close(self) -> None:
        """End every worker and delete the topics."""
        self._reader.close()
        del self._publisher  # Or it misses its broker, and says so.
        super().close()

    def deliveries(self, key: str, count: int, name: str | None = None) -> tuple[list[Seen], list[Seen]]:
        """Wait until a copy has delivered a key a number of times; returns its SOW and delta records."""
        # They are in one transaction, whose marker is not in both topics at once.
        roles = ("sow", "delta")
        self.wait(lambda: all(len(self.of(key, role, name)) >= count for role in roles), f"{count} deliveries of {key}")
        sow, delta = (self.of(key, role, name) for role in roles)
        assert len(sow) == len(delta) == count
        return sow, delta
