"""The differences of a row, and the parsing of product records for the comparison."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NamedTuple

from processor.record import Record
from tests.programs.oracle.numbers import real
from tests.programs.oracle.values import Path, path_of


class Problem(NamedTuple):
    """A difference between the product and the model."""

    what: str
    """The kind of difference, such as `sow value` or `delta header removed`."""
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


def headers_of(record: Record) -> dict[str, str]:
    """The headers of a record as texts; of a name that occurs twice the last one counts."""
    return {name: (value or b"").decode() for name, value in record.headers or []}


def without_stamps(headers: dict[str, str]) -> dict[str, str]:
    """The headers of a SOW record without the stamps of its sequence groups: the oracle keeps all updates instead."""
    return {name: text for name, text in headers.items() if name != "group_stamps"}


def removed_of(headers: dict[str, str]) -> frozenset[Path]:
    """The paths in header `removed`."""
    return frozenset(map(path_of, json.loads(headers.get("removed", "[]"))))


def compared(place: str, wanted: dict[str, str], actual: dict[str, str]) -> list[Problem]:
    """The differences between headers, except those that are compared by their meaning."""
    names = (wanted.keys() | actual.keys()) - {"removed", "empty", "fields", "touched"}
    return [
        Problem(f"{place} header {name}", f"{actual.get(name)}, not {wanted.get(name)}; found {actual}")
        for name in sorted(names)
        if wanted.get(name) != actual.get(name)
    ]


def parsed(value: Any) -> Any:
    """A value that the product parsed from JSON, in the model's form: each number in the model's one kind for it."""
    if isinstance(value, dict):
        return {name: parsed(member) for name, member in value.items()}
    if isinstance(value, list):
        return [parsed(element) for element in value]
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else real(value)
    return value
