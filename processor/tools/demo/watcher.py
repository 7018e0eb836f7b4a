"""A subscriber of all topics: counts records and latencies, and keeps the few that are displayed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from processor.kafka.readers.log_reader import OFFSET_BEGINNING, LogReader, Position
from processor.record import Headers
from processor.tools.demo.feeds.publisher import SENT_MS
from processor.tools.demo.latency import Latency
from processor.tools.demo.order_follower import OrderFollower
from processor.tools.demo.settings import CONFLATED, PARTITIONS, TOPICS, VIEW
from processor.wire.delta_headers import removed_text
from processor.wire.headers import header_text
from processor.wire.sow_headers import first_timestamp_ms, kind_of_update

if TYPE_CHECKING:
    from processor.kafka.message import Message
    from processor.tools.demo.settings import DemoSetup

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
