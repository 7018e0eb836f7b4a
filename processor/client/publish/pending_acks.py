"""The commands that wait for acks, and the rules by which an ack settles them. No Kafka in here.

Acks of one partition arrive in the order of its commands. Each command gets an ack of each type, except the successful
`persisted` ack: one of sequence 7 settles every command of that client on that partition up to 7, as failures and
duplicates among them were reported before. It does not cover a command that was sent later under a lower sequence, such
as the mended one of a failure, nor one that never reached Kafka: it counts only once Kafka has acknowledged the
delivery.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Final, Literal, NamedTuple, TypeAlias

from processor.client.publish.outbox import OnAck
from processor.errors import AcksMissing, PublishRejected, SowstreamError, VersionConflict
from processor.kafka.own_process import AckFuture
from processor.wire.ack import CONFLICT, Ack, AckType

log = logging.getLogger(__name__)

_Outcome: TypeAlias = Literal["ignored", "reported", "settled"]

_LANES_MAX: Final = 10_000
"""Lanes without a pending command whose highest sequence is remembered."""
_SLICE_S: Final = 0.1  # Longest wait in one call, so that Ctrl-C is noticed.


class Lane(NamedTuple):
    """The commands of one client on one partition: their sequences grow."""

    topic: str
    """The SOW topic."""
    partition: int
    """The partition number."""
    client: str
    """The publisher's name as in header `client`."""


class PendingCommand:
    """One command that waits for acks: it asks for at least one type, and the last ack settles its future."""

    __slots__ = (
        "awaited",
        "command_id",
        "covering_ack",
        "future",
        "is_delivered",
        "is_late",
        "is_settled",
        "on_ack",
        "order",
        "records_deleted",
        "sequence",
        "sow_key",
        "version",
    )

    def __init__(
        self,
        types: tuple[AckType, ...],
        sequence: int,
        *,
        sow_key: str | None = None,
        command_id: str | None = None,
        on_ack: OnAck | None = None,
    ) -> None:
        self.awaited = types
        self.sequence = sequence
        self.sow_key = sow_key
        self.command_id = command_id
        self.on_ack = on_ack
        self.order = 0
        """Its place among the commands of the client."""
        self.is_late = False
        """True if a higher sequence was sent before it."""
        self.is_delivered = False
        self.records_deleted: int | None = None
        """The number in its `stats` ack."""
        self.version: int | None = None
        """The version in its `processed` ack."""
        self.covering_ack: Ack | None = None
        """A success that covers this command too, once it is delivered."""
        self.is_settled = False
        self.future: Future[Ack] = AckFuture()
        # A record that was sent cannot be cancelled.
        self.future.set_running_or_notify_cancel()


