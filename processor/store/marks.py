"""A partition's marks: small values kept next to its records, and committed and restored like them.

A publisher's mark is dropped when there are too many. Names that are used once (`processor.wire.publisher_mark`) have a
budget of their own, so that they never displace the mark of a regular publisher. So have names that a former version
may have made for one use: any of them may be a regular publisher's, so that none is dropped for its age. Marks of the
runtime, whose names begin with NUL, are never dropped.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from processor.wire.partition_marks import LIVES_NAME
from processor.wire.publisher_mark import is_one_shot, may_be_one_shot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAMES_MAX: Final = 100_000
"""Most regular marks kept for each partition; beyond that the one not changed for longest is dropped."""

ONE_SHOT_NAMES_MAX: Final = 200_000
"""Most marks of names for one occasion kept for each partition, besides the regular ones."""

ONE_SHOT_LIFE_MS: Final = 24 * 3_600_000
"""How long the mark of such a name is kept after its last change."""

BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of the names and values of the marks of each of the three kinds."""

MARK_FORGOTTEN: Final = "mark_forgotten"
"""The event of a regular mark that is dropped to make room."""

ONE_SHOT_FORGOTTEN: Final = "one_shot_forgotten"
"""The event of a mark of a name for one occasion that is dropped to make room, before its time is over."""

POSITION_NAME: Final = b"\0sowstream/input"
"""The mark with the input position up to which the outputs are complete; a processor's own marks begin with no NUL."""

FENCE_NAME: Final = b"\0sowstream/fence"
"""The mark with the fence of the pipeline while it is up, as in the control topic (`installation.control_topic`)."""

OWN_NAMES: Final = (POSITION_NAME, FENCE_NAME, LIVES_NAME)
"""The marks that are no processor's, and are never dropped."""

_TOMBSTONES_MAX: Final = 1_000
"""Most dropped marks that one transaction removes from the topic."""


class _Budget:
    """The marks of one kind, in the order of their last change, as many as there is room for."""

    def __init__(self, event: str, names_max: int, life_ms: int | None = None) -> None:
        self.event = event
        self.marks: dict[bytes, tuple[bytes, int]] = {}
        """The value of each mark, and the time of its last change, milliseconds since the epoch."""
        self._names_max, self._life_ms = names_max, life_ms
        self._bytes = 0

    def put(self, name: bytes, value: bytes, at_ms: int) -> None:
        self.marks[name] = value, at_ms
        self._bytes += len(name) + len(value)

    def remove(self, name: bytes) -> None:
        if (mark := self.marks.pop(name, None)) is not None:
            self._bytes -= len(name) + len(mark[0])

    def drop_old(self, now_ms: int) -> list[bytes]:
        """Remove the marks whose time is over; return their names."""
        if self._life_ms is None:
            return []
        over = []
        for name, (_, at_ms) in self.marks.items():
            if at_ms > now_ms - self._life_ms:
                break
            over.append(name)
        for name in over:
            self.remove(name)
        return over

    def drop_excess(self) -> list[bytes]:
        """Remove the marks for which there is no room; return their names."""
        excess = list(islice(self.marks, max(0, len(self.marks) - self._names_max)))
        for name in excess:
            self.remove(name)
        while self._bytes > BYTES_MAX:
            name = next(iter(self.marks))
            self.remove(name)
            excess.append(name)
        return excess


