"""A feed of numbered records, and a watch on the rows in which the numbers appear."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    from tests.endtoend.world import World


class Watch:
    """Reads the rows of a view as they come."""

    def __init__(self, bootstrap: str, topic: str, key: str | None) -> None:
        """Begin with the first record.

        Args:
            bootstrap: the broker.
            topic: the topic of rows or deltas.
            key: the member by which rows are kept; None: none are.
        """
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "watch", "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5,
        })  # fmt: skip
        partitions = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        self.key = key
        """The member by which rows are kept."""
        self.rows: dict[str, Any] = {}
        """The last row of each key."""
        self.last_ms = 0
        """The greatest timestamp of a record."""
        self.read_s = 0.0
        """The time at which the last row was read, seconds since the epoch."""
        self._names: dict[str | None, int] = {}
        self._last_s: dict[str | None, float] = {}

    def poll(self, timeout_s: float = 0.0) -> list[Any]:
        """Return the rows that have come since."""
        rows = []
        for message in self._consumer.consume(5_000, timeout_s):
            assert message.error() is None, message.error()
            self.last_ms = max(self.last_ms, message.timestamp()[1])
            value = message.value()
            if value is None or self.key is None:
                continue
            row = json.loads(value)
            name = row.get("name")
            self._names[name] = self._names.get(name, 0) + 1
            self._last_s[name] = time.monotonic()
            if self.key in row:
                self.rows[row[self.key]] = row
            rows.append(row)
        if rows:
            self.read_s = time.time()
        return rows

    def count(self, name: str | None = None) -> int:
        """Read what is there; return the number of rows so far, of those with a name if one is asked for."""
        while self.poll(0.05):
            pass
        return sum(self._names.values()) if name is None else self._names.get(name, 0)

    def last_s(self, name: str) -> float:
        """Return the time at which the last row with a name came, of the monotonic clock."""
        return self._last_s[name]

    def first_ms(self) -> int:
        """Return the least timestamp of a first record of a partition."""
        times: dict[int, int] = {}
        deadline_s = time.monotonic() + 30
        while len(times) < len(self._consumer.assignment()) and time.monotonic() < deadline_s:
            for message in self._consumer.consume(100, 0.2):
                times.setdefault(message.partition() or 0, message.timestamp()[1])
        return min(times.values())

    @staticmethod
    def cpu_s(pid: int) -> float:
        """Return the processor time of a process and its children."""
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


def hop_times(world: World, view: str, first: int) -> dict[str, list[int]]:
    """Return the milliseconds of records from each topic on the way to a view's deltas to the next one, by the latter.

    The time of a record in a topic is its timestamp, at which its writer passed it to its Kafka client. So a hop has
    the commit of the one before. Of the updates of a group that are one row the last number counts.

    Args:
        world: the topic under the view, at rest.
        view: a view with the greatest number of each group.
        first: the first number that counts.
    """
    places = {"publish": world.name, "sow": world.name, "parts": view, "delta": view}
    times: dict[str, dict[int, int]] = {}
    for role, name in places.items():
        seen = times[role] = {}
        for record in world.read(role, name):
            value = None if record.value is None else json.loads(record.value)
            if value is not None:
                seen.setdefault(value[-1][0] if role == "parts" else value.get("number", 0), record.timestamp_ms)
    before, hops = times.pop("publish"), {}
    for role, after in times.items():
        hops[role] = [at_ms - before[number] for number, at_ms in after.items() if number >= first and number in before]
        before = after
    return hops


class Feed:
    """Sends numbered records, and measures when their numbers appear in rows."""

    def __init__(
        self, bootstrap: str, topic: str, keys: int, groups: int, *, is_sow: bool = False, by: str = "group"
    ) -> None:
        """Create it.

        Args:
            bootstrap: the broker.
            topic: where the records go.
            keys: the number of their keys.
            groups: the number of groups.
            is_sow: whether that is a SOW topic, and no worker merges them.
            by: the member by which rows are kept in which the numbers appear: `group`, or `id`.
        """
        # The linger time of Sowstream's publishers: a request for each record is half of the broker's work.
        self._producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 5})
        self._topic, self._keys, self._groups, self._by = topic, keys, groups, by
        self._headers: list[tuple[str, str | bytes | None]] = [("version", b"1")] if is_sow else []
        self.number = 0
        """The number of the last record."""
        self._waiting: dict[str, deque[tuple[int, float]]] = {}

    def warm_up(self, watch: Watch, world: World) -> None:
        """Send records of all groups, and wait until they have appeared."""
        for _ in range(self._groups):
            self._send()
        world.wait(lambda: not self._pending(watch, []), "the first rows")

    def run(self, watch: Watch, seconds: float, rate: int, is_over: Callable[[], bool] = lambda: False) -> list[float]:
        """Send records at a rate; return the delay of each, in seconds, until a row with it can be read.

        Args:
            watch: reads the rows.
            seconds: the time, at most.
            rate: records a second.
            is_over: whether to end now.
        """
        delays_s: list[float] = []
        began_s, sent = time.monotonic(), 0
        while (now_s := time.monotonic()) < began_s + seconds and not is_over():
            while sent < (now_s - began_s) * rate:
                self._send(began_s + sent / rate)
                sent += 1
            self._producer.poll(0)
            self._pending(watch, delays_s)
        deadline_s = time.monotonic() + 60
        while self._pending(watch, delays_s):
            assert time.monotonic() < deadline_s, "a record does not appear"
        return delays_s

    def _send(self, due_s: float = 0.0) -> None:
        """Send the next record. It counts from the time at which it was due, also when this process was late."""
        number = self.number = self.number + 1
        key = number * 7919 % self._keys
        group = f"r{key % self._groups}"
        body = {"id": key, "group": group, "number": number, "customer": group}
        if self._by == "id":
            body["id"] = group = f"k{key}"  # Beside the records that are there.
        name = str(body["id"])
        self._producer.produce(self._topic, json.dumps(body).encode(), name.encode(), headers=self._headers)
        self._waiting.setdefault(group, deque()).append((number, due_s))

    def _pending(self, watch: Watch, delays_s: list[float]) -> int:
        """Take the rows that have come; return the number of records that have not appeared."""
        rows, now_s = watch.poll(0.002), time.monotonic()
        for row in rows:
            waiting = self._waiting.get(row.get(watch.key) or "", ())
            while waiting and waiting[0][0] <= row.get("number", 0):
                delays_s.append(now_s - waiting.popleft()[1])
        return sum(map(len, self._waiting.values()))
