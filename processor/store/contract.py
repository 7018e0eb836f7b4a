"""The contract of a store: committed records of one partition, and the SOW offset they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from processor.record import Stored

Expiring: TypeAlias = tuple[int, bytes]
"""When a record expires, milliseconds since the epoch, and its key."""


Found: TypeAlias = Literal["new", "clean", "unclean", "format", "identity"]
"""What a directory held when it was opened.

`new` nothing; `clean` a store that was closed in good order; `unclean` one that was not: it is what some earlier batch
left, and the SOW topic has the rest; `format` one of another version, `identity` one of another topic or partition,
which were wiped.
"""

WipeReason: TypeAlias = Literal["format", "identity", "damaged", "ahead", "too_old"]
"""Why a store is wiped: it is not ours to read, not ours, damaged, ahead of its SOW topic, or too old to have seen
all deletes."""


class Progress(NamedTuple):
    """How far a store has come."""

    position: int
    """The next SOW offset to apply; every record before it is in the store. 0 for an empty store."""
    applied_at_ms: int
    """A time, milliseconds since the epoch, before which no record after the position was made; 0 for an empty store.

    Deletes older than this are all in the store: one that is not may be gone from the SOW topic some day.
    """


class Store(Protocol):
    """Committed records only: it may lag behind the SOW topic and is never ahead of it.

    It may hold records newer than its position (they are committed); applying them again changes nothing.
    """

    def progress(self) -> Progress:
        """How far it has come."""

    def get_many(self, keys: Sequence[bytes]) -> list[Stored | None]:
        """The records of these keys, in their order, None where there is none.

        Raises:
            StateDamaged: what is there cannot be read.
        """

    def apply(self, changes: Mapping[bytes, Stored | None], progress: Progress | None) -> None:
        """Write records (None deletes) and the progress they stand for, which is never there without them.

        Args:
            changes: by key.
            progress: None: they are a part of what stands for one, which comes with the last part.

        Raises:
            StateDamaged: it cannot be written.
            DiskUnusable: the disk takes no more; what was applied before is as good as it was.
        """

    @property
    def can_load(self) -> bool:
        """Whether no record in it expires, so that `load` may be used."""

    def load(self, rows: Mapping[bytes, bytes | None], progress: Progress, *, is_many: bool) -> None:
        """Do as `apply` does with records that are encoded, of which none expires: the way for very many.

        Args:
            rows: keys and what `layout.encode_record` makes of their records; None deletes.
            progress: what they stand for.
            is_many: whether so many more are to come that the store should prepare for them.

        Raises:
            StateDamaged: it cannot be written.
        """

    def scan(self, after: bytes | None = None) -> Iterator[tuple[bytes, Stored]]:
        """Every key and record, in key order; `after`: only the keys behind this one."""

    def expiring(self, after: Expiring | None, rows_max: int) -> list[Expiring]:
        """The records that expire, in order of time and key: the first, or those after one already seen.

        Args:
            after: the last one seen; None to begin.
            rows_max: how many at most; fewer come only at the end.

        Raises:
            StateDamaged: what is there cannot be read.
        """

    def usage(self) -> Mapping[str, int]:
        """How many bytes it takes, by kind; nothing for a store that does not know."""

    def wipe(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Make what was applied durable and let go of it."""
