"""The messages that are leased to one consumer, the decision about each of them, and the dead letters.

A lease begins when Kafka delivers a message and lasts for the queue's setting `lease`. A message whose lease may have
ended before its turn comes is not handed out: another consumer may have it.

Kafka counts a delivery when it leases a message, and takes none back. So that it counts the messages that are handed
out, leases are taken ahead only while messages are handled well: one at first, then twice as many each time, but no
more than were handled in half of a lease, and one again after a release, a lease that ended, or a message with more
than half of its deliveries. Messages are handed out in the order of their offsets. Those with more than half of their
deliveries come last, and of those that a partition lost at the same delivery the first one: it was in hand, and the
others had not had their turn.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from processor.config import QueueConfig
from processor.errors import RecordRejected, Stop
from processor.queues.queue_message import QueueMessage
from processor.queues.transport.leases import Lease, Place, Verdict
from processor.record import Value
from processor.wire.dead_letter import reason_headers

if TYPE_CHECKING:
    from processor.kafka.clients.publisher import Publisher


log = logging.getLogger(__name__)

_ON_THE_WAY_S: Final = 0.2
"""The time from a decision until Kafka has it: the tenth of a second of `settle`, and a fetch that is under way."""
_SHARE_KEPT: Final = 0.05
"""Part of a lease that must be left when a message is handed out."""
_TOOK_LEAST_S: Final = 0.001
"""The least time that counts as that of a fetch: no number of leases follows from none."""
_SHARE_AHEAD: Final = 0.5
"""Part of a lease in which the messages that are leased together should be handled."""


class LeaseSource(Protocol):
    """The member of a share group that leases messages: `ShareReader`."""

    def poll(self, timeout_s: float, leases_max: int) -> list[Lease]:
        """Return the next leases, so many at most."""

    def settle(self, lease: Lease, verdict: Verdict) -> None:
        """Decide about one: the outcome is sent with the next fetch, and in a tenth of a second at the latest."""

    def drop(self, lease: Lease) -> None:
        """Forget one whose lease has ended."""

    def close(self) -> None:
        """Send outcomes, and leave."""


class LetterWriter(Protocol):
    """The dead letters of the queue: `QueueDeadLetters`."""

    def write(self, lease: Lease, reason: str, detail: str) -> None:
        """Write one, and wait until Kafka has it."""


class Backlog:
    """The messages of one consumer. One thread at a time; outcomes may be set by any thread."""

    def __init__(
        self,
        name: str,
        settings: QueueConfig,
        source: LeaseSource,
        letters: LetterWriter,
        decode: Callable[[Lease], Value],
        leases_max: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without messages.

        Args:
            name: the queue.
            settings: its settings.
            source: leases messages.
            letters: takes dead letters.
            decode: parses the record of a message.
            leases_max: most messages that are leased at a time.
            clock_s: a clock that does not jump, in seconds.
        """
        self.counts: Counter[str] = Counter()
        """Messages by fate: `delivered`, `delivered_again`, `acknowledged`, `released`, `rejected`, `dead`, `lapsed`:
        their lease ended before their turn or outcome, `lost`: Kafka did not take their outcome."""
        self.name = name
        """The queue."""
        self._settings = settings
        self._source, self._letters, self._decode, self._clock_s = source, letters, decode, clock_s
        # Where a lost delivery is one too many, none is lost without its turn.
        self._leases_max = leases_max if settings.max_deliveries > 1 else 1
        self._leases_next = 1
        self._leases_unpaced = 0  # Those of the last fetch, until the next number follows from them.
        self._fetched_s = clock_s()
        self._waiting: deque[Lease] = deque()
        self._handed_out: list[QueueMessage] = []

    @property
    def leased(self) -> int:
        """Number of messages that are leased to this consumer and have no outcome."""
        return len(self._waiting) + sum(message.outcome is None for message in tuple(self._handed_out))

    def next(self, wait_s: float) -> QueueMessage | None:
        """The next message; None if none came in time, or while `leases_max` messages have no outcome.

        Raises:
            Stop: Kafka cannot be read on, or takes no dead letter.
        """
        self.settle_decided()
        message = self._next_waiting()
        if message is not None:
            return message
        for _ in range(self._leases_max):  # Those of a fetch may all be dead letters.
            self._pace()
            if len(self._handed_out) >= self._leases_max:
                return None
            if not self._fetch(wait_s) or (message := self._next_waiting()) is not None:
                return message
        return None

    def settle_decided(self) -> None:
        """Tell Kafka the outcomes that were decided."""
        for message in [one for one in self._handed_out if one.outcome is not None]:
            self._handed_out.remove(message)
            self._apply(message)

    def close(self) -> None:
        """Release the messages without an outcome, and leave."""
        for message in self._handed_out:
            message.settle_if_open("release")
        try:
            self.settle_decided()
            for lease in self._waiting:
                self._source.settle(lease, "release")
            self._waiting.clear()
        finally:
            self._source.close()

    def lost(self, places: Sequence[Place], why: str) -> None:
        """Count outcomes that Kafka did not take: these messages are delivered again."""
        self.counts["lost"] += len(places)
        log.warning("%s: Kafka did not take the outcomes of %d messages: %s", self.name, len(places), why)

    def _fetch(self, wait_s: float) -> bool:
        """Lease the next messages; returns whether any came."""
        # A program may gather messages before it decides on their outcomes.
        leases = self._source.poll(wait_s, min(len(self._handed_out) + self._leases_next, self._leases_max))
        self._leases_unpaced, self._fetched_s = len(leases), self._clock_s()
        few = max(1, self._settings.max_deliveries / 2)
        suspects = [lease for lease in leases if lease.deliveries > few]
        if suspects:
            self._lease_singly()
        first = {(lease.partition, lease.deliveries): lease for lease in reversed(suspects)}
        suspects.sort(key=lambda each: (each.deliveries, each is first[each.partition, each.deliveries]))
        self._waiting += [lease for lease in leases if lease.deliveries <= few] + suspects
        return bool(leases)

    def _pace(self) -> None:
        """Set the number of the next leases, once the program has taken those of the last fetch and wants more."""
        if self._leases_unpaced:
            took_s = max(self._clock_s() - self._fetched_s, _TOOK_LEAST_S)
            handled = int(self._leases_unpaced * _SHARE_AHEAD * self._settings.lease / took_s)
            self._leases_next = max(1, min(2 * self._leases_next, handled, self._leases_max))
            self._leases_unpaced = 0

    def _lease_singly(self) -> None:
        """Lease one message next: others would lose a delivery with it."""
        self._leases_next, self._leases_unpaced = 1, 0

    def _next_waiting(self) -> QueueMessage | None:
        while self._waiting:
            lease = self._waiting.popleft()
            if self._is_lapsed(lease, _SHARE_KEPT * self._settings.lease):
                self._give_up(lease)
                continue
            if lease.deliveries > self._settings.max_deliveries:
                self._bury(lease, "max_deliveries", f"delivered {lease.deliveries - 1} times, and never acknowledged")
                continue
            try:
                data = self._decode(lease)
            except RecordRejected as error:
                self._bury(lease, error.reason, error.detail)
                continue
            self.counts["delivered"] += 1
            self.counts["delivered_again"] += lease.deliveries > 1
            message = QueueMessage(self.name, self._settings.underlying, lease, data)
            self._handed_out.append(message)
            return message
        return None

    def _apply(self, message: QueueMessage) -> None:
        lease = message.lease
        if self._is_lapsed(lease, _ON_THE_WAY_S):
            self._give_up(lease)
        elif message.outcome == "ack":
            self.counts["acknowledged"] += 1
            self._source.settle(lease, "accept")
        elif message.outcome == "reject":
            self.counts["rejected"] += 1
            self._bury(lease, "rejected", message.reason)
        elif lease.deliveries >= self._settings.max_deliveries:
            self._bury(lease, "max_deliveries", f"released at delivery {lease.deliveries}, the last one")
        else:
            self.counts["released"] += 1
            self._lease_singly()
            self._source.settle(lease, "release")

    def _is_lapsed(self, lease: Lease, left_s: float) -> bool:
        """Return whether less than this time is left of a lease."""
        return self._clock_s() >= lease.since_s + self._settings.lease - left_s

    def _give_up(self, lease: Lease) -> None:
        """Forget a message whose lease has ended: Kafka would refuse its outcome, and those that travel with it."""
        self.counts["lapsed"] += 1
        self._lease_singly()
        self._source.drop(lease)

    def _bury(self, lease: Lease, reason: str, detail: str) -> None:
        """Make a message a dead letter."""
        self._letters.write(lease, reason, detail)
        self.counts["dead"] += 1
        self._source.settle(lease, "reject")


