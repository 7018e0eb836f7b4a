"""A subscriber of all topics: it keeps their records, counts records and latencies, and follows an order."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from processor.kafka.clients.log_reader import OFFSET_BEGINNING, LogReader, Position
from processor.record import Headers
from processor.trial.demo.check import Received
from processor.trial.demo.feeds import SENT_MS
from processor.trial.demo.settings import CONFLATED, PARTITIONS, TOPICS, VIEW
from processor.wire.headers import header_text
from processor.wire.record_headers import first_timestamp_ms
from processor.wire.subscriber_headers import read_delta_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.kafka.message import Message
    from processor.trial.demo.settings import DemoSetup


_GROWTH: Final = 1.05  # The error of a quantile is at most 5 %.
_RECENT_S: Final = 10


class Latency:
    """A histogram of milliseconds. One thread adds; other threads read under the lock of that thread."""

    def __init__(self) -> None:
        self._all: Counter[int] = Counter()
        self._recent: dict[int, Counter[int]] = {}

    def add(self, now_s: float, milliseconds: float) -> None:
        """Count one latency, measured now."""
        bucket = math.ceil(math.log(max(1.0, milliseconds)) / math.log(_GROWTH))
        second = int(now_s)
        if second not in self._recent:
            self._recent = {at: counts for at, counts in self._recent.items() if at > second - _RECENT_S}
            self._recent[second] = Counter()
        self._recent[second][bucket] += 1
        self._all[bucket] += 1

    def all_ms(self, *shares: float) -> list[float | None]:
        """Quantiles of all values; None without values."""
        return _quantiles(self._all, shares)

    def recent_ms(self, now_s: float, *shares: float, seconds: int = _RECENT_S) -> list[float | None]:
        """Quantiles of the last full seconds, at most ten, and of the present one."""
        recent = [counts for second, counts in self._recent.items() if second > int(now_s) - seconds]
        return _quantiles(sum(recent, Counter()), shares)


def _quantiles(counts: Counter[int], shares: tuple[float, ...]) -> list[float | None]:
    return [_quantile(counts, share * counts.total()) for share in shares]


def _quantile(counts: Counter[int], rank: float) -> float | None:
    """The upper end of the bucket that contains the value of a rank."""
    passed = 0
    for bucket, count in sorted(counts.items()):
        passed += count
        if passed >= rank:
            return _GROWTH**bucket
    return None


_DONE: Final = (b'"state":"filled"', b'"state":"cancelled"')
_LOOKED_AT_S: Final = 2.5
_GIVEN_UP_S: Final = 20.0
_STEPS_MAX: Final = 6


class OrderStep(NamedTuple):
    """One delta of the order."""

    after_s: float
    """Seconds since the order was new."""
    delta: str
    """The delta as received."""
    removed: str | None
    """The removed paths."""


class OrderFollower:
    """One order, and its changes so far."""

    def __init__(self) -> None:
        self.key: str | None = None
        """The order's key; None before the first one."""
        self.steps: list[OrderStep] = []
        """Its latest deltas."""
        self._began_s = 0.0
        self._done_s: float | None = None

    def take(self, now_s: float, key: str, delta: bytes, kind: str, removed: str | None) -> None:
        """Process a delta of any order."""
        if kind == "insert" and self._is_free(now_s):
            self.key, self.steps, self._began_s, self._done_s = key, [], now_s, None
        if key != self.key or kind == "delete":
            return
        self.steps = [*self.steps, OrderStep(now_s - self._began_s, delta.decode(), removed)][-_STEPS_MAX:]
        if any(end in delta for end in _DONE):
            self._done_s = now_s

    def _is_free(self, now_s: float) -> bool:
        if self.key is None or now_s - self._began_s > _GIVEN_UP_S:
            return True
        return self._done_s is not None and now_s - self._done_s > _LOOKED_AT_S


_BATCH_MAX: Final = 1_000
_IDLE_S: Final = 0.05


@dataclass(slots=True)
class Count:
    """The records received from one topic."""

    records: int = 0
    """Their number."""
    size_bytes: int = 0
    """Bytes of their values."""


