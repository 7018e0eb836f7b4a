"""Frees a partition that Kafka has ceased to hand out after its leader was killed or moved.

Kafka leases at most `share.partition.max.record.locks` offsets of a partition from the oldest one that is not done. The
last batch may exceed this limit. When the leader reads this window back from its topic, the oldest offset stays where
it is until an offset behind the window is leased; with a window beyond the limit none is leased (seen with 4.3.1, by
`SharePartition` alone). So a limit of twice the size frees the partition, and the former one is set when it has moved.
Workers keep the batches of queue topics small enough for this: `BATCH_RECORDS_MAX` of `processor.queues.share_groups`.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from processor.errors import SowstreamError
from processor.queues.lease_backlog import LeaseSource
from processor.queues.share_groups import LOCKS, ShareGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from processor.queues.transport.leases import Lease, Verdict


log = logging.getLogger(__name__)

LOCKS_MAX: Final = 4_000
"""Brokers allow no more: `group.share.max.partition.max.record.locks`, as it is unless an operator sets it."""
FOLLOW_S: Final = 2.0
"""Time between two looks while the limit is raised."""


class Sight(NamedTuple):
    """A share group as its brokers show it."""

    locks: int
    """The limit in force; 0: this Kafka has none of a group."""
    waiting: Mapping[int, int]
    """By partition with records to hand out: the oldest offset that is not done."""


class GroupView(Protocol):
    """A share group's positions and its limit."""

    def look(self) -> Sight:
        """Ask the brokers."""

    def set_locks(self, locks: int) -> None:
        """Set the limit."""


class PartitionSource(LeaseSource, Protocol):
    """A source of leases that knows the partitions it reads."""

    @property
    def partitions(self) -> Collection[int]:
        """The partitions of this member now."""


class _Look(NamedTuple):
    """A look, and the times at which messages had come until then, by partition."""

    at_s: float
    came_s: Mapping[int, float]
    sight: Sight


class _Raise(NamedTuple):
    """A limit that we have raised."""

    locks_before: int
    starts: Mapping[int, int]
    """By stalled partition: its oldest offset."""
    at_s: float


def _in_background(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="sowstream-stall-guard", daemon=True).start()