_DETAIL_BYTES_MAX: Final = 1000


class QueueDeadLetters:
    """The dead-letter topic of one queue.

    Kafka has a letter before its message is rejected there: a consumer that dies in between leaves the message to
    another one, which writes the letter again. So a letter may come twice, and none is lost.
    """

    def __init__(self, publisher: Publisher, *, queue_topic: str, topic: str) -> None:
        """Create it.

        Args:
            publisher: sends the letters.
            queue_topic: the Kafka topic of the messages.
            topic: the Kafka topic of the letters.
        """
        self._publisher = publisher
        self._queue_topic = queue_topic
        self._topic = topic

    def write(self, lease: Lease, reason: str, detail: str) -> None:
        """Write one letter, and wait until Kafka has it.

        Args:
            lease: the message.
            reason: a word.
            detail: a sentence.

        Raises:
            Stop: Kafka does not take it; the message is not lost.
        """
        record = lease.record
        source = f"{self._queue_topic}/{lease.partition}/{record.offset}"
        cut = detail.encode()[:_DETAIL_BYTES_MAX].decode(errors="ignore").encode()
        headers = [*(record.headers or ()), *reason_headers(reason, cut, source)]
        errors: list[Stop | None] = []
        self._publisher.send(self._topic, record.key, record.value, headers, errors.append, partition=lease.partition)
        self._publisher.flush()
        if errors and errors[0] is not None:
            raise errors[0]