class TransactionalMarks:
    """One partition's marks: the committed ones, those of the transaction being committed, and those changed since.

    All of them are in memory, so that a look-up is a few dict accesses; the topic of role `mark` has the committed
    ones.
    """

    def __init__(
        self,
        *,
        names_max: int = NAMES_MAX,
        one_shot_names_max: int = ONE_SHOT_NAMES_MAX,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        """Begin without marks.

        Args:
            names_max: most regular marks.
            one_shot_names_max: most marks of names for one occasion; and as many that may be such names.
            clock_ms: the wall clock, milliseconds since the epoch; None: the system's.
        """
        self._clock_ms = clock_ms or _wall_clock_ms
        self._regular = _Budget(MARK_FORGOTTEN, names_max)
        self._one_shot = _Budget(ONE_SHOT_FORGOTTEN, one_shot_names_max, ONE_SHOT_LIFE_MS)
        self._unclear = _Budget(MARK_FORGOTTEN, one_shot_names_max)
        self._kinds = self._regular, self._one_shot, self._unclear
        self._ours: dict[bytes, bytes] = {}
        self._prepared: dict[bytes, bytes] = {}
        self._staged: dict[bytes, bytes] = {}
        # Dropped here and still in the topic, which keeps the last value of each name for ever.
        self._left: dict[bytes, None] = {}
        self._removing: list[bytes] = []  # Tombstones of the transaction that is being committed.
        self.position = 0
        """The offset in the mark topic after the last committed mark."""
        self.forgotten: Counter[str] = Counter()
        """Number of marks that were dropped to make room, by event; a restore does not count."""

    def get(self, name: bytes) -> bytes | None:
        """The newest value of a mark, committed or not; None if there is none."""
        value = self._staged.get(name)
        if value is None:
            value = self._prepared.get(name)
        if value is None:
            value = self._ours.get(name)
        if value is None:
            mark = next((mark for kind in self._kinds if (mark := kind.marks.get(name)) is not None), None)
            value = None if mark is None else mark[0]
        return value

    def put(self, name: bytes, value: bytes) -> None:
        """Stage a mark."""
        self._staged[name] = value

    def put_changed(self, name: bytes, value: bytes) -> None:
        """Stage a mark, unless it has this value."""
        if value != self.get(name):
            self._staged[name] = value

    def note(self, name: bytes, value: bytes) -> None:
        """Apply a mark that was sent without a transaction."""
        self._take([(name, value)], self._clock_ms())

    @property
    def has_staged(self) -> bool:
        """True if there is a mark to send."""
        return bool(self._staged)

    @property
    def staged(self) -> list[tuple[bytes, bytes | None]]:
        """The records to send with the transaction: the last value of each mark put, then tombstones of dropped ones.

        Tombstones alone never cause a transaction.
        """
        return [*self._staged.items(), *((name, None) for name in self._next_tombstones())]

    def prepare(self) -> None:
        """Close the set of marks that is committed next; later ones are not part of it."""
        assert not self._prepared
        self._removing = self._next_tombstones()
        for name in self._removing:
            del self._left[name]
        self._prepared, self._staged = self._staged, {}

    def rollback(self) -> None:
        """Drop the uncommitted marks."""
        self._left |= dict.fromkeys(self._removing)
        self._prepared, self._staged, self._removing = {}, {}, []

    def commit(self, position: int | None) -> None:
        """Mark the prepared marks as committed.

        Args:
            position: the offset after the last mark sent; None if none was.
        """
        if position is not None:
            self.position = position
        self._removing = []
        if self._prepared:
            prepared, self._prepared = self._prepared, {}
            self.forgotten.update(self._take(prepared.items(), self._clock_ms()))

    def restore(
        self, changes: Iterable[tuple[bytes, bytes | None]], position: int, at_ms: int | None = None
    ) -> Counter[str]:
        """Apply marks read back from their topic, in its order; no mark may be staged or prepared.

        Args:
            changes: names and values; None removes.
            position: the offset after them.
            at_ms: when they were written, milliseconds since the epoch; None: now.

        Returns:
            How many were dropped to make room, by event.
        """
        assert not self._staged
        assert not self._prepared
        self.position = position
        return self._take(changes, self._clock_ms() if at_ms is None else at_ms)

    def wipe(self) -> None:
        """Delete all marks."""
        for kind in self._kinds:
            for name in list(kind.marks):
                kind.remove(name)
        self._ours, self._prepared, self._staged, self.position = {}, {}, {}, 0
        self._left, self._removing = {}, []

    def _next_tombstones(self) -> list[bytes]:
        """The dropped marks that the next transaction removes; those put again have a value to send."""
        if not self._left or not self._staged:
            return []
        return [name for name in islice(self._left, _TOMBSTONES_MAX) if name not in self._staged]

    def _take(self, changes: Iterable[tuple[bytes, bytes | None]], at_ms: int) -> Counter[str]:
        """Apply committed marks; return how many were dropped to make room, by event."""
        dropped = Counter[str]()
        for name, value in changes:
            self._left.pop(name, None)
            if name.startswith(b"\0"):
                self._ours.pop(name, None)
                if value is not None:
                    self._ours[name] = value
                continue
            for kind in self._kinds:
                kind.remove(name)  # A changed mark becomes the newest.
            if value is not None:
                self._kind(name, value).put(name, value, at_ms)
        self._left.update(dict.fromkeys(self._one_shot.drop_old(at_ms)))
        for kind in self._kinds:
            if excess := kind.drop_excess():
                dropped[kind.event] += len(excess)
                self._left.update(dict.fromkeys(excess))
        return dropped

    def _kind(self, name: bytes, value: bytes) -> _Budget:
        if is_one_shot(name, value):
            return self._one_shot
        return self._unclear if may_be_one_shot(name) else self._regular


def _wall_clock_ms() -> int:
    return int(time.time() * 1000)
