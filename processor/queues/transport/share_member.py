"""A member of a share group: the reader that a consumer's thread calls, and the network thread (KIP-932).

Each record is leased to one member at a time. The network thread sends heartbeats, and has a reader for each broker
that leads partitions.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from kafka import errors

from processor.errors import Stop
from processor.queues.transport import share_session
from processor.queues.transport.leader_reader import SEND_WITHIN_S, LeaderReader
from processor.queues.transport.leases import Demand, FetchGrant, LeaseBook
from processor.queues.transport.network import Network
from processor.queues.transport.share_session import Membership

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.queues.transport.leases import Lease, Place, Verdict


log = logging.getLogger("sowstream.share_member")

_RETRY_S: Final = 0.2
_RETRY_MAX_S: Final = 2.0
_CLOSE_TIMEOUT_S: Final = 5.0
_CLOSE_LEAST_S: Final = 0.1


class ShareMember:
    """The background work of a queue's reader. `lock` guards the book, the demand and the failure."""

    def __init__(self, kafka: Mapping[str, str], *, group: str, topic: str, absence_max_s: float) -> None:
        """Connect, and join the group, in the background. Arguments and errors as for `ShareReader`."""
        self.group, self.topic = group, topic
        self.book = LeaseBook()
        self.demand = Demand()
        self.lock = threading.Condition()
        self.failure: Stop | None = None
        """The reason why the queue cannot be read on."""
        self._membership = Membership(group, topic)
        self.member_id = self._membership.id
        self._network = Network(kafka, topic)
        self._readers: dict[int, LeaderReader] = {}
        self._places: dict[int, int] = {}  # The broker of each of our partitions.
        self._notifier = self._network.notifier()
        self._closes = False
        self._absence_max_s = absence_max_s
        self._seen_s = time.monotonic()
        self._network.start(self._place_partitions)
        self._heartbeats = self._network.spawn(self._stay_in_group)

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions whose leaders are known."""
        return frozenset(self._places)

    def seen(self) -> None:
        """Note that the caller is there; after an absence the member joins again. From any thread."""
        was_absent, self._seen_s = self._is_absent, time.monotonic()
        if was_absent:
            self._notifier.notify()

    def check(self) -> None:
        """Raise the reason why the queue cannot be read on.

        Raises:
            Stop: there is one.
        """
        if self.failure is None and (crash := self._network.crash) is not None:
            self.failure = Stop(f"reading {self.topic}: the network thread has ended: {type(crash).__name__}: {crash}")
        if self.failure is not None:
            raise self.failure

    def wake(self) -> None:
        """The caller waits for records; with the lock."""
        for reader in list(self._readers.values()):
            reader.wake()

    def send_soon(self) -> None:
        """Send the outcomes with the next fetches, and in a tenth of a second at the latest; with the lock."""
        for node, reader in self._readers.items():
            if self.book.has_outcomes(node):
                reader.send_within(SEND_WITHIN_S)

    def grant(self, node: int) -> FetchGrant | None:
        """A fetch that the broker may be asked for; with the lock."""
        if self.book.has_ready or self.failure is not None:
            return None
        nodes = [one for one, reader in self._readers.items() if reader.partitions]
        return self.demand.grant(node, nodes, self.book.held)

    def returned(self, node: int, leases: list[Lease]) -> None:
        """A fetch has ended; with the lock."""
        self.demand.returned(node)
        if leases:
            self.book.add(node, leases)
            self.lock.notify_all()
        if len(self._readers) > 1:
            for other, reader in self._readers.items():
                if other != node:
                    reader.wake()

    def fail(self, error: Stop) -> None:
        """Stop reading."""
        with self.lock:
            self.failure = self.failure or error
            self.lock.notify_all()

    def close(self) -> None:
        """Send the outcomes, give back the other leases, and leave the group."""
        try:
            if self._network.crash is None:
                self._network.run(self._leave)
        finally:
            self._network.close()

    async def _stay_in_group(self) -> None:
        """Send heartbeats until the end, but none while the caller is absent."""
        pause_s = _RETRY_S
        while not self._closes:
            if self._is_absent:
                await self._step_aside()
                continue
            try:
                answer = await self._network.to_coordinator(self.group, self._membership.heartbeat)
                code = self._membership.answered(answer)
            except Stop as error:
                self.fail(error)
                return
            except (errors.KafkaError, OSError) as error:
                text = share_session.refusal(error)
                if text is not None:
                    self.fail(Stop(f"joining the share group {self.group}: {text}"))
                    return
                code = -1
            except Exception as error:  # A defect must not look like an empty queue.
                log.exception("the heartbeats of a queue's consumer have failed")
                self.fail(Stop(f"the share group {self.group}: {type(error).__name__}: {error}"))
                return
            if code in share_session.REJOIN:
                log.warning("%s: the coordinator has forgotten this member; it joins again", self.group)
            elif code:
                self._network.forget_coordinator()
            pause_s = min(_RETRY_MAX_S, pause_s * 2) if code else _RETRY_S
            self._place_partitions()
            absent_in_s = max(0.0, self._seen_s + self._absence_max_s - time.monotonic()) + _RETRY_S
            await self._notifier(min(absent_in_s, pause_s if code else self._membership.pause_s))

    @property
    def _is_absent(self) -> bool:
        """True if the program has made no call for a lease and waits for no message: others get its partitions."""
        return time.monotonic() - self._seen_s > self._absence_max_s and not self.demand.is_waiting

    async def _step_aside(self) -> None:
        """Leave the group until the caller is seen: Kafka may give each partition to one member alone."""
        if self._membership.epoch > 0:
            log.info("%s: its program takes no message; the others get its partitions", self.group)
            await self._say_farewell(_CLOSE_TIMEOUT_S)
            self._membership.leave()
            self._place_partitions()
        await self._notifier(None)

    def _place_partitions(self) -> None:
        """Give each partition to the reader of its leader; on the network thread."""
        if self._closes:
            return
        topic_id = self._network.topic_id
        partitions = self._membership.partitions.get(topic_id, frozenset()) if topic_id is not None else frozenset()
        places: dict[int, int] = {}
        is_complete = bool(partitions) or not self._membership.partitions
        for one in partitions:
            leader = self._network.leader(one)
            if leader is None:
                is_complete = False
            else:
                places[one] = leader
        with self.lock:
            for one, node in self._places.items():
                if one in places and places[one] != node:
                    self.book.end_session(node, f"partition {one} has another leader", one)
            self._places = places
            for node in places.values():
                if node not in self._readers:
                    self._readers[node] = reader = LeaderReader(node, self, self._network)
                    reader.ended = self._network.spawn(reader.run)
            for node, reader in self._readers.items():
                reader.topic_id = topic_id
                reader.partitions = frozenset(one for one, its_node in places.items() if its_node == node)
                reader.wake()
        if not is_complete:
            self._network.spawn(self._refresh_later)

    async def _refresh_later(self) -> None:
        await self._network.sleep(_RETRY_S)
        if not self._closes:
            self._network.refresh()

    async def _leave(self) -> None:
        """End the sessions, then the membership; both in limited time, however many brokers are silent."""
        until_s = time.monotonic() + _CLOSE_TIMEOUT_S
        self._closes = True
        self._notifier.notify()
        for reader in self._readers.values():
            reader.close()
        for reader in self._readers.values():
            await self._network.ended(reader.ended, max(_CLOSE_LEAST_S, until_s - time.monotonic()))
        if self._membership.epoch <= 0:
            return  # No coordinator knows us, and there may be none to wait for.
        await self._network.ended(self._heartbeats, max(_CLOSE_LEAST_S, until_s - time.monotonic()))
        await self._say_farewell(max(_CLOSE_LEAST_S, until_s - time.monotonic()))

    async def _say_farewell(self, timeout_s: float) -> None:
        """Tell the coordinator, in limited time, that this member leaves."""
        request = self._membership.farewell
        sent = self._network.spawn(lambda: self._network.to_coordinator(self.group, request))
        await self._network.ended(sent, timeout_s)


class ShareReader:
    """A member of a share group that reads one topic. One thread at a time."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        *,
        group: str,
        topic: str,
        absence_max_s: float,
        on_lost: Callable[[Sequence[Place], str], None],
    ) -> None:
        """Join a group, in the background.

        Args:
            kafka: librdkafka properties.
            group: the share group.
            topic: the queue topic.
            absence_max_s: without a call for so long, which is a lease at least, the member leaves the group until the
                next one: Kafka gives a partition to one member alone if there are as many partitions as members.
            on_lost: called with the places whose outcome Kafka did not take, and the reason: they are delivered again.
                On the thread of the call in which it is noticed.

        Raises:
            ConfigurationError: the properties cannot be used.
        """
        self._on_lost = on_lost
        self._is_closed = False
        self._member = ShareMember(kafka, group=group, topic=topic, absence_max_s=absence_max_s)

    @property
    def counts(self) -> Mapping[str, int]:
        """Records by fate; see `LeaseBook.counts`."""
        return dict(self._member.book.counts)

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions of this member whose leaders are known."""
        return self._member.partitions

    def poll(self, timeout_s: float, leases_max: int) -> list[Lease]:
        """Return the next records.

        Records that are held count: when `leases_max` of them have no outcome, no others come.

        Args:
            timeout_s: the longest wait. A fetch that has begun goes on, and its records come with a later call.
            leases_max: most records that are held at a time.

        Raises:
            Stop: the queue cannot be read on.
        """
        member = self._member
        until_s = time.monotonic() + timeout_s
        member.seen()
        with member.lock:
            member.check()
            if not member.book.has_ready:
                member.demand.wait_for(timeout_s, leases_max)
                member.wake()
                while not self._has_news():
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        break
                    member.lock.wait(left_s)
                member.check()
            leases = member.book.take(leases_max)
            if leases:
                member.demand.satisfied()
        member.seen()
        self._report_lost()
        return leases

    def settle(self, lease: Lease, verdict: Verdict) -> None:
        """Decide about a record.

        The outcome is sent with the next request for records to its broker, and in a tenth of a second at the latest,
        also while no call comes.
        """
        self._member.seen()
        with self._member.lock:
            is_held = self._member.book.settle(lease, verdict)
            self._member.send_soon()
        if not is_held:
            self._on_lost([lease.place], "its share session has ended")

    def drop(self, lease: Lease) -> None:
        """Forget a record whose lease has ended by its time: Kafka delivers it again without an outcome."""
        with self._member.lock:
            self._member.book.drop(lease)

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
