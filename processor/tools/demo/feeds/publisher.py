"""Publishes generated records at a chosen rate, on a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.kafka.producers.publisher import Publisher
from processor.record import Command, Headers
from processor.wire.heads import command_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SENT_MS: Final = "sent_ms"
"""Header with the time of publishing. Sowstream does not use it, but passes it on to SOW and delta."""

_TICK_S: Final = 0.02
_FLUSH_TIMEOUT_S: Final = 30.0


class Publication(NamedTuple):
    """One record for a publish topic."""

    key: bytes
    """The Kafka record key."""
    value: bytes | None
    """The message; None for a tombstone."""
    command: Command | None = None
    """The command; None for the topic's default, `delta_publish`."""


class FeedPublisher:
    """One publisher; a single producer keeps the order of its records."""

    def __init__(self, kafka: Mapping[str, str], topic: str, source: Callable[[], Publication]) -> None:
        self._topic = topic
        self._source = source
        self._publisher = Publisher(kafka)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = 0
        """Records sent so far."""
        self.error: Exception | None = None
        """The error that ended it early."""

    def send(self, count: int) -> None:
        """Publish the next records at once."""
        for _ in range(count):
            publication = self._source()
            headers: Headers = [(SENT_MS, b"%d" % (time.time_ns() // 1_000_000))]
            if publication.command is not None:
                headers.append(command_header(publication.command))
            self._publisher.send(self._topic, publication.key, publication.value, headers)
            self.sent += 1

    def start(self, rate: float) -> None:
        """Publish at this rate, in records per second, from now on."""
        self._thread = threading.Thread(target=self._run, args=(rate,), name=f"feed {self._topic}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop publishing, and wait until Kafka has everything.

        Raises:
            Stop: a record was not delivered.
        """
        self.cancel()
        self._publisher.flush(_FLUSH_TIMEOUT_S)

    def cancel(self) -> None:
        """Stop publishing, without waiting for delivery."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, rate: float) -> None:
        began_s, already = time.monotonic(), self.sent
        # A feed that falls behind does not catch up at once: the rate would be another than the chosen one.
        most = max(1, int(rate * _TICK_S * 5))
        try:
            while not self._stop.wait(_TICK_S):
                due = int((time.monotonic() - began_s) * rate) - (self.sent - already)
                if due > most:
                    already -= due - most
                self.send(min(due, most))
        except Exception as error:  # noqa: BLE001 - Raised by the thread that watches the feed.
            self.error = error
