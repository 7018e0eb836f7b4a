"""The interface of a store: the committed records of one partition, the SOW offset that they have, and their age."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from processor.record import Stored


Expiring: TypeAlias = tuple[int, bytes]
"""The time at which a record expires, milliseconds since the epoch, and its key."""

InitialContent: TypeAlias = Literal["new", "clean", "unclean", "format", "identity"]
"""The content of a directory when it was opened.

`new`: empty. `clean`: a store that was closed properly. `unclean`: a store that was not closed properly; it has the
records of some earlier batch, and the SOW topic has the rest. `format`: a store of another version; `identity`: one of
another topic or partition; both were wiped.
"""

WipeReason: TypeAlias = Literal["format", "identity", "damaged", "ahead", "too_old"]
"""The reason for wiping a store: another format, another identity, damage, a position ahead of its SOW topic, or an age
at which deletes may be missing.
"""


class Progress(NamedTuple):
    """The progress of a store in its SOW topic."""

    position: int
    """The next SOW offset to apply; every record before it is in the store. 0 for an empty store."""
    applied_at_ms: int
    """A time before all records after the position, milliseconds since the epoch; 0 for an empty store.

    The store has all deletes older than this; a later one may disappear from the SOW topic some day.
    """


class Store(Protocol):
    """The committed records of one partition. A store may lag behind the SOW topic and is never ahead of it.

    It may hold records newer than its position (they are committed); applying them again changes nothing.
    """

    def progress(self) -> Progress:
        """Its progress in the SOW topic."""

    def get_many(self, keys: Sequence[bytes]) -> list[Stored | None]:
        """The records of these keys, in the order of the keys; None for a key without a record.

        Raises:
            StateDamaged: the store cannot be read.
        """

    def apply(self, changes: Mapping[bytes, Stored | None], progress: Progress | None) -> None:
        """Write records (None deletes) and their progress, which is never written without them.

        Args:
            changes: by key.
            progress: None for all parts of a change but the last, which has the progress for all of them.

        Raises:
            StateDamaged: it cannot be written.
            DiskUnusable: the disk accepts no more; earlier writes are intact.
        """

    @property
    def can_load(self) -> bool:
        """True if no record in the store expires, so that `load` may be used."""

    def load(self, rows: Mapping[bytes, bytes | None], progress: Progress, *, is_many: bool) -> None:
        """Write encoded records, of which none expires, and their progress: a faster `apply` for very many records.

        Args:
            rows: keys and their records as encoded by `layout.encode_record`; None deletes.
            progress: the progress after them.
            is_many: whether so many more will follow that the store should prepare for them.

        Raises:
            StateDamaged: it cannot be written.
        """

    def scan(self, after: bytes | None = None) -> Iterator[tuple[bytes, Stored]]:
        """Every key and record, in key order; `after`: only the keys after this one."""

    def expiring(self, after: Expiring | None, rows_max: int) -> list[Expiring]:
        """The records that expire, in order of time and key: the first ones, or those after `after`.

        Args:
            after: the last one of the previous call; None to begin.
            rows_max: the most to return; fewer are returned only at the end.

        Raises:
            StateDamaged: the store cannot be read.
        """

    def usage(self) -> Mapping[str, int]:
        """The bytes that the store takes, by kind; empty for a store that does not count them."""

    def wipe(self) -> None:
        """Delete all records."""

    def close(self) -> None:
        """Make all writes durable and release the store."""


SKEW_MAX_MS: Final = 5 * 60 * 1000
"""How far ahead the clock of the writer may have been: its copy is as much older than it looks."""


def stale_reason(
    progress: Progress, end: int, horizon_ms: float, *, position: int | None = None
) -> tuple[WipeReason, str] | None:
    """The reason for wiping a copy, as a word and as a text; None if it can be used.

    Args:
        progress: the progress that is stored in the directory.
        end: the end of its partition of the topic.
        horizon_ms: how long tombstones stay in the topic.
        position: the position of the copy in memory, if that is further.
    """
    if max(progress.position, position or 0) > end:
        return "ahead", "it is ahead of the SOW topic, which must have been made anew"
    age_ms = time.time() * 1000 - progress.applied_at_ms
    if progress.position > 0 and age_ms > horizon_ms:
        return "too_old", "it is older than the topic's delete.retention.ms: deletes may be missing"
    if progress.position > 0 and age_ms < -SKEW_MAX_MS:
        return "too_old", "its last write lies in the future, so its age is not known: deletes may be missing"
    return None


def past_ms(timestamp_ms: int) -> int:
    """The time of a record, as the age of a copy is reckoned from it: now, for one from a clock that was ahead."""
    return min(timestamp_ms, int(time.time() * 1000))
