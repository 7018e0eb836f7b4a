"""A store in a dict: for the test driver, and for states that may be restored at every start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.state.store import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from processor.record import Stored


class MemoryStore:
    """Keeps the contract of `Store`; gone with the process."""

    def __init__(self) -> None:
        self._records: dict[bytes, Stored] = {}
        self._progress = Progress(0, 0)

    def progress(self) -> Progress:
        """How far it has come."""
        return self._progress

    def get_many(self, keys: Sequence[bytes]) -> list[Stored | None]:
        """The records of these keys, in their order."""
        return [self._records.get(key) for key in keys]

    def apply(self, changes: Mapping[bytes, Stored | None], progress: Progress) -> None:
        """Write records and the progress they stand for."""
        for key, stored in changes.items():
            if stored is None:
                self._records.pop(key, None)
            else:
                self._records[key] = stored
        self._progress = progress

    def scan(self) -> Iterator[tuple[bytes, Stored]]:
        """Every key and record, in key order."""
        return iter(sorted(self._records.items()))

    def wipe(self) -> None:
        """Forget everything."""
        self._records.clear()
        self._progress = Progress(0, 0)

    def close(self) -> None:
        """Nothing is kept."""
