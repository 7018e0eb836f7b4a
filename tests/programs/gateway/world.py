"""The topic of the law of composition: random updates of few keys, and its state at any place."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords
from processor.subscriptions.records.update_history import UpdateHistory
from tests.programs.gateway.queries import KEYS, PARTITIONS, TOPIC, Body


class History:
    """The updates of a topic in their order, and its state at any place."""

    def __init__(self, partitions: int) -> None:
        self.log: list[tuple[int, str, Body | None]] = []
        self.partitions = partitions

    def note(self, key: str, body: Body | None) -> int:
        """Note an update; returns the partition of its key."""
        partition = sum(key.encode()) % self.partitions
        self.log.append((partition, key, copy.deepcopy(body)))
        return partition

    def at(self, positions: Any) -> dict[str, Body]:
        """The world at some positions."""
        counts, world = [0] * self.partitions, {}
        for partition, key, body in self.log:
            if counts[partition] < positions[partition]:
                if body is None:
                    world.pop(key, None)
                else:
                    world[key] = body
            counts[partition] += 1
        return world

    def states_between(self, key: str, bookmark: Any) -> list[Body | None]:
        """The states of a key from the low to the high position of a bookmark."""
        partition = sum(key.encode()) % self.partitions
        state: Body | None = None
        states, count = [], 0
        if bookmark.low[partition] == 0:
            states.append(None)
        for its_partition, its_key, body in self.log:
            if its_partition != partition:
                continue
            if count >= bookmark.high[partition]:
                break
            if its_key == key:
                state = body
            count += 1
            if count >= bookmark.low[partition]:
                states.append(state)
        return states or [state]


def random_body(rng: random.Random, key: str, before: Body | None) -> Body:
    """A random record; often it is the one before with a small change."""
    body: Body = {"id": key}
    if before is not None and rng.random() < 0.6:
        body = copy.deepcopy(before)  # A small change: most fields stay.
        for name in rng.sample(["a", "n", "s", "o"], 1):
            body.pop(name, None)
    for name in ("a", "n"):
        if name not in body and rng.random() < 0.8:
            body[name] = rng.randrange(4)
    if "s" not in body and rng.random() < 0.8:
        body["s"] = rng.choice("xyz")
    if "o" not in body and rng.random() < 0.5:
        body["o"] = {name: rng.randrange(2) for name in "pq" if rng.random() < 0.7}
    return body


class World:
    """A topic that a worker writes, and an engine that reads it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now: dict[str, Body] = {}
        self.versions: dict[str, int] = {}
        self.history = History(PARTITIONS)
        self.offsets = [0] * PARTITIONS
        self.written: list[Record] = []
        self.time_ms = 0
        self.engine = self.opened([0] * PARTITIONS)

    def write(self) -> None:
        """A worker writes a record or a tombstone."""
        key = self.random.choice(KEYS)
        is_gone = key in self.now and self.random.random() < 0.15
        version = self.versions[key] = self.versions.get(key, 0) + 1
        headers = [("version", b"%d" % version)]
        body = None if is_gone else random_body(self.random, key, self.now.get(key))
        if is_gone:
            headers.append(("kind", self.random.choice([b"delete", b"expire"])))
            self.now.pop(key)
            del self.versions[key]  # The next life of the key begins with 1.
        else:
            assert body is not None
            self.now[key] = body
        partition = self.history.note(key, body)
        value = None if body is None else json.dumps(body).encode()
        record = Record(key.encode(), value, headers, self.offsets[partition], 1_700_000_000_000 + len(self.written))
        self.offsets[partition] += 1
        self.written.append(record)
        self.engine.take(partition, [record], self.time_ms)

    def opened(self, at: list[int]) -> Engine:
        """An engine whose view stood at some positions, and that has read on from there, as after a restart."""
        view = MemoryRecords()
        engine = Engine(TOPIC, view, history=UpdateHistory(self.random.choice([2_000, 20_000, 10**9])))
        rest: list[tuple[int, Record]] = []
        for record in self.written:
            partition = sum(record.key or b"") % PARTITIONS
            if record.offset < at[partition]:
                view.put(partition, [record])
            else:
                rest.append((partition, record))
        for partition in range(PARTITIONS):
            engine.open(partition, at[partition])
        for partition, record in rest:
            engine.take(partition, [record], self.time_ms)
        return engine