@dataclass
class Observations:
    """The watcher's observations. Access them under its lock only."""

    counts: dict[str, Count]
    """By topic, such as `orders.sow`."""
    received: dict[str, Received]
    """By topic, conflated topic and view, its records."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition, the end offset that was read; transaction markers count."""
    latency: Latency = field(default_factory=Latency)
    """From publishing until the committed delta is received."""
    late: dict[str, Latency] = field(default_factory=lambda: {name: Latency() for name in CONFLATED})
    """By conflated topic, from the end of a key's interval until the committed update is received."""
    follow: OrderFollower = field(default_factory=OrderFollower)
    """The order that is followed."""


class Watcher:
    """Reads the outputs of all families on a thread of its own, committed records only."""

    def __init__(self, setup: DemoSetup) -> None:
        self._reader = LogReader(setup.config.kafka, group=setup.group("watcher"))
        self._names = {
            setup.topic(name, role): (name, role)
            for name in (*TOPICS, *CONFLATED, VIEW)
            for role in ("sow", "delta", "dlq")
        }
        self._reader.add(
            Position(topic, partition, OFFSET_BEGINNING) for topic in self._names for partition in range(PARTITIONS)
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.lock = threading.Lock()
        """Held while `seen` changes."""
        intervals_s = {name: interval_s for name, (_, interval_s) in CONFLATED.items()}
        received = {name: Received(intervals_s.get(name, 0.0)) for name, _ in self._names.values()}
        self.seen = Observations({f"{name}.{role}": Count() for name, role in self._names.values()}, received)
        """All observations so far."""
        self.error: Exception | None = None
        """The error that ended it early."""

    @property
    def topics(self) -> list[str]:
        """The Kafka topics that are read."""
        return [*self._names]

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._reader.close()

    def has_read(self, ends: Mapping[tuple[str, int], int]) -> bool:
        """Return whether everything below these offsets was read, by Kafka topic and partition."""
        with self.lock:
            return all(self.seen.ends.get(place, 0) >= end for place, end in ends.items())

    def forget_latency(self) -> None:
        """Reset the latencies: those so far are from the start-up."""
        with self.lock:
            self.seen.latency = Latency()
            self.seen.late = {name: Latency() for name in CONFLATED}

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                # Read available records only; waiting for a full batch would be measured as latency.
                read = self._reader.read(_BATCH_MAX, 0.0)
                if not read.messages and not read.ends:
                    read = self._reader.read(1, _IDLE_S)
                now_s = time.time()
                with self.lock:
                    for message in read.messages:
                        self._take(message, now_s)
                    for topic, partition, offset in read.ends:
                        self.seen.ends[topic, partition] = offset
        except Exception as error:  # noqa: BLE001 - Raised by the thread that watches this one.
            self.error = error

    def _take(self, message: Message, now_s: float) -> None:
        key, value = (message.key() or b"").decode(), message.value()
        headers = cast("Headers", message.headers() or [])
        name, role = self._names[cast("str", message.topic())]
        count, received = self.seen.counts[f"{name}.{role}"], self.seen.received[name]
        count.records += 1
        count.size_bytes += len(value or b"")
        if role == "dlq":
            received.rejected += 1
        elif role == "sow":
            received.take_record(key, value, headers)
            if name in CONFLATED:
                end_ms = int(first_timestamp_ms(headers) or now_s * 1000) + CONFLATED[name][1] * 1000
                self.seen.late[name].add(now_s, now_s * 1000 - end_ms)
        else:
            received.take_delta(key, value or b"", headers, message.timestamp()[1])
            if name in TOPICS and (sent_ms := header_text(headers, SENT_MS)) is not None:
                self.seen.latency.add(now_s, now_s * 1000 - int(sent_ms))
            if name == "orders":
                delta = read_delta_headers(headers)
                removed = None if delta.removed is None else delta.removed.decode()
                self.seen.follow.take(now_s, key, value or b"", delta.kind or "update", removed)
