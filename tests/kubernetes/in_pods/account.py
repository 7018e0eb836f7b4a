"""Accounts for every record: folds the input, and compares the fold with the deltas and the state of the world.

The fold shares no code with the product. Each input record changes its record, so each must have one delta, with the
next version of its key, in the order of its partition.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from served import PORTS, TOPIC, kafka, serve

_EXAMPLES_MAX = 5


class Fold:
    """The account of one partition."""

    def __init__(self) -> None:
        self.expected: dict[bytes, dict[str, Any]] = {}
        self.versions: dict[bytes, int] = {}
        self.firsts: dict[bytes, int] = {}
        """The version of the first delta of each key."""
        self.due: deque[tuple[bytes, int]] = deque()
        """Key and number of each delta that must still come, from 1 for each key."""
        self.replayed: dict[bytes, dict[str, Any]] = {}
        self.world: dict[bytes, dict[str, Any]] = {}
        self.wrong: list[str] = []

    def add_input(self, key: bytes, value: bytes) -> None:
        """Merge an input record; all members are flat."""
        self.expected.setdefault(key, {}).update(orjson.loads(value))
        self.versions[key] = version = self.versions.get(key, 0) + 1
        self.due.append((key, version))

    def add_delta(self, key: bytes, value: bytes, version: int) -> None:
        """Compare a delta with the next one that is due, and apply it."""
        due = self.due.popleft() if self.due else None
        # The first version of a key follows from its offset, also in an earlier release.
        nth = version - self.firsts.setdefault(key, version) + 1
        if due != (key, nth):
            self.wrong.append(f"a delta of key {key!r}, version {version}, where {due} was due")
        self.replayed.setdefault(key, {}).update(orjson.loads(value))

    def differences(self) -> list[str]:
        """Compare at the end of all topics."""
        wrong = [*self.wrong, *(f"no delta of key {key!r}, version {version}" for key, version in self.due)]
        for name, world in (("SOW", self.world), ("replay of deltas", self.replayed)):
            keys = self.expected.keys() | world.keys()
            wrong += [f"{name}: key {key!r}" for key in keys if self.expected.get(key) != world.get(key)]
        return wrong


class Account:
    """The account of a topic, which goes on from where it was."""

    def __init__(self, partitions: int) -> None:
        self._folds = [Fold() for _ in range(partitions)]
        self._positions: dict[str, list[int]] = {
            role: [OFFSET_BEGINNING] * partitions for role in ("publish", "delta", "sow")
        }
        self._counts = dict.fromkeys(self._positions, 0)

    def check(self, patience_s: float) -> dict[str, Any]:
        """Read all topics to their ends, and compare; wait until all input has its deltas."""
        end_s = time.monotonic() + patience_s
        self._read("publish")
        while True:
            self._read("delta")
            if not any(fold.due for fold in self._folds) or time.monotonic() > end_s:
                break
            time.sleep(0.5)
        self._read("sow")
        wrong = [line for fold in self._folds for line in fold.differences()]
        keys = sum(len(fold.expected) for fold in self._folds)
        return {**self._counts, "keys": keys, "wrong": len(wrong), "examples": wrong[:_EXAMPLES_MAX]}

    def _read(self, role: str) -> None:
        """Read a topic from where it was read to, to its end."""
        consumer = Consumer(
            kafka(group_id="account", enable_auto_commit=False, isolation_level="read_committed",
                  enable_partition_eof=True, auto_offset_reset="earliest", fetch_wait_max_ms=50)
        )  # fmt: skip
        positions = self._positions[role]
        consumer.assign([TopicPartition(f"{TOPIC}.{role}", number, at) for number, at in enumerate(positions)])
        unread = set(range(len(positions)))
        while unread:
            for message in consumer.consume(10_000, 0.2):
                partition, error = message.partition(), message.error()
                if error is None:
                    positions[partition] = message.offset() + 1
                    self._counts[role] += 1
                    self._add(role, self._folds[partition], message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(partition)
        consumer.close()

    @staticmethod
    def _add(role: str, fold: Fold, message: Any) -> None:
        key, value = message.key(), message.value()
        if role == "publish":
            fold.add_input(key, value)
        elif role == "delta":
            fold.add_delta(key, value, int(dict(message.headers())["version"]))
        else:
            fold.world[key] = orjson.loads(value)


if __name__ == "__main__":
    account: list[Account] = []

    def check(query: dict[str, str]) -> dict[str, Any]:
        """The account; the first call gives the number of partitions."""
        if not account:
            account.append(Account(int(query["partitions"])))
        return account[0].check(float(query["patience"]))

    serve(PORTS["account"], {"check": check})
