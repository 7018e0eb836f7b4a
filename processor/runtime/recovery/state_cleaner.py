"""Removes the local states of partitions that have left this process: after a delay, or at once if the disk is full.

A partition that returns soon finds its state in place. So a directory stays until another member of the group has owned
its partition for ten minutes, according to Kafka: while Kafka is away, or during a rebalance, no
directory is removed. A directory that is open, here or in another process, is locked and never removed.

Directories of topics that do not run here are left alone: another worker may use the same disk, or the topic may be
missing in the settings by mistake.
"""

from __future__ import annotations

import shutil
import threading
import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import structlog

from processor.errors import SowstreamError
from processor.runtime.metrics import STATE_DIRECTORIES, STATE_REMOVED
from processor.store import partition_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from processor.kafka.clients.group_consumer import AssignmentListener

log = structlog.stdlib.get_logger("sowstream.state")

_LOOK_MAX_S: Final = 5.0  # Longest time between two looks.
_LOOKS_IN_A_DELAY: Final = 10
_RESERVE_SHARE: Final = 0.1  # The free share of the disk below which space is short.
_RESERVE_MAX_BYTES: Final = 2 << 30

_Reason: TypeAlias = Literal["delay", "room"]

Owned: TypeAlias = "Callable[[], Collection[int] | None]"
"""Asks Kafka for the partitions that members of a pipeline's group own; None: unknown, or a rebalance is under way."""


class Claims:
    """The partitions of a pipeline that this process owns.

    It is called between the consumer and its listener: a partition is claimed before the listener is called, and given
    up after the listener has closed its state.
    """

    def __init__(self, listener: AssignmentListener) -> None:
        """Begin without partitions; the calls are passed on to the listener."""
        self.partitions: frozenset[int] = frozenset()
        """The claimed partitions; replaced, never changed, as other threads read the set."""
        self._listener = listener

    def on_assigned(self, partitions: list[int]) -> None:
        """Claim assigned partitions, then call the listener."""
        self.partitions |= frozenset(partitions)
        self._listener.on_assigned(partitions)

    def on_revoked(self, partitions: list[int]) -> None:
        """Call the listener, then give up revoked partitions."""
        try:
            self._listener.on_revoked(partitions)
        finally:
            self.partitions -= frozenset(partitions)

    def on_lost(self, partitions: list[int]) -> None:
        """Call the listener, then give up lost partitions."""
        try:
            self._listener.on_lost(partitions)
        finally:
            self.partitions -= frozenset(partitions)


class Place(NamedTuple):
    """The directory of one pipeline's states."""

    processor: str
    """The pipeline's name, for logs and metrics."""
    directory: Path
    """Contains a directory for each partition."""
    kept: Callable[[], Collection[int]]
    """The partitions that this process owns, or keeps as standbys."""
    owned: Owned
    """The partitions that members of the group own."""


class _Former(NamedTuple):
    """A directory that this process does not need now."""

    idle_s: float
    """Time since its last known use."""
    place: Place
    partition: int

    @property
    def directory(self) -> Path:
        return self.place.directory / str(self.partition)


class StateCleaner:
    """Removes former states, one per process. All methods are thread-safe."""

    def __init__(
        self,
        state_dir: Path,
        delay_s: float,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Create a cleaner without directories.

        Args:
            state_dir: a directory on the disk whose free space counts.
            delay_s: how long a directory must be unused before it is removed.
            clock_s: a clock that does not jump, in seconds.
            now_s: the wall clock, seconds since the epoch.
        """
        self._state_dir = state_dir
        self._delay_s = delay_s
        self._clock_s = clock_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._places: dict[Path, Place] = {}
        self._needed_s: dict[Path, float] = {}  # When each directory was last needed, or first seen.

    def add(self, place: Place) -> None:
        """Add a pipeline's directory, or replace its entry."""
        with self._lock:
            self._places[place.directory] = place

    def run(self) -> float:
        """`look`; returns the seconds until the next one."""
        self.look()
        return min(_LOOK_MAX_S, self._delay_s / _LOOKS_IN_A_DELAY)

    def look(self) -> None:
        """Remove the directories whose delay is over, and more if space is short."""
        former = self._former()
        due = [one for one in former if one.idle_s >= self._delay_s]
        self._remove(due, "delay")
        if self._is_short():
            self._remove([one for one in former if one not in due], "room")

    def make_room(self) -> bool:
        """Remove the longest unused directory, as the disk is full; False: there is none.

        Kafka is not asked: owned partitions are known, and a directory removed too early costs only a restore.
        """
        return any(self._discard(one, "room") for one in self._former())

    def _former(self) -> list[_Former]:
        """List the directories that this process does not need now, the longest unused first."""
        with self._lock:
            places = list(self._places.values())
        now_s, wall_s = self._clock_s(), self._now_s()
        former: list[_Former] = []
        for place in places:
            needed = frozenset(place.kept())
            counts = {"used": 0, "former": 0}
            for partition, used_s in _databases(place.directory):
                directory = place.directory / str(partition)
                if partition in needed:
                    self._needed_s[directory] = now_s
                    counts["used"] += 1
                    continue
                # The wall clock may jump, and another process may have used the directory since: the later use counts.
                idle_s = min(now_s - self._needed_s.setdefault(directory, now_s), wall_s - used_s)
                former.append(_Former(idle_s, place, partition))
                counts["former"] += 1
            for kind, count in counts.items():
                STATE_DIRECTORIES.labels(place.processor, kind).set(count)
        return sorted(former, key=lambda one: -one.idle_s)

    def _remove(self, former: list[_Former], reason: _Reason) -> None:
        """Remove directories whose partition a member of the group owns; for space, no more than needed."""
        owned: dict[Path, frozenset[int]] = {}
        for one in former:
            if reason == "room" and not self._is_short():
                return
            place = one.place
            if place.directory not in owned:
                owned[place.directory] = frozenset(place.owned() or ())
            if one.partition in owned[place.directory]:
                self._discard(one, reason)

    def _discard(self, one: _Former, reason: _Reason) -> bool:
        directory = one.directory
        with self._lock:
            if one.partition in one.place.kept():
                return False
            try:
                is_removed = partition_directory.discard(directory)
            except SowstreamError as error:
                log.warning("former state not removed", directory=str(directory), why=str(error))
                is_removed = False
            self._needed_s[directory] = self._clock_s()  # A locked directory is in use: its delay begins again.
        if is_removed:
            STATE_REMOVED.labels(one.place.processor, reason).inc()
            log.info("former state removed", directory=str(directory), why=reason, idle_s=round(one.idle_s, 1))
        return is_removed

    def _is_short(self) -> bool:
        usage = shutil.disk_usage(self._state_dir)
        return usage.free < min(usage.total * _RESERVE_SHARE, _RESERVE_MAX_BYTES)


def _databases(directory: Path) -> Iterator[tuple[int, float]]:
    """List the databases in a pipeline's directory: partition and time of the last use."""
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        if path.name.isdecimal() and (used_s := partition_directory.last_used_s(path)) is not None:
            yield int(path.name), used_s