class PendingAcks:
    """All commands of a client that wait for acks. Any thread; callbacks run on the thread that delivers the ack."""

    def __init__(self, *, commands_max: int, stall_s: float) -> None:
        """Start without commands.

        Args:
            commands_max: the limit of pending commands.
            stall_s: time without any ack after which a waiting caller gets AcksMissing.
        """
        self._commands_max = commands_max
        self._stall_s = stall_s
        self._lanes: dict[Lane, dict[int, list[PendingCommand]]] = {}
        self._highest: dict[Lane, int] = {}
        self._clients: Counter[bytes] = Counter()  # The number of lanes of each name.
        self._orders = itertools.count(1)
        self._count = 0
        self._moved_s = 0.0
        # The topics whose acks were read at any time: None, or the error since which they are not.
        self._failures: dict[str, SowstreamError | None] = {}
        self._closed: SowstreamError | None = None
        # Its lock guards all of the above; no callback runs under it.
        self._changed = threading.Condition(threading.Lock())

    @property
    def count(self) -> int:
        """Number of commands that are not settled yet."""
        return self._count

    def waits_for(self, client: bytes | None) -> bool:
        """Return whether a command of this name waits for acks."""
        return client in self._clients

    def has_begun(self, topic: str) -> bool:
        """Return whether the acks of a topic were ever read."""
        return topic in self._failures

    def is_read(self, topic: str) -> bool:
        """Return whether the acks of a topic are read now."""
        return self.has_begun(topic) and self._failures[topic] is None

    def begin(self, topic: str) -> None:
        """Note that the acks of a topic are read from now on, for the first time or again."""
        with self._changed:
            self._failures[topic] = None

    def add(self, lane: Lane, pending: PendingCommand) -> None:
        """Register a command that is about to be sent.

        Raises:
            SowstreamError: the acks of its topic are not read any more.
        """
        with self._changed:
            if (error := self._closed or self._failures.get(lane.topic)) is not None:
                raise error
            highest = self._highest.get(lane, -1)
            pending.order, pending.is_late = next(self._orders), pending.sequence < highest
            self._highest.pop(lane, None)
            self._highest[lane] = max(pending.sequence, highest)
            if len(self._highest) > _LANES_MAX and (oldest := next(iter(self._highest))) not in self._lanes:
                del self._highest[oldest]  # A name that was used once, long ago.
            if lane not in self._lanes:
                self._clients[lane.client.encode()] += 1
            self._lanes.setdefault(lane, {}).setdefault(pending.sequence, []).append(pending)
            self._count += 1

    def delivered(self, lane: Lane, pending: PendingCommand) -> None:
        """Mark a command as delivered to Kafka."""
        with self._changed:
            pending.is_delivered = True
            ack = pending.covering_ack
            outcomes = [] if ack is None else [(pending, self._record(lane, pending, ack))]
        if ack is not None:
            self._report(outcomes, ack)

    def withdraw(self, lane: Lane, pending: PendingCommand, error: SowstreamError | None = None) -> None:
        """Remove a command that was not sent, or, with an error, that Kafka did not take."""
        with self._changed:
            if not self._drop(lane, pending) or pending.is_settled:
                return
            pending.is_settled = True
        if error is not None:
            pending.future.set_exception(error)
        self._settled(1)

    def apply_ack(self, partition: int, ack: Ack) -> None:
        """Apply an ack that arrived on a partition; one without a pending command is ignored."""
        lane = Lane(ack.topic, partition, ack.client or "")
        with self._changed:
            outcomes = [(pending, self._record(lane, pending, ack)) for pending in self._covered(lane, ack)]
        self._report(outcomes, ack)

    def fail(self, topic: str, error: SowstreamError) -> None:
        """Fail the pending commands of a topic, and those that are added before its acks are read again."""
        with self._changed:
            self._failures[topic] = error
            pendings = self._removed(lane for lane in self._lanes if lane.topic == topic)
        self._set_errors(pendings, error)

    def close(self, error: SowstreamError) -> None:
        """Fail all pending commands, and all that are added later."""
        with self._changed:
            self._closed = error
            pendings = self._removed(self._lanes)
        self._set_errors(pendings, error)

    def _removed(self, lanes: Iterable[Lane]) -> list[PendingCommand]:
        """Remove lanes; returns their commands without an outcome, as settled ones."""
        pendings = []
        for lane in list(lanes):
            pendings += [pending for pending in _all(self._lanes[lane]) if not pending.is_settled]
            self._remove(lane)
        for pending in pendings:
            pending.is_settled = True
        return pendings

    def _set_errors(self, pendings: list[PendingCommand], error: SowstreamError) -> None:
        """Complete the futures of commands that were removed."""
        for pending in pendings:
            pending.future.set_exception(error)
        self._settled(len(pendings))

    def wait_for_room(self, *, may_wait: bool = True) -> None:
        """Wait until one more command may be pending.

        Raises:
            AcksMissing: no ack arrived for too long, or there is no room and `may_wait` is False.
        """
        if self._count >= self._commands_max:
            self._wait(self._commands_max - 1, None, may_wait=may_wait)

    def wait(self, timeout_s: float | None, *, may_wait: bool = True) -> None:
        """Wait until every command is settled.

        Args:
            timeout_s: the longest wait; None: as long as acks arrive.
            may_wait: False on the thread that reads the acks: it cannot wait for itself.

        Raises:
            AcksMissing: acks are missing at the end of the wait.
        """
        if self._count:
            self._wait(0, timeout_s, may_wait=may_wait)

    def _wait(self, count_max: int, timeout_s: float | None, *, may_wait: bool) -> None:
        began_s = time.monotonic()
        with self._changed:
            while self._count > count_max:
                if not may_wait:
                    raise AcksMissing(
                        f"{self._count} acks are pending, and this is the thread that takes them: a callback can "
                        "neither flush nor publish beyond the limit"
                    )
                now_s = time.monotonic()
                limit_s = self._stall_s if timeout_s is None else timeout_s
                since_s = max(began_s, self._moved_s) if timeout_s is None else began_s
                if now_s - since_s >= limit_s:
                    raise AcksMissing(self._missing(timeout_s))
                self._changed.wait(min(_SLICE_S, since_s + limit_s - now_s))

    def _missing(self, timeout_s: float | None) -> str:
        state = f"missing, none came for {self._stall_s:g} s" if timeout_s is None else "missing, and the time is over"
        lanes = sorted(self._lanes)
        topics = " ".join(dict.fromkeys(lane.topic for lane in lanes))
        return (
            f"acks are {state}: {self._count}. Does a worker run? `sowstream worker {topics}` starts one. What was "
            "published is in Kafka and will be merged: wait on, or leave it at that"
        )

    def _covered(self, lane: Lane, ack: Ack) -> list[PendingCommand]:
        """The commands that an ack covers."""
        commands = self._lanes.get(lane, {})
        if ack.sequence is None:
            candidates = [
                one for one in _all(commands) if ack.command_id is not None and one.command_id == ack.command_id
            ]
        elif ack.ack_type == "persisted" and ack.status == "success" and ack.reason is None:
            # All of them: sequences that the caller chose himself may come in any order.
            upto = ack.sequence
            waiting = [one for at, same in commands.items() if at <= upto for one in same if "persisted" in one.awaited]
            until = min((one.order for one in waiting if one.sequence == upto), default=None)
            covered = [one for one in waiting if (not one.is_late if until is None else one.order <= until)]
            for one in covered:
                one.covering_ack = ack
            return [one for one in covered if one.is_delivered]
        else:
            candidates = commands.get(ack.sequence, [])
        return [one for one in candidates if ack.ack_type in one.awaited][:1]

    def _record(self, lane: Lane, pending: PendingCommand, ack: Ack) -> _Outcome:
        """Record that a command got an ack; returns the outcome for the command."""
        pending.awaited = tuple(one for one in pending.awaited if one != ack.ack_type)
        if ack.records_deleted is not None:
            pending.records_deleted = ack.records_deleted
        if ack.version is not None:
            pending.version = ack.version
        is_last = not pending.awaited
        if is_last:
            self._drop(lane, pending)
        if pending.is_settled:
            # It failed before. A success covers all commands up to a sequence, but not this one.
            return "ignored" if ack.status == "success" else "reported"
        pending.is_settled = is_last or ack.status == "failure"
        return "settled" if pending.is_settled else "reported"

    def _drop(self, lane: Lane, pending: PendingCommand) -> bool:
        """Remove a command; False if it was not there."""
        commands = self._lanes.get(lane, {})
        same = commands.get(pending.sequence, [])
        if pending not in same:
            return False
        same.remove(pending)
        if not same:
            del commands[pending.sequence]
        if not commands:
            self._remove(lane)
        return True

    def _remove(self, lane: Lane) -> None:
        """Remove a lane."""
        del self._lanes[lane]
        name = lane.client.encode()
        self._clients[name] -= 1
        if not self._clients[name]:
            del self._clients[name]

    def _report(self, outcomes: list[tuple[PendingCommand, _Outcome]], ack: Ack) -> None:
        for pending, outcome in outcomes:
            if outcome != "ignored":
                _report(pending, ack, settles=outcome == "settled")
        self._settled(sum(outcome == "settled" for _, outcome in outcomes))

    def _settled(self, count: int) -> None:
        """Count settled commands; after their callbacks, so that a caller who waits finds the futures done."""
        if count:
            with self._changed:
                self._count -= count
                self._moved_s = time.monotonic()
                self._changed.notify_all()


def _all(commands: dict[int, list[PendingCommand]]) -> Iterator[PendingCommand]:
    return (pending for same in commands.values() for pending in same)


def _report(pending: PendingCommand, ack: Ack, *, settles: bool) -> None:
    """Pass an ack to the callback and the future of a command, with that command's own sequence and id."""
    own = ack._replace(
        sow_key=pending.sow_key or ack.sow_key,
        sequence=pending.sequence,
        command_id=pending.command_id,
        records_deleted=pending.records_deleted,
        version=pending.version,
    )
    if pending.on_ack is not None:
        try:
            pending.on_ack(own)
        except Exception:
            log.exception("on_ack raised for %s of %s, sequence %d", ack.ack_type, ack.topic, pending.sequence)
    if settles and own.status == "success":
        pending.future.set_result(own)
    elif settles:
        reason, _, detail = (own.reason or "").partition(": ")
        is_conflict = reason == CONFLICT
        pending.future.set_exception(
            VersionConflict(detail, own.version) if is_conflict else PublishRejected(reason, detail)
        )
