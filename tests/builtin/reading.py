"""The outputs of a driver, read with no code of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable

from processor.record import Record
from tests.endtoend.oracle import Seen


def seen(records: Iterable[Record]) -> list[Seen]:
    """Records as an independent reader sees them."""
    return [Seen(0, record.offset, record.key, record.value, told(record)) for record in records]


def told(record: Record) -> dict[str, str]:
    """A record's headers as text; none occurs twice."""
    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers or ()}
    assert len(headers) == len(record.headers or ())
    return headers


def bodies(records: Iterable[Record]) -> list[object]:
    """The parsed values, None for tombstones."""
    return [None if record.value is None else json.loads(record.value) for record in records]


def written(value: object) -> str:
    """Return a value as text that distinguishes 1, 1.0 and true; the order of members is no difference."""
    return json.dumps(value, sort_keys=True)
