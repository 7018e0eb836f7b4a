"""Reads the partitions that one broker leads: one request after the other, in a share session."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kafka import errors

from processor.errors import Stop
from processor.queues.transport import share_session
from processor.queues.transport.leases import GAP, Lease
from processor.queues.transport.record_batches import AcquiredRange, read_acquired
from processor.queues.transport.share_session import ShareSession

if TYPE_CHECKING:
    import threading
    import uuid

    from processor.queues.transport.leases import FetchGrant, LeaseBook, Outcomes
    from processor.queues.transport.network import Network

log = logging.getLogger("sowstream.share_member")

_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0
SEND_WITHIN_S: Final = 0.1
"""The longest time that outcomes wait for a fetch which they can travel with."""
_RELEASE: Final = 2
_REJECT: Final = 3


class Owner(Protocol):
    """The member that a reader belongs to: `ShareMember`."""

    group: str
    member_id: str
    topic: str
    book: LeaseBook
    lock: threading.Condition

    def grant(self, node: int) -> FetchGrant | None:
        """A fetch that the broker may be asked for; with the lock."""

    def returned(self, node: int, leases: list[Lease]) -> None:
        """A fetch has ended; with the lock."""

    def fail(self, error: Stop) -> None:
        """The queue cannot be read on."""


class _Exchange(NamedTuple):
    """A request, and the outcomes in it."""

    request: Any
    outcomes: Outcomes
    is_fetch: bool
    closes: bool = False


class LeaderReader:
    """The share session with one broker. On the network thread; `wake` and `send_within` from any."""

    def __init__(self, node: int, owner: Owner, network: Network) -> None:
        """Begin without partitions.

        Args:
            node: the broker.
            owner: the member.
            network: the connections.
        """
        self.node = node
        self.topic_id: uuid.UUID | None = None
        """The topic's id."""
        self.partitions: frozenset[int] = frozenset()
        """The partitions to read; those of outcomes may be others."""
        self.ended: Any = None
        """The future of `run`."""
        self._owner, self._network = owner, network
        self._session = ShareSession(owner.group, owner.member_id)
        self._connection: Any = None
        self._notifier = network.notifier()
        self._closes = False
        self._due_s: float | None = None
        self._grant: FetchGrant | None = None
        self._failures = 0

    def wake(self) -> None:
        """Look for work."""
        self._notifier.notify()

    def send_within(self, seconds: float) -> None:
        """Send the outcomes with the next fetch, and in this time at the latest; with the lock."""
        due_s = time.monotonic() + seconds
        if self._due_s is None or due_s < self._due_s:
            self._due_s = due_s
            self._notifier.notify()

    def close(self) -> None:
        """Send the outcomes, end the session, and end `run`."""
        self._closes = True
        self._notifier.notify()

    async def run(self) -> None:
        """Work until `close`."""
        while True:
            try:
                if not self._has_work():
                    if self._closes:
                        return
                    await self._notifier(self._idle_s())
                    continue
                await self._work()
            except Stop as error:
                self._owner.fail(error)
                return
            except (errors.KafkaError, OSError) as error:
                text = share_session.refusal(error)
                if text is not None:
                    self._owner.fail(Stop(f"reading {self._owner.topic}: {text}"))
                    return
                self._end_session(f"the connection to broker {self.node} was lost: {error or type(error).__name__}")
                if self._closes:
                    return
                await self._pause()
            except Exception as error:  # A defect must not look like an empty queue.
                log.exception("the reader of a queue has failed")
                self._owner.fail(Stop(f"reading {self._owner.topic}: {type(error).__name__}: {error}"))
                return

    def _has_work(self) -> bool:
        """Return whether a request is due; `_choose` makes it, once there is a connection."""
        with self._owner.lock:
            if self._closes:
                return self._session.is_open
            if not self._owner.book.has_outcomes(self.node):
                self._due_s = None
            elif self._is_due:
                return True
            if self.partitions:
                self._grant = self._owner.grant(self.node)
            return self._grant is not None

    @property
    def _is_due(self) -> bool:
        return self._due_s is not None and time.monotonic() >= self._due_s

    def _idle_s(self) -> float | None:
        due_s = self._due_s  # Another thread may set it meanwhile, and notifies.
        return None if due_s is None else max(0.0, due_s - time.monotonic())

    async def _work(self) -> None:
        """Send a request, and apply its answer."""
        leases: list[Lease] = []
        try:
            connection = await self._network.connection(self.node)
            if connection is not self._connection:
                self._end_session(f"the connection to broker {self.node} was lost")
                self._connection = connection
            with self._owner.lock:
                exchange = self._choose()
            is_well = True
            if exchange is not None:
                is_well, leases = await self._exchange(connection, exchange)
        finally:
            if self._grant is not None:
                self._grant = None
                with self._owner.lock:
                    self._owner.returned(self.node, leases)
        if not is_well and not self._closes:
            await self._pause()
        elif is_well:
            self._failures = 0

    async def _exchange(self, connection: Any, exchange: _Exchange) -> tuple[bool, list[Lease]]:
        """Send a request and apply the answer; returns whether all is well, and the leases in it."""
        asked_s = time.monotonic()
        try:
            answer = await self._network.send(connection, exchange.request)
        except errors.KafkaError as error:
            self._refuse(exchange.outcomes, f"the connection to broker {self.node} was lost: {error}")
            raise
        if not self._apply_head(answer, exchange):
            return answer.error_code in share_session.REOPEN, []
        if exchange.is_fetch:
            return self._read(answer, exchange.outcomes, asked_s)
        return self._read_refusals(answer, exchange.outcomes), []

    def _choose(self) -> _Exchange | None:
        """The next request."""
        book, session = self._owner.book, self._session
        if self._closes:
            outcomes = book.outcomes_for(self.node)
            return _Exchange(session.acknowledge(self.topic_id, outcomes, closes=True), outcomes, False, closes=True)
        is_due = self._is_due
        self._due_s = None
        if self._grant is None and not is_due:
            return None
        outcomes = book.outcomes_for(self.node)
        if self._grant is None or not outcomes.keys() <= self.partitions:
            if not outcomes:
                return None
            return _Exchange(session.acknowledge(self.topic_id, outcomes), outcomes, False)
        assert self.topic_id is not None
        request = session.fetch(
            self.topic_id, self.partitions, outcomes, records_max=self._grant.records_max, wait_ms=self._grant.wait_ms
        )
        return _Exchange(request, outcomes, True)

    def _apply_head(self, answer: Any, exchange: _Exchange) -> bool:
        """Apply what an answer says about the session."""
        code = answer.error_code
        if not code:
            if exchange.closes:
                self._session.restart()
            else:
                self._session.went_on()
            return True
        text = share_session.error_name(code, answer.error_message)
        self._refuse(exchange.outcomes, text)
        self._end_session(text)
        share_session.raise_fatal(code, answer.error_message, f"reading {self._owner.topic}")
        if code in share_session.MOVED:
            self._network.refresh()
        log.info("a share session begins again", extra={"broker": self.node, "reason": text})
        return False

    def _read(self, answer: Any, outcomes: Outcomes, asked_s: float) -> tuple[bool, list[Lease]]:
        """Read the partitions of a fetch."""
        leases: list[Lease] = []
        is_well, has_gaps = True, False
        for part in (part for topic in answer.responses for part in topic.partitions):
            partition = part.partition_index
            if part.acknowledge_error_code:
                text = share_session.error_name(part.acknowledge_error_code, part.acknowledge_error_message)
                self._refuse({partition: outcomes.get(partition, {})}, text)
            if part.error_code:
                is_well = False
                self._leave_partition(partition, part.error_code, part.error_message)
                continue
            ranges = [
                AcquiredRange(one.first_offset, one.last_offset, one.delivery_count) for one in part.acquired_records
            ]
            acquired = read_acquired(part.records, ranges)
            leases += [Lease(partition, record, deliveries, asked_s) for record, deliveries in acquired.records]
            for first, last, why in acquired.unreadable:
                where = f"{self._owner.topic} partition {partition}, offsets {first} to {last}"
                log.error("%s: rejected, as Kafka's own consumers do: %s", where, why)
            if acquired.gaps or acquired.unseen or acquired.unreadable:
                has_gaps = True
                unreadable = [(first, last) for first, last, _ in acquired.unreadable]
                with self._owner.lock:
                    self._owner.book.decide_runs(self.node, partition, unreadable, _REJECT)
                    self._owner.book.decide_runs(self.node, partition, acquired.gaps, GAP)
                    self._owner.book.decide_runs(self.node, partition, acquired.unseen, _RELEASE)
        if has_gaps:
            # Nobody else decides about them, and unless they are, the partition stands still until their lease ends.
            with self._owner.lock:
                self.send_within(SEND_WITHIN_S if leases else 0.0)
        return is_well, leases

    def _read_refusals(self, answer: Any, outcomes: Outcomes) -> bool:
        is_well = True
        for part in (part for topic in answer.responses for part in topic.partitions):
            if part.error_code:
                text = share_session.error_name(part.error_code, part.error_message)
                self._refuse({part.partition_index: outcomes.get(part.partition_index, {})}, text)
                if part.error_code in share_session.MOVED:
                    is_well = False
                    self._leave_partition(part.partition_index, part.error_code, part.error_message)
        return is_well

    def _leave_partition(self, partition: int, code: int, message: str | None) -> None:
        share_session.raise_fatal(code, message, f"reading {self._owner.topic}, partition {partition}")
        if code in share_session.MOVED:
            with self._owner.lock:
                self._owner.book.end_session(self.node, share_session.error_name(code, message), partition)
            self._network.refresh()

    def _refuse(self, outcomes: Outcomes, reason: str) -> None:
        with self._owner.lock:
            for partition, its_outcomes in outcomes.items():
                self._owner.book.refused(partition, its_outcomes, reason)

    def _end_session(self, reason: str) -> None:
        self._session.restart()
        self._connection = None
        with self._owner.lock:
            self._owner.book.end_session(self.node, reason)

    async def _pause(self) -> None:
        """Wait a little longer each time."""
        pause_s = min(_PAUSE_MAX_S, _PAUSE_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        await self._network.sleep(pause_s)
