"""Removes the local states of partitions that this process has no more: after a time, or at once where room is short.

A partition that comes back soon finds its state where it was. So a directory stays until another member of the group
has had its partition for `runtime.state_cleanup_delay_s`, as Kafka itself says: while Kafka is away, or partitions are
moving, nothing is old. A directory that is open, here or in another process, is locked and never removed.

Directories of topics that are not run here are left alone: another worker may use the same disk, or the topic may have
been left out of the settings by mistake.
"""

from __future__ import annotations

import shutil
import threading
import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import structlog

from processor.errors import SowstreamError
from processor.runtime.process.metrics import STATE_DIRECTORIES, STATE_REMOVED
from processor.store import partition_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from processor.kafka.readers.group_consumer import AssignmentListener

log = structlog.stdlib.get_logger("sowstream.state")

_LOOK_MAX_S: Final = 5.0  # Longest time between two looks.
_LOOKS_IN_A_DELAY: Final = 10
_RESERVE_SHARE: Final = 0.1  # Of the disk; less than this is short.
_RESERVE_MAX_BYTES: Final = 2 << 30

_Reason: TypeAlias = Literal["delay", "room"]

Owned: TypeAlias = "Callable[[], Collection[int] | None]"
"""Asks Kafka which partitions of a pipeline members of its group have; None: it is not settled, or not known."""


class Claims:
    """The partitions of a pipeline that this process has, in the order of the group's calls.

    It stands between the consumer and its listener: a partition is claimed before the listener is called, and given up
    when the listener has closed its state.
    """

    def __init__(self, listener: AssignmentListener) -> None:
        """Claim nothing yet; the calls are passed on to the listener."""
        self.partitions: frozenset[int] = frozenset()
        """Those that are ours now; replaced, never changed, as other threads read it."""
        self._listener = listener

    def on_assigned(self, partitions: list[int]) -> None:
        """These are ours."""
        self.partitions |= frozenset(partitions)
        self._listener.on_assigned(partitions)

    def on_revoked(self, partitions: list[int]) -> None:
        """These go to others."""
        try:
            self._listener.on_revoked(partitions)
        finally:
            self.partitions -= frozenset(partitions)

    def on_lost(self, partitions: list[int]) -> None:
        """These are others' already."""
        try:
            self._listener.on_lost(partitions)
        finally:
            self.partitions -= frozenset(partitions)


class Place(NamedTuple):
    """The states of one pipeline."""

    processor: str
    """The pipeline's name, for logs and metrics."""
    directory: Path
    """Has a directory for each partition."""
    kept: Callable[[], Collection[int]]
    """The partitions that are ours, or that we are to keep as standbys."""
    owned: Owned
    """Which partitions members of the group have."""


class _Former(NamedTuple):
    """A directory that we do not need now."""

    idle_s: float
    """For how long nobody has used it, as far as we know."""
    place: Place
    partition: int

    @property
    def directory(self) -> Path:
        return self.place.directory / str(self.partition)


class StateCleaner:
    """One for a process, with a thread of its own. All may be called from several threads."""

    def __init__(
        self,
        state_dir: Path,
        delay_s: float,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        clock_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Look at nothing yet.

        Args:
            state_dir: where the disk is.
            delay_s: how long a directory must have been of no use.
            is_stopping: whether the process has been told to end.
            clock_s: a clock that does not jump, in seconds.
            now_s: the wall clock, seconds since the epoch.
        """
        self._state_dir = state_dir
        self._delay_s = delay_s
        self._is_stopping = is_stopping
        self._clock_s = clock_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._places: dict[Path, Place] = {}
        self._needed_s: dict[Path, float] = {}  # When each directory was last of use to us, or was first seen.
        self._thread: threading.Thread | None = None

    def add(self, place: Place) -> None:
        """Look after the states of a pipeline, in place of what was said of it before."""
        with self._lock:
            self._places[place.directory] = place

    def start(self) -> None:
        """Begin to look now and then, if this was not begun before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="state-cleaner", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Remove what has been of no use for long enough, and more where room is short."""
        former = self._former()
        due = [one for one in former if one.idle_s >= self._delay_s]
        self._remove(due, "delay")
        if self._is_short():
            self._remove([one for one in former if one not in due], "room")

    def make_room(self) -> bool:
        """Remove the directory that has been of no use for longest, as the disk is full; False: there is none.

        Kafka is not asked: what is ours is known, and a directory that is missed costs a restore.
        """
        return any(self._discard(one, "room") for one in self._former())

    def _run(self) -> None:
        pause_s = min(_LOOK_MAX_S, self._delay_s / _LOOKS_IN_A_DELAY)
        while not self._is_stopping():
            try:
                self.look()
            except Exception:
                log.exception("looking for former states failed", state_dir=str(self._state_dir))
            time.sleep(pause_s)

    def _former(self) -> list[_Former]:
        """The directories that we do not need now, the longest unused first."""
        with self._lock:
            places = list(self._places.values())
        now_s, wall_s = self._clock_s(), self._now_s()
        former: list[_Former] = []
        for place in places:
            kept = frozenset(place.kept())
            counts = {"used": 0, "former": 0}
            for partition, used_s in _databases(place.directory):
                directory = place.directory / str(partition)
                if partition in kept:
                    self._needed_s[directory] = now_s
                    counts["used"] += 1
                    continue
                # The wall clock may jump, and another process on this disk may have used it since: the later counts.
                idle_s = min(now_s - self._needed_s.setdefault(directory, now_s), wall_s - used_s)
                former.append(_Former(idle_s, place, partition))
                counts["former"] += 1
            for kind, count in counts.items():
                STATE_DIRECTORIES.labels(place.processor, kind).set(count)
        return sorted(former, key=lambda one: -one.idle_s)

    def _remove(self, former: list[_Former], reason: _Reason) -> None:
        """Remove those whose partition another member of the group has; for room, no more than is needed."""
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
            self._needed_s[directory] = self._clock_s()  # One that is locked is in use: its time begins again.
        if is_removed:
            STATE_REMOVED.labels(one.place.processor, reason).inc()
            log.info("former state removed", directory=str(directory), why=reason, idle_s=round(one.idle_s, 1))
        return is_removed

    def _is_short(self) -> bool:
        usage = shutil.disk_usage(self._state_dir)
        return usage.free < min(usage.total * _RESERVE_SHARE, _RESERVE_MAX_BYTES)


def _databases(directory: Path) -> Iterator[tuple[int, float]]:
    """The partitions of which a pipeline's directory has a database, with the time of its last use."""
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        if path.name.isdecimal() and (used_s := partition_directory.last_used_s(path)) is not None:
            yield int(path.name), used_s
