"""Subscribers, in a process of their own: they join at random moments, each with a view of its own.

An impossible message is a complaint: a delta of a record that the subscriber does not have, a record that was never
written, or one that it did not request. At the end one line of JSON describes every view.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from processor.client import Client
from processor.config import load
from tests.programs.subscriptions.orders import WANTED, Held

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.client import Message, Subscription

_COMPLAINTS_MAX: Final = 5
_CATCH_UP_S: Final = 10.0


class View:
    """The records of one subscriber."""

    def __init__(self, number: int) -> None:
        self.wanted = WANTED[number]
        self.records: dict[str, Held] = {}
        self.messages = self.snapshot_records = 0
        self.complaints: list[str] = []
        self.began_s: float | None = None
        self.snapshot_s: float | None = None

    def take(self, message: Message) -> None:
        """Apply a message."""
        self.messages += 1
        key = message.sow_key
        if key is None:
            self._mark(message)
            return
        if message.command == "oof":
            if self.records.pop(key, None) is None:
                self._complain(f"oof of {key}, which it has not")
            return
        before = self.records.get(key)
        if message.delta and before is None:
            self._complain(f"a delta of {key}, which it has not: {message.data}")
            return
        if message.command == "sow":
            self.snapshot_records += 1
        held = before.after(message.data) if message.delta and before is not None else Held.of(message.data)
        if not held.is_intact(key):
            self._complain(f"{key} never was {held}")
        if not self.wanted.matches(held.region, held.qty):
            self._complain(f"{key} is not wanted: {held}")
        if before is not None and held.times < before.times:
            self._complain(f"{key} goes back from {before} to {held}")
        self.records[key] = held

    def digest(self) -> str:
        """A digest of the records, in any order."""
        return digest(self.records.items())

    def _mark(self, message: Message) -> None:
        if message.command == "group_begin":
            self.began_s = time.monotonic()
        elif self.began_s is not None:
            self.snapshot_s = time.monotonic() - self.began_s

    def _complain(self, text: str) -> None:
        if len(self.complaints) < _COMPLAINTS_MAX:
            self.complaints.append(text)


def digest(records: Iterable[tuple[str, Held]]) -> str:
    """A count and a checksum of records in any order."""
    total = count = 0
    for key, held in records:
        total, count = total + crc32(f"{key}{held}".encode()), count + 1
    return f"{count} records, sum {total}"


class Latencies:
    """The time from sending an update to its receipt, once all subscribers have joined and caught up."""

    def __init__(self, joining: int) -> None:
        self._joining = joining
        self._latencies_ms: list[float] = []
        self._begin_s = float("inf")

    def take(self, message: Message) -> None:
        """Measure a message."""
        if message.command == "group_end":
            self._joining -= 1
            if not self._joining:
                self._begin_s = time.monotonic() + _CATCH_UP_S
        elif message.command == "publish" and message.data.get("at") and time.monotonic() >= self._begin_s:
            self._latencies_ms.append(time.time() * 1000 - message.data["at"])

    def percentiles(self) -> dict[str, Any]:
        """The percentiles in milliseconds."""
        latencies_ms = sorted(self._latencies_ms)
        parts = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        return {"seen": len(latencies_ms)} | {
            name: round(latencies_ms[min(len(latencies_ms) - 1, int(part * len(latencies_ms)))])
            for name, part in parts.items()
            if latencies_ms
        }


def _join(stream: Subscription, numbers: list[int], seconds: float, seed: int) -> None:
    """Subscribe the other subscribers at random moments while the feed runs."""
    rng = random.Random(seed)
    moments = sorted(rng.uniform(0, seconds) for _ in numbers)
    began_s = time.monotonic()
    for number, moment_s in zip(numbers, moments, strict=True):
        time.sleep(max(0.0, began_s + moment_s - time.monotonic()))
        stream.add(WANTED[number].filter, "oof", sub_id=str(number))


def main() -> None:
    """Subscribe, apply messages until none comes for a while, and print the views."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("topic")
    parser.add_argument("--numbers", required=True, help="which of the wanted, such as 0,4,8")
    parser.add_argument("--seconds", type=float, required=True, help="within this time they join")
    parser.add_argument("--quiet", type=float, required=True, help="seconds without a message that are the end")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    first, *others = numbers = [int(number) for number in arguments.numbers.split(",")]
    views, latencies = {str(number): View(number) for number in numbers}, Latencies(len(numbers))
    with Client(f"subscriber{first}", load(arguments.config)) as client:
        stream = client.sow_and_delta_subscribe(
            arguments.topic, WANTED[first].filter, "oof", sub_id=str(first), timeout_s=arguments.quiet
        )
        joining = threading.Thread(target=_join, args=(stream, others, arguments.seconds, arguments.seed), daemon=True)
        for message in stream:
            if message.command == "group_end" and message.sub_ids == (str(first),):
                print("ready", flush=True)
                joining.start()
            for sub_id in message.sub_ids:
                views[sub_id].take(message)
            latencies.take(message)
    used = resource.getrusage(resource.RUSAGE_SELF)
    summary = {
        "views": {
            sub_id: {
                "digest": view.digest(),
                "messages": view.messages,
                "snapshot": view.snapshot_records,
                "snapshot_s": view.snapshot_s,
                "complaints": view.complaints,
            }
            for sub_id, view in views.items()
        },
        "latency_ms": latencies.percentiles(),
        "cpu_s": used.ru_utime + used.ru_stime,
        "memory_mb": used.ru_maxrss // 1024,
    }
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()
