"""A subscriber of all topics: counts records and latencies, follows an order, and reads the conflater's metrics."""

from __future__ import annotations

import http.client
import math
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from prometheus_client.parser import text_string_to_metric_families

from processor.kafka.clients.log_reader import OFFSET_BEGINNING, LogReader, Position
from processor.record import Headers
from processor.trial.demo.feeds import SENT_MS
from processor.trial.demo.settings import CONFLATED, PARTITIONS, TOPICS, VIEW
from processor.wire.headers import header_text
from processor.wire.record_headers import first_timestamp_ms, kind_of_update
from processor.wire.subscriber_headers import removed_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.kafka.message import Message
    from processor.trial.demo.settings import DemoSetup


_GROWTH: Final = 1.05  # The error of a quantile is at most 5 %.
_BUCKETS: Final = 1 + math.ceil(math.log(120_000) / math.log(_GROWTH))  # Up to two minutes.
_RECENT_S: Final = 10


class Latency:
    """A histogram of milliseconds. One thread adds; other threads read under the lock of that thread."""

    def __init__(self) -> None:
        self._all = [0] * _BUCKETS
        self._recent: deque[tuple[int, list[int]]] = deque()

    def add(self, now_s: float, milliseconds: float) -> None:
        """Count one latency, measured now."""
        at = 0 if milliseconds <= 1 else min(_BUCKETS - 1, math.ceil(math.log(milliseconds) / math.log(_GROWTH)))
        second = int(now_s)
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append((second, [0] * _BUCKETS))
            self._forget(second)
        self._recent[-1][1][at] += 1
        self._all[at] += 1

    def recent_ms(self, now_s: float, *shares: float) -> list[float | None]:
        """Quantiles of the last ten seconds; None without values."""
        self._forget(int(now_s))
        return _quantiles([counts for _, counts in self._recent], shares)

    def last_second_ms(self, now_s: float, share: float) -> float | None:
        """A quantile of the last full second."""
        return _quantiles([counts for second, counts in self._recent if second == int(now_s) - 1], [share])[0]

    def all_ms(self, *shares: float) -> list[float | None]:
        """Quantiles of all values."""
        return _quantiles([self._all], shares)

    def _forget(self, second: int) -> None:
        while self._recent and self._recent[0][0] <= second - _RECENT_S:
            self._recent.popleft()


def _quantiles(many: list[list[int]], shares: Iterable[float]) -> list[float | None]:
    counts = [sum(bucket) for bucket in zip(*many, strict=True)]
    return [_quantile(counts, share) for share in shares]


def _quantile(counts: list[int], share: float) -> float | None:
    """The upper end of the bucket that contains the quantile."""
    rank = share * sum(counts)
    if not rank:
        return None
    seen = 0
    for at, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return _GROWTH**at
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


_EVERY_S: Final = 0.5
_TIMEOUT_S: Final = 0.5
_KEYS: Final = "sowstream_conflation_pending_keys"
_OLDEST: Final = "sowstream_conflation_oldest_pending_seconds"


class PendingFigures(NamedTuple):
    """The pending updates of one conflated topic, over all partitions."""

    keys: int
    """The number of keys with one."""
    oldest_s: float
    """The age of the oldest, in seconds."""


class Meter:
    """Requests the conflater's metrics, now and then."""

    def __init__(self, setup: DemoSetup, port: int) -> None:
        """Create the meter, without a request.

        Args:
            setup: the demo's configuration.
            port: the local port of the conflater's metrics.
        """
        self._setup = setup
        self._port = port
        self._asked_s = 0.0
        self._waiting: Mapping[str, PendingFigures] = {}

    def waiting(self, name: str) -> PendingFigures | None:
        """The pending updates of a conflated topic such as `prices_1s`; None if the conflater does not answer."""
        if time.monotonic() - self._asked_s >= _EVERY_S:
            try:
                self._waiting = read_waiting(self._ask())
            except (OSError, http.client.HTTPException):
                self._waiting = {}  # Not started yet, or ended: the last values are not valid any more.
            self._asked_s = time.monotonic()
        return self._waiting.get(self._setup.family(name))

    def _ask(self) -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()


