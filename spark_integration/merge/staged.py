"""Keeps the changes of one call to a processor apart until the call has succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.api import Marks, State
    from processor.record import Stored


class StagedState:
    """A state whose changes reach another state with `apply`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._staged: dict[bytes, Stored | None] = {}

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        """The states of these keys, staged ones included."""
        found = self._state.get_many(keys)
        return self._with_staged(found)

    def get_some(self, keys: Sequence[bytes], bytes_max: int) -> tuple[dict[bytes, Stored | None], int]:
        """The states of the first keys; see `State`."""
        found, count = self._state.get_some(keys, bytes_max)
        return self._with_staged(found), count

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Stage changes; None removes a key."""
        self._staged.update(changes)

    def due(self, until_ms: int, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The records that expire until a time; staged changes are not looked at."""
        return self._state.due(until_ms, keys_max)

    def scan(self, after: bytes | None, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The records behind a key; staged changes are not looked at."""
        return self._state.scan(after, keys_max)

    def apply(self) -> None:
        """Pass the staged changes on."""
        if self._staged:
            staged, self._staged = self._staged, {}
            self._state.put_many(staged)

    def drop(self) -> None:
        """Forget the staged changes."""
        self._staged = {}

    def _with_staged(self, found: dict[bytes, Stored | None]) -> dict[bytes, Stored | None]:
        if staged := self._staged:
            found.update({key: staged[key] for key in found if key in staged})
        return found


class StagedMarks:
    """Marks whose changes reach other marks with `apply`."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._staged: dict[bytes, bytes] = {}

    def get(self, name: bytes) -> bytes | None:
        """The value of a mark, a staged one included; None for a missing one."""
        value = self._staged.get(name)
        return self._marks.get(name) if value is None else value

    def put(self, name: bytes, value: bytes) -> None:
        """Stage a mark."""
        self._staged[name] = value

    def apply(self) -> None:
        """Pass the staged marks on."""
        staged, self._staged = self._staged, {}
        for name, value in staged.items():
            self._marks.put(name, value)

    def drop(self) -> None:
        """Forget the staged marks."""
        self._staged = {}
