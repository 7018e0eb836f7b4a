"""A partition's marks: small values kept next to its records, and committed and restored like them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES_MAX: Final = 100_000
"""Most marks kept for each partition; beyond that the mark not changed for longest is dropped."""

POSITION_NAME: Final = b"\0sowstream/input"
"""The mark with the input position up to which the outputs are complete; a processor's own marks begin with no NUL."""

_TOMBSTONES_MAX: Final = 1_000
"""Most dropped marks that one transaction removes from the topic."""


class TransactionalMarks:
    """One partition's marks: the committed ones, those of the transaction being committed, and those changed since.

    All of them are in memory, so that a look-up is one dict access; the topic of role `mark` has the committed ones.
    """

    def __init__(self, *, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self._committed: dict[bytes, bytes] = {}  # In the order of their last change.
        self._prepared: dict[bytes, bytes] = {}
        self._staged: dict[bytes, bytes] = {}
        # Dropped here and still in the topic, which keeps the last value of each name for ever.
        self._left: dict[bytes, None] = {}
        self._removing: list[bytes] = []  # Tombstones of the transaction that is being committed.
        self.position = 0
        """The offset in the mark topic after the last committed mark."""
        self.forgotten = 0
        """Number of marks that were dropped to make room."""

    def get(self, name: bytes) -> bytes | None:
        """The newest value of a mark, committed or not; None if there is none."""
        value = self._staged.get(name)
        if value is None:
            value = self._prepared.get(name)
        return self._committed.get(name) if value is None else value

    def put(self, name: bytes, value: bytes) -> None:
        """Stage a mark."""
        self._staged[name] = value

    def note(self, name: bytes, value: bytes) -> None:
        """Apply a mark that was sent without a transaction."""
        self._take([(name, value)])

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
            self._take(prepared.items())

    def restore(self, changes: Iterable[tuple[bytes, bytes | None]], position: int) -> None:
        """Apply marks read back from their topic, in its order; no mark may be staged or prepared.

        Args:
            changes: names and values; None removes.
            position: the offset after them.
        """
        assert not self._staged
        assert not self._prepared
        self.position = position
        self._take(changes)

    def wipe(self) -> None:
        """Delete all marks."""
        self._committed, self._prepared, self._staged, self.position = {}, {}, {}, 0
        self._left, self._removing = {}, []

    def _next_tombstones(self) -> list[bytes]:
        """The dropped marks that the next transaction removes; those put again have a value to send."""
        if not self._left or not self._staged:
            return []
        return [name for name in islice(self._left, _TOMBSTONES_MAX) if name not in self._staged]

    def _take(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        committed = self._committed
        for name, value in changes:
            committed.pop(name, None)  # A changed mark becomes the newest.
            self._left.pop(name, None)
            if value is not None:
                committed[name] = value
        excess = len(committed) - self._names_max - (POSITION_NAME in committed)
        if excess <= 0:
            return
        if not self.forgotten:
            import structlog  # noqa: PLC0415 - rare, and costly to import in each Python process of Spark

            log = structlog.stdlib.get_logger("sowstream.marks")
            log.warning("too many marks; those not changed for longest are forgotten", names_max=self._names_max)
        self.forgotten += excess
        oldest = (name for name in committed if name != POSITION_NAME)
        for name in list(islice(oldest, excess)):
            del committed[name]
            self._left[name] = None