class StallGuard:
    """A source of leases that looks after the share group while none come of a partition. One thread at a time."""

    def __init__(
        self,
        source: PartitionSource,
        group: GroupView,
        *,
        patience_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        run: Callable[[Callable[[], None]], object] = _in_background,
    ) -> None:
        """Wrap a source.

        Args:
            source: leases messages.
            group: the share group.
            patience_s: the time between two looks; longer than a lease, as the records that another consumer holds
                come back within one. The first look is after half of it.
            clock_s: a clock that does not jump, in seconds.
            run: runs a look, which may take seconds, beside the consumer.
        """
        self._source, self._group, self._patience_s, self._clock_s = source, group, patience_s, clock_s
        self._run = run
        self._came_s: dict[int, float] = {}
        self._look_s = clock_s()
        self._is_looking = self._is_closed = False
        self._last: _Look | None = None
        self._raise: _Raise | None = None
        self._told: str | None = None

    def poll(self, timeout_s: float, leases_max: int) -> list[Lease]:
        """Lease the next messages; begin a look if none came of a partition for long."""
        leases = self._source.poll(timeout_s, leases_max)
        now_s = self._clock_s()
        self._note(leases, now_s)
        if now_s >= self._look_s and not self._is_looking and (self._raise is not None or self._is_any_quiet(now_s)):
            self._is_looking, self._look_s = True, now_s + self._patience_s
            came_s = dict(self._came_s)
            self._run(lambda: self._look(now_s, came_s))
        return leases

    def settle(self, lease: Lease, verdict: Verdict) -> None:
        """Decide about a message."""
        self._source.settle(lease, verdict)

    def drop(self, lease: Lease) -> None:
        """Forget one whose lease has ended."""
        self._source.drop(lease)

    def close(self) -> None:
        """Leave, and set a limit that was raised to the former one, which no other consumer knows."""
        self._source.close()
        self._is_closed = True
        if not self._is_looking:
            self._restore()

    def _note(self, leases: list[Lease], now_s: float) -> None:
        partitions = self._source.partitions
        if self._came_s.keys() != set(partitions):
            self._came_s = {each: self._came_s.get(each, now_s) for each in partitions}
        for lease in leases:
            if lease.partition in self._came_s:
                self._came_s[lease.partition] = now_s

    def _is_any_quiet(self, now_s: float) -> bool:
        return any(now_s - came_s >= self._patience_s / 2 for came_s in self._came_s.values())

    def _look(self, now_s: float, came_s: Mapping[int, float]) -> None:
        """Ask the brokers, and raise or restore the limit; beside the consumer's thread."""
        try:
            look = _Look(now_s, came_s, self._group.look())
            if self._raise is not None:
                self._follow(self._raise, look)
            else:
                before, self._last = self._last, look
                if before is not None and (stalled := _stalled(before, look)):
                    self._free(look, look.sight.locks, stalled)
        except SowstreamError as error:
            log.info("the share group cannot be looked at: %s", error)
        finally:
            self._is_looking = False
            if self._is_closed:
                self._restore()  # It was closed meanwhile, and did not wait.

    def _restore(self) -> None:
        """Set the former limit without a further look, if it was raised."""
        raised, self._raise = self._raise, None
        if raised is None:
            return
        try:
            self._group.set_locks(raised.locks_before)
        except SowstreamError as error:
            log.warning("%s of the share group stays raised; sowstream topics apply sets it: %s", LOCKS, error)

    def _follow(self, raised: _Raise, look: _Look) -> None:
        """Set the former limit when the partitions have moved; raise the limit further if they do not."""
        stalled = {each: start for each, start in raised.starts.items() if look.sight.waiting.get(each) == start}
        self._look_s = look.at_s + FOLLOW_S
        if not stalled:
            self._group.set_locks(raised.locks_before)
            self._raise, self._last = None, None
            log.info("set %s of the share group to %d again: its partitions have moved", LOCKS, raised.locks_before)
        elif look.at_s - raised.at_s >= self._patience_s:
            self._free(look, raised.locks_before, stalled)

    def _free(self, look: _Look, locks_before: int, stalled: Mapping[int, int]) -> None:
        locks = look.sight.locks
        wanted = min(2 * locks, LOCKS_MAX)
        which = f"partitions {sorted(stalled)}, where messages wait"
        text = f"for {self._patience_s:.0f} s Kafka has handed out nothing of {which}"
        if wanted <= locks:
            self._tell(f"{text}; restart the brokers that lead them")
            return
        try:
            self._group.set_locks(wanted)
        except SowstreamError as error:
            self._tell(f"{text}; raise {LOCKS} of the share group above {locks}: {error}")
            return
        self._told = None
        self._raise, self._look_s = _Raise(locks_before, stalled, look.at_s), look.at_s + FOLLOW_S
        log.warning("%s; raised %s of the share group from %d to %d", text, LOCKS, locks, wanted)

    def _tell(self, text: str) -> None:
        """Log a stall once, while it stays as it is."""
        if text != self._told:
            self._told = text
            log.error("%s", text)


def _stalled(before: _Look, look: _Look) -> dict[int, int]:
    """Our partitions that wait at the same offset at two looks, without a message between them."""
    if before.sight.locks != look.sight.locks:
        return {}  # Another consumer has changed the limit since: this takes a moment to show.
    return {
        each: start
        for each, start in look.sight.waiting.items()
        if before.sight.waiting.get(each) == start and look.came_s.get(each, look.at_s) <= before.at_s
    }


class ShareGroupView:
    """One share group and its topic."""

    def __init__(self, kafka: Mapping[str, str], group: str, topic: str, partitions: Sequence[int]) -> None:
        """Ask nothing yet.

        Args:
            kafka: librdkafka properties.
            group: the share group.
            topic: the queue topic.
            partitions: its partitions.
        """
        self._kafka, self._group, self._topic, self._partitions = kafka, group, topic, partitions

    def look(self) -> Sight:
        """Ask the brokers.

        Raises:
            SowstreamError: no answer in time, or Kafka refuses.
        """
        from processor.queues.transport.share_offsets import share_positions  # noqa: PLC0415 - slow, and for few

        settings = ShareGroups(self._kafka).settings(self._group)
        positions = share_positions(self._kafka, self._group, self._topic, self._partitions)
        waiting = {number: each.start for number, each in positions.items() if each.lag > 0}
        return Sight(int(settings.get(LOCKS, 0)), waiting)

    def set_locks(self, locks: int) -> None:
        """Set the limit.

        Raises:
            SowstreamError: Kafka refuses.
        """
        ShareGroups(self._kafka).set(self._group, {LOCKS: str(locks)})
