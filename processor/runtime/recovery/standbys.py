"""Keeps up to date the states of partitions that other workers own, in case they are assigned to this worker.

A standby is the partition's store on this worker's disk, and a reader at the end of the partition in the SOW topic.
When the partition is assigned, its restore begins with that store, which lacks next to nothing.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from processor.errors import BrokerUnavailable, PartitionHeld, PositionLost, SowstreamError, StateDamaged, StateLocked
from processor.kafka.clients.log_reader import Position
from processor.kafka.message import by_partition
from processor.runtime.metrics import StandbyMetrics
from processor.runtime.recovery.log_replay import SowReplay
from processor.store.contract import past_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from processor.kafka.admin.admin import Admin
    from processor.kafka.clients.log_reader import LogReader
    from processor.kafka.message import Message
    from processor.runtime.recovery.assignment_forecast import GroupWatcher
    from processor.store.layered_state import LayeredState

log = structlog.stdlib.get_logger("sowstream.standby")

_BATCH_RECORDS_MAX = 10_000  # While there is input, a fifth of it.
_TURN_S = 0.05  # Shorter turns would write small batches; each batch costs a write.
_BUSY_SHARE = 4  # While there is input, the time for it as a multiple of the time for standbys.
_ASK_TIMEOUT_S = 0.5
_PAUSE_S = 30.0  # Before another try if the directory is locked or damaged, or Kafka refuses.
_ROOM_S = 3.0  # For an owner on the same disk to open its directory; it tries many times a second.
_RETRY_S = 5.0  # If Kafka has not answered: the questions delay the thread's records, too.
_CONFIRM_S = 600.0  # Interval to confirm quiet partitions as complete; the least horizon is hours.


@dataclass(slots=True, eq=False)
class _Standby:
    """The standby of one partition, which another member owns."""

    log: SowReplay
    state: LayeredState
    end: int
    """The end of its partition in the topic when the standby began."""
    current_s: float
    """Time at which it was last known to be complete, or began, seconds since the epoch.

    The monotonic clock stands still while a machine is suspended.
    """
    is_current: bool = False
    """True if it was complete at the last check."""
    has_been_current: bool = False
    """True if it was ever complete."""

    def take(self, messages: Sequence[Message]) -> None:
        """Apply the next messages of the topic, which were all there are when the last of them was written."""
        self.is_current = False
        self.log.take_messages(messages)
        # While records come all the time, no end of the partition is reported.
        self.current_s = max(self.current_s, past_ms(messages[-1].timestamp()[1]) / 1000)

    def reach(self, end: int) -> None:
        """Note that all records before this offset were taken."""
        self.is_current = self.log.position <= end
        self.log.finish(end)
        if self.is_current:
            self.current_s = time.time()
            if not self.has_been_current:
                self.has_been_current = True
                log.info("standby is up to date", topic=self.log.topic, partition=self.log.partition, position=end)


class Standbys:
    """The standbys of one pipeline on one worker. Only the stream thread uses them."""

    def __init__(
        self,
        *,
        processor: str,
        sow: str,
        group_watcher: GroupWatcher | None,
        admin: Admin,
        open_reader: Callable[[], LogReader],
        open_state: Callable[[int], LayeredState],
    ) -> None:
        """Create the object without standbys; it connects for the first one.

        Args:
            processor: the pipeline's name, for the metrics.
            sow: the topic to read.
            group_watcher: determines the partitions; None: no standbys are kept.
            admin: asked for the ends of the topic, and for the retention time of its deletes.
            open_reader: opens a reader, which the standbys own.
            open_state: opens the state of a partition.
        """
        self._sow = sow
        self._group_watcher = group_watcher
        self._admin = admin
        self._open_reader = open_reader
        self._open_state = open_state
        self._metrics = StandbyMetrics(processor)
        self._reader: LogReader | None = None
        self._kept: dict[int, _Standby] = {}
        self._paused: dict[int, float] = {}  # Partitions that cannot be kept now, with the end of the pause.
        self._colocated: frozenset[tuple[int, str]] = frozenset()
        self._horizon_s: float | None = None
        self._next_s = 0.0
        self._confirm_s = 0.0

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions of which standbys are to be kept; may be read from any thread."""
        return frozenset() if self._group_watcher is None else self._group_watcher.partitions

    def turn(self, member: Callable[[], str], owned: Collection[int], *, is_idle: bool, is_restoring: bool) -> None:
        """Do a piece of the work, or nothing if it is too early.

        Args:
            member: returns the worker's member id.
            owned: the partitions that this worker owns, ready or not.
            is_idle: whether there is no input.
            is_restoring: whether owned partitions are being restored, which goes first.
        """
        began_s = time.monotonic()
        if self._group_watcher is None or began_s < self._next_s:
            return
        was_full = False
        pause_s = _TURN_S
        try:
            self._group_watcher.look(member, began_s)
            self.make_room(self._group_watcher.colocated)
            self.update(self._group_watcher.partitions, owned)
            was_full = not is_restoring and self.advance(_BATCH_RECORDS_MAX if is_idle else _BATCH_RECORDS_MAX // 5)
        except SowstreamError as error:
            # No records depend on standbys: the same error will stop the owner of the partition.
            log.warning("standbys given up for a while", topic=self._sow, why=str(error))
            self.close()
            pause_s = _PAUSE_S
        now_s = time.monotonic()
        spent_s = (now_s - began_s) * (0 if is_idle else _BUSY_SHARE)
        self._next_s = now_s + (spent_s if was_full else max(pause_s, spent_s))

    def open_state(self, partition: int) -> LayeredState:
        """Open the state of a partition that this worker owns now: the standby's, or the one on disk.

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

    def make_room(self, colocated: frozenset[tuple[int, str]]) -> None:
        """Release for a while the partitions that other members at this address have been assigned since the last call.

        Such an owner may use the same disk and wait for the directory, which is then found locked after the pause.

        Args:
            colocated: the partitions of members at this address, each with its owner.
        """
        for partition, owner in colocated - self._colocated:
            self._paused[partition] = time.monotonic() + _ROOM_S
            if partition in self._kept:
                log.info("standby makes room", topic=self._sow, partition=partition, owner=owner)
                self._release(partition)
        self._colocated = colocated

    def update(self, partitions: Collection[int], owned: Collection[int]) -> None:
        """Release the standbys that are no longer needed, and begin one that is new.

        Standbys of owned partitions stay until `take` hands them over.
        """
        for partition in self._kept.keys() - set(partitions) - set(owned):
            log.info("standby no more", topic=self._sow, partition=partition)
            self._release(partition)
        now_s = time.monotonic()
        for partition in sorted(partitions):
            is_new = partition not in self._kept and partition not in owned
            if is_new and now_s >= self._paused.get(partition, 0.0):
                self._begin(partition)
                return

    def advance(self, records_max: int = _BATCH_RECORDS_MAX) -> bool:
        """Apply the records that have arrived, up to a number; returns whether there may be more at once."""
        if self._reader is None or not self._kept:
            return False
        read = self._reader.read(records_max, 0.0)
        for (_, partition), trouble in self._reader.take_troubled().items():
            if (standby := self._kept.get(partition)) is not None:
                with self._repair(partition):
                    self._check_age(standby)
                    raise trouble
        for partition, messages in by_partition(read.messages).items():
            if (standby := self._kept.get(partition)) is not None:
                with self._repair(partition):
                    self._check_age(standby)
                    standby.take(messages)
        for _, partition, end in read.ends:
            self._reach(partition, end)
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
        """Hand over a standby's open state, as this worker owns the partition now; None if there is none."""
        standby = self._kept.pop(partition, None)
        if standby is None:
            return None
        assert self._reader is not None
        self._reader.remove(self._sow, partition)
        self._metrics.lags({partition: self._lag(partition) for partition in self._kept})
        return standby.state

    def close(self) -> None:
        """Close the states and the connection."""
        for partition in list(self._kept):
            self._release(partition)
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _begin(self, partition: int) -> None:
        """Open the state of a partition and read on from its position."""
        self._paused[partition] = time.monotonic() + _PAUSE_S  # Deleted below if the standby begins.
        try:
            state = self._open_state(partition)
        except StateLocked:
            # Its owner is a process on the same disk: no copy is needed.
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
        """Begin to read the records behind the position of a state."""
        sow_log = SowReplay(self._sow, partition, state)
        if self._reader is None:
            self._reader = self._open_reader()
        oldest, _ = self._reader.bounds(self._sow, partition, _ASK_TIMEOUT_S)
        sow_log.target = self._admin.end_offsets(self._sow, [partition], _ASK_TIMEOUT_S)[partition]
        if (why := sow_log.wipe_if_stale(self._horizon() * 1000)) is not None:
            log.warning("local state wiped", topic=self._sow, partition=partition, why=why)
        self._reader.add([Position(self._sow, partition, max(sow_log.position, oldest))])
        log.info("standby for", topic=self._sow, partition=partition, position=sow_log.position, end=sow_log.target)
        standby = _Standby(sow_log, state, sow_log.target, time.time())
        # Target 0 prevents a bulk load, after which the store would be reopened, blocking the thread.
        sow_log.target = 0
        return standby

    def _reach(self, partition: int, end: int) -> None:
        """Note that a standby, if it is still kept, has all records before an offset."""
        if (standby := self._kept.get(partition)) is not None:
            with self._repair(partition):
                self._check_age(standby)
                standby.reach(end)

    def _check_age(self, standby: _Standby) -> None:
        """Refuse a standby that may have missed deletes.

        Raises:
            StateDamaged: deletes may have been compacted before the standby has read them.
        """
        if abs(time.time() - standby.current_s) > self._horizon():
            raise StateDamaged("deletes may be missing: it is behind by more than the topic's delete.retention.ms")

    @contextlib.contextmanager
    def _repair(self, partition: int) -> Iterator[None]:
        """Surround a use of a standby: a damaged one is wiped, and paused as after other errors of its partition."""
        standby = self._kept[partition]
        try:
            yield
        except (PartitionHeld, PositionLost) as error:
            log.warning("standby given up for a while", topic=self._sow, partition=partition, why=str(error))
            self._paused[partition] = time.monotonic() + _PAUSE_S
            self._release(partition)
        except StateDamaged as error:
            log.error("standby wiped", topic=self._sow, partition=partition, why=str(error))
            self._paused[partition] = time.monotonic() + _PAUSE_S
            try:
                standby.state.heal(error)
            finally:
                self._release(partition)

    def _confirm(self) -> None:
        """Confirm that quiet partitions are still complete: a state that was not updated for long would be wiped."""
        quiet = [partition for partition, standby in self._kept.items() if standby.is_current]
        ends = self._admin.end_offsets(self._sow, quiet, _ASK_TIMEOUT_S) if quiet else {}
        for partition, end in ends.items():
            if self._kept[partition].log.position >= end:
                self._reach(partition, end)

    def _horizon(self) -> float:
        """Retention time of deletes in the topic, in seconds."""
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

    def _release(self, partition: int) -> None:
        """Close the state of a standby, which stays on disk."""
        standby = self._kept.pop(partition)
        assert self._reader is not None
        self._reader.remove(self._sow, partition)
        self._metrics.lags({partition: self._lag(partition) for partition in self._kept})
        try:
            standby.state.close(0)
        except SowstreamError as error:
            log.error("closing a standby failed", topic=self._sow, partition=partition, why=str(error))
