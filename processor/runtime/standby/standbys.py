"""Keeps the states of partitions that others own up to date, for the day when they come to this worker.

A standby is the partition's store on this worker's disk, and a reader at the end of its part of the SOW topic. When the
partition is assigned, its restore begins with that store and finds next to nothing to do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import structlog

from processor.errors import BrokerUnavailable, PartitionHeld, PositionLost, SowstreamError, StateDamaged, StateLocked
from processor.kafka.message import by_partition
from processor.kafka.readers.log_reader import Position
from processor.runtime.process.metrics import StandbyMetrics
from processor.runtime.recovery.log_replay import SowLog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from processor.errors import Stop
    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.kafka.readers.log_reader import LogReader
    from processor.runtime.standby.group_watcher import Lookout
    from processor.store.layered_state import LayeredState

log = structlog.stdlib.get_logger("sowstream.standby")

_BATCH_RECORDS_MAX = 10_000  # While there is input, a fifth of it.
_TURN_S = 0.05  # Few records come between two turns that are closer; each batch costs a write.
_BUSY_SHARE = 4  # While there is input, so many times longer for it than for the standbys.
_ASK_TIMEOUT_S = 0.5
_PAUSE_S = 30.0  # Before another try where the directory is taken or damaged, or Kafka refuses.
_ROOM_S = 3.0  # For an owner beside us to open its directory; it tries many times a second.
_RETRY_S = 5.0  # Where Kafka has not answered: those who wait for records wait for our questions, too.
_CONFIRM_S = 600.0  # How old the word may be that nothing has come; the least horizon is hours.


@dataclass(slots=True, eq=False)
class _Standby:
    """One partition that somebody else owns."""

    log: SowLog
    state: LayeredState
    end: int
    """Where its part of the topic ended when it began."""
    current_s: float
    """When it last had everything, or began."""
    is_current: bool = False
    """Whether it had everything when last looked at."""
    has_been_current: bool = False
    """Whether it ever had."""


class Standbys:
    """The standbys of one pipeline on one worker. One thread only, which is the stream thread's."""

    def __init__(
        self,
        *,
        processor: str,
        sow: str,
        lookout: Lookout | None,
        admin: Admin,
        open_reader: Callable[[], LogReader],
        open_state: Callable[[int], LayeredState],
    ) -> None:
        """Make a keeper of standbys; it connects when it has one to keep.

        Args:
            processor: the pipeline's name, for the metrics.
            sow: the topic to read.
            lookout: says which partitions; None: there are to be no standbys.
            admin: tells where the topic ends, and how long deletes stay in it.
            open_reader: connects; the reader is owned by the standbys.
            open_state: opens the state of a partition.
        """
        self._sow = sow
        self._lookout = lookout
        self._admin = admin
        self._open_reader = open_reader
        self._open_state = open_state
        self._metrics = StandbyMetrics(processor)
        self._reader: LogReader | None = None
        self._kept: dict[int, _Standby] = {}
        self._paused: dict[int, float] = {}  # Partitions that cannot be kept now, and until when.
        self._beside: frozenset[tuple[int, str]] = frozenset()
        self._horizon_s: float | None = None
        self._next_s = 0.0
        self._confirm_s = 0.0

    @property
    def wanted(self) -> frozenset[int]:
        """The partitions that there are to be standbys for; may be read from any thread."""
        return frozenset() if self._lookout is None else self._lookout.wanted

    def turn(self, member: Callable[[], str], owned: Collection[int], *, is_idle: bool, is_restoring: bool) -> None:
        """Do a little of the work, or nothing if it is too early.

        Args:
            member: tells our own member id.
            owned: the partitions that are ours, ready or not.
            is_idle: whether there is no input.
            is_restoring: whether partitions of ours are not ready: they go first.
        """
        began_s = time.monotonic()
        if self._lookout is None or began_s < self._next_s:
            return
        was_full = False
        pause_s = _TURN_S
        try:
            self._lookout.look(member, began_s)
            self.make_room(self._lookout.beside)
            self.update(self._lookout.wanted, owned)
            was_full = not is_restoring and self.advance(_BATCH_RECORDS_MAX if is_idle else _BATCH_RECORDS_MAX // 5)
        except SowstreamError as error:
            # Nobody's records hang on it: what is wrong will stop whoever needs the partition, and say so.
            log.warning("standbys given up for a while", topic=self._sow, why=str(error))
            self.close()
            pause_s = _PAUSE_S
        now_s = time.monotonic()
        spent_s = (now_s - began_s) * (0 if is_idle else _BUSY_SHARE)
        self._next_s = now_s + (spent_s if was_full else max(pause_s, spent_s))

    def open_state(self, partition: int) -> LayeredState:
        """The state of a partition that is ours now: the standby's, or what is on disk.

        Raises:
            StateLocked: another process has it open.
            Stop: it cannot be opened.
        """
        state = self.take(partition)
        if state is not None:
            log.info("took over from standby", topic=self._sow, partition=partition, position=state.position)
            self._metrics.took_over("standby")
            return state
        state = self._open_state(partition)
        self._metrics.took_over("disk" if state.position > 0 else "restore")
        return state

    def make_room(self, beside: frozenset[tuple[int, str]]) -> None:
        """Let go, for a while, of what others at our address have been given since the last time.

        Its owner may have our disk, and waits for the directory; if it has, we find it locked afterwards.

        Args:
            beside: their partitions, each with its owner.
        """
        for partition, owner in beside - self._beside:
            self._paused[partition] = time.monotonic() + _ROOM_S
            if partition in self._kept:
                log.info("standby makes room", topic=self._sow, partition=partition, owner=owner)
                self._let_go(partition)
        self._beside = beside

    def update(self, wanted: Collection[int], owned: Collection[int]) -> None:
        """Let go of what is not wanted any more, and begin with one of those that are new.

        Those that are ours by now stay, and are asked for with `take`.
        """
        for partition in [partition for partition in self._kept if partition not in wanted and partition not in owned]:
            log.info("standby no more", topic=self._sow, partition=partition)
            self._let_go(partition)
        now_s = time.monotonic()
        for partition in sorted(wanted):
            is_new = partition not in self._kept and partition not in owned
            if is_new and now_s >= self._paused.get(partition, 0.0):
                self._begin(partition)
                return

    def advance(self, records_max: int = _BATCH_RECORDS_MAX) -> bool:
        """Take over what has come, up to a number of records; whether there may be more at once."""
        if self._reader is None or not self._kept:
            return False
        read = self._reader.read(records_max, 0.0)
        for (_, partition), trouble in self._reader.take_troubled().items():
            self._healing(partition, partial(_raise, trouble=trouble))
        for partition, messages in by_partition(read.messages).items():
            self._healing(partition, partial(_take, messages=messages))
        for _, partition, end in read.ends:
            self._healing(partition, partial(_reached, end=end))
        now_s = time.monotonic()
        if now_s > self._confirm_s:
            self._confirm_s = now_s + min(_CONFIRM_S, max(1.0, self._horizon() / 2))
            try:
                self._confirm()
            except BrokerUnavailable:
                self._confirm_s = now_s + _RETRY_S
        self._metrics.lags({partition: self._lag(partition) for partition in self._kept})
        return len(read.messages) == records_max

    def take(self, partition: int) -> LayeredState | None:
        """Hand a standby's open state to the partition's new owner, us; None if there is none."""
        standby = self._kept.pop(partition, None)
        if standby is None:
            return None
        assert self._reader is not None
        self._reader.remove(self._sow, partition)
        self._metrics.lags({partition: self._lag(partition) for partition in self._kept})
        return standby.state

    def close(self) -> None:
        """Close the states as they are, and the connection."""
        for partition in list(self._kept):
            self._let_go(partition)
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _begin(self, partition: int) -> None:
        """Open the state and read on where it stands."""
        self._paused[partition] = time.monotonic() + _PAUSE_S  # Unless it comes to the end of this.
        try:
            state = self._open_state(partition)
        except StateLocked:
            # Its owner is a process beside us on the same disk: there is nothing to keep.
            return
        except BrokerUnavailable:
            self._paused[partition] = time.monotonic() + _RETRY_S
            return
        try:
            self._kept[partition] = self._followed(partition, state)
        except (TimeoutError, BrokerUnavailable):
            self._paused[partition] = time.monotonic() + _RETRY_S
            state.close(0)
            return
        except BaseException:
            state.close(0)
            raise
        del self._paused[partition]

    def _followed(self, partition: int, state: LayeredState) -> _Standby:
        """Begin to read what comes after a state."""
        sow_log = SowLog(self._sow, partition, state)
        if self._reader is None:
            self._reader = self._open_reader()
        oldest, _ = self._reader.bounds(self._sow, partition, _ASK_TIMEOUT_S)
        sow_log.target = self._admin.end_offsets(self._sow, [partition], _ASK_TIMEOUT_S)[partition]
        if (why := sow_log.distrust(self._horizon() * 1000)) is not None:
            log.warning("local state wiped", topic=self._sow, partition=partition, why=why)
        self._reader.add([Position(self._sow, partition, max(sow_log.position, oldest))])
        log.info("standby for", topic=self._sow, partition=partition, position=sow_log.position, end=sow_log.target)
        standby = _Standby(sow_log, state, sow_log.target, time.monotonic())
        # A store prepared for very many records is opened anew behind them, and the thread has its own to serve.
        sow_log.target = 0
        return standby

    def _healing(self, partition: int, step: Callable[[_Standby], None]) -> None:
        """Do a step with a standby; one that is damaged, or has missed deletes, is wiped and given up for a while."""
        standby = self._kept.get(partition)
        if standby is None:
            return
        try:
            if time.monotonic() - standby.current_s > self._horizon():
                raise StateDamaged("deletes may be missing: it is behind by more than the topic's delete.retention.ms")
            step(standby)
        except (PartitionHeld, PositionLost) as error:
            log.warning("standby given up for a while", topic=self._sow, partition=partition, why=str(error))
            self._paused[partition] = time.monotonic() + _PAUSE_S
            self._let_go(partition)
        except StateDamaged as error:
            log.error("standby wiped", topic=self._sow, partition=partition, why=str(error))
            self._paused[partition] = time.monotonic() + _PAUSE_S
            try:
                standby.state.heal(error)
            finally:
                self._let_go(partition)

    def _confirm(self) -> None:
        """Note that quiet partitions are still complete: a state that nobody has touched for long would be wiped."""
        quiet = [partition for partition, standby in self._kept.items() if standby.is_current]
        ends = self._admin.end_offsets(self._sow, quiet, _ASK_TIMEOUT_S) if quiet else {}
        for partition, end in ends.items():
            if self._kept[partition].log.position >= end:
                self._healing(partition, partial(_reached, end=end))

    def _horizon(self) -> float:
        """How long deletes stay in the topic, in seconds."""
        if self._horizon_s is None:
            self._horizon_s = self._admin.delete_retention_ms(self._sow, _ASK_TIMEOUT_S) / 1000
        return self._horizon_s

    def _lag(self, partition: int) -> int:
        standby = self._kept[partition]
        assert self._reader is not None
        if standby.is_current:
            return 0
        position = standby.log.position
        return max(self._reader.behind(self._sow, partition, position), standby.end - position)

    def _let_go(self, partition: int) -> None:
        """Close a state; what it has stays on disk."""
        standby = self._kept.pop(partition)
        assert self._reader is not None
        self._reader.remove(self._sow, partition)
        self._metrics.lags({partition: self._lag(partition) for partition in self._kept})
        try:
            standby.state.close(0)
        except SowstreamError as error:
            log.error("closing a standby failed", topic=self._sow, partition=partition, why=str(error))


def _take(standby: _Standby, messages: list[Message]) -> None:
    """More has come."""
    standby.is_current = False
    standby.log.take_messages(messages)


def _raise(_standby: _Standby, trouble: PartitionHeld | Stop) -> NoReturn:
    """Its log cannot be read on."""
    raise trouble


def _reached(standby: _Standby, end: int) -> None:
    """There is nothing more for now."""
    standby.is_current = standby.log.position <= end
    standby.log.finish(end)
    if standby.is_current:
        standby.current_s = time.monotonic()
        if not standby.has_been_current:
            standby.has_been_current = True
            log.info("standby is up to date", topic=standby.log.topic, partition=standby.log.partition, position=end)
