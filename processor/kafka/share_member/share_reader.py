"""Reads a queue topic as a member of a share group: each record is leased to one member at a time (KIP-932)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from processor.kafka.share_member.share_member import ShareMember

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.kafka.share_member.lease import Lease, Place, Verdict


class ShareReader:
    """A member of a share group that reads one topic. One thread at a time."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        *,
        group: str,
        topic: str,
        leases_max: int,
        absence_max_s: float,
        on_lost: Callable[[Sequence[Place], str], None],
    ) -> None:
        """Join a group, in the background.

        Args:
            kafka: librdkafka properties.
            group: the share group.
            topic: the queue topic.
            leases_max: most records that are held at a time.
            absence_max_s: without a call for so long, which is a lease at least, the member leaves the group until the
                next one: Kafka gives a partition to one member alone if there are as many partitions as members.
            on_lost: called with the places whose outcome Kafka did not take, and the reason: they are delivered again.
                On the thread of the call in which it is noticed.

        Raises:
            ConfigurationError: the properties cannot be used.
        """
        self._on_lost = on_lost
        self._is_closed = False
        self._leases_max = leases_max
        self._member = ShareMember(kafka, group=group, topic=topic, leases_max=leases_max, absence_max_s=absence_max_s)

    @property
    def counts(self) -> Mapping[str, int]:
        """Records by fate; see `LeaseBook.counts`."""
        return dict(self._member.book.counts)

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions of this member whose leaders are known."""
        return self._member.partitions

    def poll(self, timeout_s: float) -> list[Lease]:
        """Return the next records; outcomes travel with the request for them.

        Records that are held count: when `leases_max` of them have no outcome, no others come.

        Args:
            timeout_s: the longest wait. A fetch that has begun goes on, and its records come with a later call.

        Raises:
            Stop: the queue cannot be read on.
        """
        member = self._member
        until_s = time.monotonic() + timeout_s
        member.seen()
        with member.lock:
            member.check()
            if not member.book.has_ready:
                member.demand.wait_for(timeout_s)
                member.wake()
                while not self._has_news():
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        break
                    member.lock.wait(left_s)
                member.check()
            leases = member.book.take(self._leases_max)
            if leases:
                member.demand.satisfied()
        member.seen()
        self._report_lost()
        return leases

    def settle(self, lease: Lease, verdict: Verdict) -> None:
        """Decide about a record; Kafka learns of it with the next `poll`, `send` or `close`."""
        self._member.seen()
        with self._member.lock:
            is_held = self._member.book.settle(lease, verdict)
        if not is_held:
            self._on_lost([lease.place], "its share session has ended")

    def drop(self, lease: Lease) -> None:
        """Forget a record whose lease has ended by its time: Kafka delivers it again without an outcome."""
        with self._member.lock:
            self._member.book.drop(lease)

    def send(self) -> None:
        """Send the outcomes now.

        Raises:
            Stop: the queue cannot be read on.
        """
        self._member.seen()
        with self._member.lock:
            self._member.check()
            if self._member.book.has_outcomes():
                self._member.send()
        self._report_lost()

    def close(self) -> None:
        """Send the outcomes, and leave the group: records without one are available to other members at once.

        A second call does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._member.close()
        self._report_lost()

    def _has_news(self) -> bool:
        return self._member.book.has_ready or self._member.failure is not None

    def _report_lost(self) -> None:
        if self._member.book.lost:
            with self._member.lock:
                lost = self._member.book.take_lost()
            for places, reason in lost:
                self._on_lost(places, reason)
