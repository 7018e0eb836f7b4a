"""A topic that moves to another number of partitions, with publishers whose every command can be accounted for."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from processor.cli.main import run
from processor.kafka.partitioner import partition_for
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    import threading
    from pathlib import Path

OLD, NEW = 3, 7
KEYS = 40


class MovingWorld(World):
    """A topic of three partitions, and one of seven that is to take its place; each command adds one to its record."""

    def __init__(self, bootstrap: str, directory: Path, name: str, **more: Any) -> None:
        self.new = f"{name}_7"
        own = {"key": ["/id"], "merge_rules": {"/total": "sum"}}
        self.direct = bootstrap
        """The address at which this process publishes and reads; that of workers may be another one."""
        super().__init__(
            bootstrap, directory, name, partitions=OLD, **own,
            others={self.new: {"partitions": NEW, "moved_from": name, **own}}, creates_topics=False, **more,
        )  # fmt: skip
        assert run(["topics", "apply", "-c", str(self.file)]) == 0
        self.totals: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def feed(self, seed: int, count: int, stop: threading.Event | None = None) -> None:
        """Publish commands, some of them twice, with a publisher's own numbers; returns early when `stop` is set."""
        rng = random.Random(seed)
        producer = Producer(
            {"bootstrap.servers": self.direct, "partitioner": "murmur2_random", "linger.ms": 2,
             "topic.metadata.refresh.interval.ms": 500}
        )  # fmt: skip
        for _ in range(count):
            if stop is not None and stop.wait(0.005):
                break
            key = f"k{rng.randrange(KEYS)}"
            self.totals[key] = self.totals.get(key, 0) + 1
            self.newest[key] = number = self._numbers[key] = self._numbers.get(key, 0) + 1
            headers: dict[str, str | bytes] = {}
            if rng.random() < 0.3:  # A publisher for each key: its numbers are in order wherever the key is.
                headers = {"client": f"desk-{key}", "sequence": str(number)}
            value = f'{{"id": "{key}", "total": 1, "n": {number}}}'.encode()
            for _ in range(2 if headers and rng.random() < 0.3 else 1):
                producer.produce(self.config.kafka_names.topic(self.name, "publish"), value, key, headers=headers)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    def last(self) -> dict[str, Any]:
        """The records of the new topic, by key; each is in the partition of its key alone."""
        records: dict[bytes, Any] = {}
        versions: dict[bytes, int] = {}
        for seen in self.read("sow", self.new):
            assert seen.key is not None
            assert seen.partition == partition_for(seen.key, NEW)
            version = int(seen.headers["version"])
            # A copy that died is made again, of the same versions.
            assert version - versions.get(seen.key, version) in (0, 1), "versions have no gap"
            versions[seen.key] = version
            records[seen.key] = None if seen.value is None else json.loads(seen.value)
        return {key.decode(): record for key, record in records.items()}

    def is_right(self) -> bool:
        """Return True once each record has every command of its key, once."""
        found = {key: (record["total"], record["n"]) for key, record in self.last().items()}
        return found == {key: (total, self.newest[key]) for key, total in self.totals.items()}

    def reshard(self, *words: str) -> int:
        """Run the command; returns its exit code."""
        return run(["reshard", self.name, "-c", str(self.file), *words])
