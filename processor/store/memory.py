"""A store in a dict, for the test driver and for states that may be restored at every start."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from processor.store.contract import Progress
from processor.store.layout import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from processor.record import Stored
    from processor.store.contract import Expiring


class MemoryStore:
    """Implements `Store` in memory."""

    def __init__(self) -> None:
        self._records: dict[bytes, Stored] = {}
        self._expiring: list[Expiring] = []
        self._progress = Progress(0, 0)

    def progress(self) -> Progress:
        """Its progress in the SOW topic."""
        return self._progress

    def get_many(self, keys: Sequence[bytes]) -> list[Stored | None]:
        """The records of these keys, in their order."""
        return [self._records.get(key) for key in keys]

    def apply(self, changes: Mapping[bytes, Stored | None], progress: Progress | None) -> None:
        """Write records and their progress, if any."""
        for key, stored in changes.items():
            old = self._records.get(key)
            if old is not None and old.expires_at_ms > 0:
                del self._expiring[bisect_left(self._expiring, (old.expires_at_ms, key))]
            if stored is not None and stored.expires_at_ms > 0:
                insort(self._expiring, (stored.expires_at_ms, key))
            if stored is None:
                self._records.pop(key, None)
            else:
                self._records[key] = stored
        if progress is not None:
            self._progress = progress

    @property
    def can_load(self) -> bool:
        """True if no record in the store expires."""
        return not self._expiring

    def load(self, rows: Mapping[bytes, bytes | None], progress: Progress, *, is_many: bool) -> None:  # noqa: ARG002
        """Write encoded records, of which none expires."""
        self.apply({key: None if row is None else decode_record(row) for key, row in rows.items()}, progress)

    def scan(self, after: bytes | None = None) -> Iterator[tuple[bytes, Stored]]:
        """Every key and record, in key order; `after`: only the keys after this one."""
        return iter(sorted(item for item in self._records.items() if after is None or item[0] > after))

    def expiring(self, after: Expiring | None, rows_max: int) -> list[Expiring]:
        """The records that expire, in order of time and key."""
        begin = 0 if after is None else bisect_right(self._expiring, after)
        return self._expiring[begin : begin + rows_max]

    def usage(self) -> Mapping[str, int]:
        """Empty: sizes are not counted."""
        return {}

    def wipe(self) -> None:
        """Delete all records."""
        self._records.clear()
        self._expiring.clear()
        self._progress = Progress(0, 0)

    def close(self) -> None:
        """Do nothing; a store in memory is not durable."""
