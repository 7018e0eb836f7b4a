"""Select lists and the order of records (subscribe.md, "Options")."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.programs.oracle.filters import numeric
from tests.programs.oracle.numbers import instant_of
from tests.programs.oracle.values import MISSING, Path, is_object, value_at

Object = dict[str, Any]


@dataclass(frozen=True)
class Select:
    """A select list: the most specific rule decides, paths without a rule are included, key fields always are."""

    rules: dict[Path, bool]
    """Whether the value at a path is sent; the path () is the record."""
    key_paths: tuple[Path, ...]

    @property
    def text(self) -> str:
        """The list as a subscriber writes it."""
        return ",".join(
            f"{'+' if is_included else '-'}{''.join(f'/{name}' for name in path) or '/'}"
            for path, is_included in self.rules.items()
        )

    def project(self, record: Object) -> Object:
        """The parts of a record that a subscriber is sent."""
        projected = self._project(record, ())
        return {} if projected is MISSING else projected

    def _project(self, value: Any, path: Path) -> Any:
        is_included = self._is_included(path)
        if not is_object(value):
            return value if is_included else MISSING
        members = {name: self._project(member, (*path, name)) for name, member in value.items()}
        members = {name: member for name, member in members.items() if member is not MISSING}
        return members if members or is_included else MISSING

    def _is_included(self, path: Path) -> bool:
        """Return whether the most specific rule for a path includes it."""
        if any(path[: len(key_path)] == key_path for key_path in self.key_paths):
            return True
        covering = [prefix for prefix in self.rules if path[: len(prefix)] == prefix]
        return self.rules[max(covering, key=len)] if covering else True


def sort_place(value: Any) -> tuple[int, Any]:
    """The place of a value in an order: NULL, NaN, numbers by value, texts by characters."""
    while isinstance(value, list):
        value = value[0] if value else None
    if value is MISSING or value is None or value == "" or is_object(value):
        return 0, 0
    if not isinstance(value, str) and (instant := instant_of(value)) is not None:
        return 3, instant
    number = numeric(value)
    if number is None:
        return 3, value
    return (2, number) if isinstance(number, Decimal) else (1, 0)


def ordered(records: dict[bytes, Object], path: Path | None) -> list[bytes]:
    """The keys of records in the order of their values at a path; equal ones by SOW key. No path: by SOW key."""
    if path is None:
        return sorted(records)
    return sorted(records, key=lambda key: (sort_place(value_at(records[key], path)), key))
