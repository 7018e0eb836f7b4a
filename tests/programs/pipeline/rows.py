"""The rows of the feed: seeded, each with a number of its own, and the ledger of their places and fates."""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ITEMS: Final = 40
"""The number of items; the item of an order depends on its key alone."""
WAYS: Final = 3
"""The ways of a row into the pipeline: a file, the raw topic, the publish topic itself."""
COLUMNS: Final = {"id": int, "n": int, "item": str, "qty": int, "px": (int, float)}
"""The columns of an order in the features and the typed table, with their types."""
_NOTES: Final = ("plain", "two\nlines", 'a "quoted"\nword, and\n\nmore', "é", "")
_BAD: Final = 0.02
_BLANK: Final = 0.01

Place: TypeAlias = tuple[str, int]
"""The name of a file and the line in it, or `topic/partition` and the offset."""


class Row(NamedTuple):
    """One row of an input."""

    text: str | None
    """The text of the row; None: a Kafka record without a value."""
    number: int
    """The number of the row, which is also its field `n`."""
    reason: str | None = None
    """The reason for which it does not fit; None: it is to be published."""


@dataclass
class Ledger:
    """The rows that the feed has sent, by place."""

    rows: dict[Place, Row] = field(default_factory=dict)
    """The rows of files and of the raw topic, without blank lines."""
    notes: dict[int, str | None] = field(default_factory=dict)
    """The good rows of CSV files, by id; None: without a note."""
    direct: int = 0
    """The number of records sent to the publish topic itself, with repeats."""

    @property
    def good(self) -> dict[int, Row]:
        """The rows to be published, by number."""
        return {row.number: row for row in self.rows.values() if row.reason is None}

    @property
    def bad(self) -> dict[Place, Row]:
        """The rows that do not fit."""
        return {place: row for place, row in self.rows.items() if row.reason is not None}


class Rows:
    """An endless sequence of updates of orders for one way: the same one for the same seed."""

    def __init__(self, seed: int, keys: int, way: int) -> None:
        """Begin with a number that no other way has; the rows do not depend on the other ways."""
        self._rng = random.Random(f"{seed}/{way}")
        self._keys = keys
        self.last = way - WAYS
        """The number of the last row."""

    def lines(self) -> Iterator[Row]:
        """Rows of a file: now and then one that does not fit, or a blank line, which counts as a line."""
        while True:
            chance = self._rng.random()
            if chance < _BLANK:
                yield Row("", 0)
            elif chance < _BLANK + _BAD:
                yield self._misfit()
            else:
                yield Row(json.dumps(self._update(), ensure_ascii=False), self.last)

    def values(self) -> Iterator[Row]:
        """Values of Kafka records: now and then one that does not fit, or none at all."""
        for row in self.lines():
            yield Row(None, self._next(), "undecodable") if row.text == "" else row

    def commands(self) -> Iterator[tuple[bytes, bytes | None, dict[str, str]]]:
        """Records for the publish topic itself: deltas and deletes, a few of them sent twice, and a few bad ones."""
        sequence = -1
        while True:
            chance, sequence = self._rng.random(), sequence + 1
            headers = {"client": "desk", "sequence": str(sequence)}
            key = b"%d" % self._rng.randrange(self._keys)
            value: bytes | None = None
            if chance < 0.02:
                value = b"{not json"
            elif chance < 0.1:
                value, headers = b"", headers | {"command": "sow_delete"}
            elif chance > 0.2:
                body = self._update()
                if chance > 0.9:
                    body["qty"] = "many"
                key, value = b"%d" % body["id"], json.dumps(body).encode()
            yield key, value, headers
            if self._rng.random() < 0.1:
                yield key, value, headers

    def _next(self) -> int:
        self.last += WAYS
        return self.last

    def _update(self) -> dict[str, Any]:
        rng = self._rng
        key = rng.randrange(self._keys)
        fields: dict[str, Callable[[], Any]] = {
            "qty": lambda: rng.randrange(1_000),
            "px": lambda: rng.randrange(10_000) / 4,
            "note": lambda: rng.choice([None, "", "é", "urgent", '"quoted"\n']),
            "party": lambda: rng.choice([{"city": "Røros"}, {"zip": rng.randrange(9)}, {"city": None}, {}]),
            "tags": lambda: rng.sample(["a", "b", "c"], rng.randrange(3)),
        }
        changed = {name: fields[name]() for name in rng.sample([*fields], rng.randrange(1, 4))}
        return {"id": key, "n": self._next(), "item": f"i{key % ITEMS:02d}", **changed}

    def _misfit(self) -> Row:
        number = self._next()
        bad = {
            "undecodable": f'{{"id": {number}, "n": ',
            "not_an_object": f"[{number}]",
            "missing_key": json.dumps({"n": number, "qty": 1}),
        }
        reason = self._rng.choice([*bad])
        return Row(bad[reason], number, reason)


class Notes:
    """An endless sequence of CSV files, whose values have line breaks: the same one for the same seed."""

    def __init__(self, seed: int) -> None:
        """Begin with id 1."""
        self._rng = random.Random(f"{seed}/notes")
        self._last = 0

    def file(self, count: int) -> tuple[str, dict[int, str | None], dict[int, Row]]:
        """The text of a file, its good rows by id, and by their line those with too many values."""
        text, good, bad = io.StringIO(), dict[int, str | None](), dict[int, Row]()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["id", "note"])
        for _ in range(count):
            self._last += 1
            if self._rng.random() < _BAD:
                row = Row(f"{self._last},plain,more", self._last, "misfit")
                bad[text.getvalue().count("\n") + 1] = row
                text.write(f"{row.text}\n")
                continue
            note = self._rng.choice(_NOTES)
            writer.writerow([self._last, note])
            good[self._last] = note or None
        return text.getvalue(), good, bad


def fits(record: dict[str, Any]) -> bool:
    """Return whether a record fits the columns of an order."""
    members = ((record.get(name), kind) for name, kind in COLUMNS.items())
    return all(value is None or isinstance(value, kind) for value, kind in members)