def read_waiting(metrics: str) -> dict[str, PendingFigures]:
    """The pending updates by conflated topic, from metrics in Prometheus' text format."""
    updates: dict[str, PendingFigures] = {}
    for family in text_string_to_metric_families(metrics):
        if family.name not in {_KEYS, _OLDEST}:
            continue
        for sample in family.samples:
            name = sample.labels["processor"]
            before = updates.get(name, PendingFigures(0, 0.0))
            if family.name == _KEYS:
                updates[name] = before._replace(keys=before.keys + int(sample.value))
            else:
                updates[name] = before._replace(oldest_s=max(before.oldest_s, sample.value))
    return updates


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
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition, the end offset that was read; transaction markers count."""
    last: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition, the offset of the last record."""
    latency: Latency = field(default_factory=Latency)
    """From publishing until the committed delta is received."""
    late: dict[str, Latency] = field(default_factory=lambda: {name: Latency() for name in CONFLATED})
    """By conflated topic, from the end of a key's interval until the committed update is received."""
    prices: dict[str, bytes] = field(default_factory=dict)
    """The price of each pair."""
    open_orders: dict[str, bytes] = field(default_factory=dict)
    """The row of the view for each customer who has open orders."""
    follow: OrderFollower = field(default_factory=OrderFollower)
    """The order that is followed."""


class Watcher:
    """Reads the outputs of all families on a thread of its own, committed records only."""

    def __init__(self, setup: DemoSetup) -> None:
        self._reader = LogReader(setup.config.kafka, group=setup.group("watcher"))
        self._names = {
            setup.topic(name, role): (name, role) for name in (*TOPICS, *CONFLATED) for role in ("sow", "delta", "dlq")
        }
        self._names |= {setup.topic(VIEW, role): (VIEW, role) for role in ("sow", "parts")}
        self._reader.add(
            Position(topic, partition, OFFSET_BEGINNING) for topic in self._names for partition in range(PARTITIONS)
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.lock = threading.Lock()
        """Held while `seen` changes."""
        self.seen = Observations({f"{name}.{role}": Count() for name, role in self._names.values()})
        """All observations so far."""
        self.error: Exception | None = None
        """The error that ended it early."""

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._reader.close()

    def count(self, name: str) -> int:
        """The number of records of a topic such as `orders.delta`."""
        with self.lock:
            return self.seen.counts[name].records

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
        topic, value = cast("str", message.topic()), message.value()
        name, role = self._names[topic]
        seen = self.seen
        count = seen.counts[f"{name}.{role}"]
        count.records += 1
        count.size_bytes += len(value or b"")
        seen.last[topic, cast("int", message.partition())] = cast("int", message.offset())
        if role == "delta" and name in TOPICS:
            headers = cast("Headers", message.headers())
            sent_ms = header_text(headers, SENT_MS)
            if sent_ms is not None:
                seen.latency.add(now_s, now_s * 1000 - int(sent_ms))
            if name == "orders" and value is not None:
                kind = kind_of_update(headers) or "update"
                removed = removed_text(headers)
                seen.follow.take(
                    now_s, (message.key() or b"").decode(), value, kind, None if removed is None else removed.decode()
                )
        elif role == "sow" and name in CONFLATED:
            first_ms = first_timestamp_ms(cast("Headers", message.headers()))
            end_ms = int(first_ms or now_s * 1000) + CONFLATED[name][1] * 1000
            seen.late[name].add(now_s, now_s * 1000 - end_ms)
        elif role == "sow" and name == VIEW:
            customer = (message.key() or b"").decode()
            if value is None:
                seen.open_orders.pop(customer, None)
            else:
                seen.open_orders[customer] = value
        elif role == "sow" and name == "prices" and value is not None:
            seen.prices[(message.key() or b"").decode()] = value
