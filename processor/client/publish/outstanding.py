"""The commands whose acks have not come yet, and what each ack that comes settles. No Kafka in here.

Acks of one partition come in the order of its commands. All types are told of each command, save the success
`persisted`: one of sequence 7 settles every command of that client on that partition up to 7, and the failures and
duplicates among them have been told before. It says nothing of a command that never arrived, so it counts only once
Kafka has the command.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from processor.errors import AcksMissing, PublishRejected, SowstreamError
from processor.record import RejectReason
from processor.wire.ack import Ack, AckType

log = logging.getLogger(__name__)

OnAck: TypeAlias = Callable[[Ack], None]
"""Told every ack of one command."""

_News: TypeAlias = Literal["none", "told", "settled"]

_SLICE_S: Final = 0.1  # Longest wait in one call, so that Ctrl-C is heard.


class Lane(NamedTuple):
    """Where sequences grow: what one client sends to one partition."""

    topic: str
    """The SOW topic."""
    partition: int
    """The partition number."""
    client: str
    """The publisher's name as it stands in header `client`."""


class Pending:
    """One command that waits for acks."""

    __slots__ = (
        "awaited",
        "command_id",
        "future",
        "is_delivered",
        "is_settled",
        "on_ack",
        "records_deleted",
        "sequence",
        "sow_key",
        "surmised",
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
        """Begin to wait; at least one type is asked for, and the last that comes settles the future."""
        self.awaited = types
        self.sequence = sequence
        self.sow_key = sow_key
        self.command_id = command_id
        self.on_ack = on_ack
        self.is_delivered = False
        self.records_deleted: int | None = None
        """What its ack `stats` says."""
        self.surmised: Ack | None = None
        """A success that means this command too, if it has been delivered."""
        self.is_settled = False
        self.future: Future[Ack] = Future()
        # A record that was sent cannot be called back.
        self.future.set_running_or_notify_cancel()


class Outstanding:
    """All that a client waits for. Any thread may call; callbacks run on the thread that brings the news."""

    def __init__(self, *, commands_max: int, stall_s: float) -> None:
        """Nothing is outstanding.

        Args:
            commands_max: how many commands may be.
            stall_s: how long no ack may come before who waits is told that none comes.
        """
        self._commands_max = commands_max
        self._stall_s = stall_s
        self._lanes: dict[Lane, dict[int, list[Pending]]] = {}
        self._count = 0
        self._moved_s = 0.0
        self._failed: SowstreamError | None = None
        # Its lock guards all of the above; nobody else's code runs under it.
        self._changed = threading.Condition(threading.Lock())

    @property
    def count(self) -> int:
        """How many commands are not settled yet."""
        return self._count

    def add(self, lane: Lane, pending: Pending) -> None:
        """Wait for the acks of a command that is about to be sent.

        Raises:
            SowstreamError: acks cannot be read any more.
        """
        with self._changed:
            if self._failed is not None:
                raise self._failed
            self._lanes.setdefault(lane, {}).setdefault(pending.sequence, []).append(pending)
            self._count += 1

    def delivered(self, lane: Lane, pending: Pending) -> None:
        """Kafka has a command."""
        with self._changed:
            pending.is_delivered = True
            ack = pending.surmised
            heard = [] if ack is None else [(pending, self._note(lane, pending, ack))]
        if ack is not None:
            self._tell(heard, ack)

    def withdraw(self, lane: Lane, pending: Pending, error: SowstreamError | None = None) -> None:
        """Wait no more for a command that was not sent, or, with an error, that Kafka did not take."""
        with self._changed:
            if not self._drop(lane, pending) or pending.is_settled:
                return
            pending.is_settled = True
        if error is not None:
            pending.future.set_exception(error)
        self._settled(1)

    def hear(self, partition: int, ack: Ack) -> None:
        """Take an ack that came from a partition; one that nobody here waits for is passed over."""
        lane = Lane(ack.topic, partition, ack.client or "")
        with self._changed:
            heard = [(pending, self._note(lane, pending, ack)) for pending in self._meant(lane, ack)]
        self._tell(heard, ack)

    def fail(self, error: SowstreamError) -> None:
        """Give up: no ack can come any more, what is outstanding fails with this error, and so does what is added."""
        with self._changed:
            self._failed = error
            pendings = [pending for lane in self._lanes.values() for pending in _all(lane) if not pending.is_settled]
            self._lanes.clear()
            for pending in pendings:
                pending.is_settled = True
        for pending in pendings:
            pending.future.set_exception(error)
        self._settled(len(pendings))

    def wait_for_room(self, *, may_wait: bool = True) -> None:
        """Wait until one more command may be outstanding.

        Raises:
            AcksMissing: none of them was acknowledged for too long, or there is no room and no time.
        """
        if self._count >= self._commands_max:
            self._wait(self._commands_max - 1, None, may_wait=may_wait)

    def wait(self, timeout_s: float | None, *, may_wait: bool = True) -> None:
        """Wait until everything is settled.

        Args:
            timeout_s: how long; None: as long as acks come.
            may_wait: False on the thread that brings the acks: it cannot wait for itself.

        Raises:
            AcksMissing: not in time.
        """
        if self._count:
            self._wait(0, timeout_s, may_wait=may_wait)

    def _wait(self, count_max: int, timeout_s: float | None, *, may_wait: bool) -> None:
        began_s = time.monotonic()
        with self._changed:
            while self._count > count_max:
                if not may_wait:
                    raise AcksMissing(
                        f"{self._count} acks are outstanding, and this is the thread that takes them: a callback can "
                        "neither flush nor publish beyond the limit"
                    )
                now_s = time.monotonic()
                limit_s = self._stall_s if timeout_s is None else timeout_s
                since_s = max(began_s, self._moved_s) if timeout_s is None else began_s
                if now_s - since_s >= limit_s:
                    raise AcksMissing(self._missing(timeout_s))
                self._changed.wait(min(_SLICE_S, since_s + limit_s - now_s))

    def _missing(self, timeout_s: float | None) -> str:
        what = f"missing, none came for {self._stall_s:g} s" if timeout_s is None else "missing, and the time is over"
        lanes = sorted(self._lanes)
        topics = " ".join(dict.fromkeys(lane.topic for lane in lanes))
        return (
            f"acks are {what}: {self._count}. Does a worker run? `sowstream worker {topics}` starts one. What was "
            "published is in Kafka and will be merged: wait on, or leave it at that"
        )

    def _meant(self, lane: Lane, ack: Ack) -> list[Pending]:
        """The commands that an ack tells of."""
        commands = self._lanes.get(lane, {})
        if ack.sequence is None:
            asked = [one for one in _all(commands) if ack.command_id is not None and one.command_id == ack.command_id]
        elif ack.ack_type == "persisted" and ack.status == "success" and ack.reason is None:
            # All of them: sequences that the caller gave himself may come in any order.
            upto = ack.sequence
            meant = [one for at, same in commands.items() if at <= upto for one in same if "persisted" in one.awaited]
            for one in meant:
                one.surmised = ack
            return [one for one in meant if one.is_delivered]
        else:
            asked = commands.get(ack.sequence, [])
        return [one for one in asked if ack.ack_type in one.awaited][:1]

    def _note(self, lane: Lane, pending: Pending, ack: Ack) -> _News:
        """Remember that a command got an ack; what that means for it."""
        pending.awaited = tuple(one for one in pending.awaited if one != ack.ack_type)
        if ack.records_deleted is not None:
            pending.records_deleted = ack.records_deleted
        is_last = not pending.awaited
        if is_last:
            self._drop(lane, pending)
        if pending.is_settled:
            # It failed before. A success tells of commands up to a sequence, and did not mean this one.
            return "none" if ack.status == "success" else "told"
        pending.is_settled = is_last or ack.status == "failure"
        return "settled" if pending.is_settled else "told"

    def _drop(self, lane: Lane, pending: Pending) -> bool:
        """Take a command out; False if it was not there."""
        commands = self._lanes.get(lane, {})
        same = commands.get(pending.sequence, [])
        if pending not in same:
            return False
        same.remove(pending)
        if not same:
            del commands[pending.sequence]
        if not commands:
            del self._lanes[lane]
        return True

    def _tell(self, heard: list[tuple[Pending, _News]], ack: Ack) -> None:
        for pending, news in heard:
            if news != "none":
                _tell(pending, ack, settles=news == "settled")
        self._settled(sum(news == "settled" for _, news in heard))

    def _settled(self, count: int) -> None:
        """After the callbacks: who waits for a command finds its future done."""
        if count:
            with self._changed:
                self._count -= count
                self._moved_s = time.monotonic()
                self._changed.notify_all()


def _all(commands: dict[int, list[Pending]]) -> Iterator[Pending]:
    return (pending for same in commands.values() for pending in same)


def _tell(pending: Pending, ack: Ack, *, settles: bool) -> None:
    """Give an ack to whoever asked for it, as that command's own."""
    own = ack._replace(
        sow_key=pending.sow_key or ack.sow_key,
        sequence=pending.sequence,
        command_id=pending.command_id,
        records_deleted=pending.records_deleted,
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
        pending.future.set_exception(PublishRejected(cast("RejectReason", reason), detail))
