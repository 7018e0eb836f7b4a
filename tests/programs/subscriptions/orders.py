"""The records of the run, and what a reader may know of them without being told: whether they are whole, and wanted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

REGIONS: Final = 20
QTY_MAX: Final = 1_000

Sent: TypeAlias = tuple[bytes, bytes | None, list[tuple[str, bytes]]]
"""A record's key, value and headers."""


class Wanted(NamedTuple):
    """What a subscriber asks for."""

    filter: str
    """In the filter language."""
    matches: Callable[[str, int], bool]
    """The same in Python, of a region and a quantity."""


def _region(number: int) -> Wanted:
    return Wanted(f"/region = 'r{number}'", lambda region, _: region == f"r{number}")


WANTED: Final = (
    *(_region(number) for number in range(16)),
    Wanted("/qty > 900", lambda _, qty: qty > 900),
    Wanted("/region IN ('r16', 'r17') AND /qty <= 500", lambda region, qty: region in ("r16", "r17") and qty <= 500),
    Wanted("NOT /qty BETWEEN 100 AND 950", lambda _, qty: not 100 <= qty <= 950),
    Wanted("/region = 'r18' OR /region = 'r19'", lambda region, _: region in ("r18", "r19")),
)
"""Twenty subscriptions: most of them for one of twenty parts, some for what an index does not find."""


class Held(NamedTuple):
    """What is kept of a record."""

    region: str
    qty: int
    times: int
    """How often the record was written; with the two before it makes the sum."""
    check: int
    """A sum over the others: of a record that never existed it is wrong."""

    @classmethod
    def of(cls, record: dict[str, Any]) -> Held:
        """That of a whole record."""
        return cls(record["region"], record["qty"], record["times"], record["check"])

    def after(self, delta: dict[str, Any]) -> Held:
        """What it is after a delta."""
        return Held(*(delta.get(name, value) for name, value in zip(self._fields, self, strict=True)))

    def is_whole(self, key: str) -> bool:
        """Whether somebody wrote just this."""
        return self.check == checksum(key, self.region, self.qty, self.times)


def checksum(key: str, region: str, qty: int, times: int) -> int:
    """What a record's parts come to."""
    return crc32(f"{key}/{region}/{qty}/{times}".encode())


class Book:
    """The records as their writer knows them; an endless supply of updates."""

    def __init__(self, seed: int, records: int) -> None:
        self._rng = random.Random(seed)
        self._counts = [0] * records
        self._versions = [0] * records

    def all(self) -> Iterator[Sent]:
        """Every record once."""
        for key in range(len(self._counts)):
            yield self._written(key)

    def updates(self) -> Iterator[Sent]:
        """Records anywhere, with new regions and quantities; one in a hundred is deleted."""
        choose, chance = self._rng.randrange, self._rng.random
        while True:
            key = choose(len(self._counts))
            if chance() < 0.01 and self._versions[key]:
                self._versions[key] = 0
                yield b"%d" % key, None, [("version", b"1"), ("kind", b"delete")]
            else:
                yield self._written(key)

    def lies(self) -> Iterator[Sent]:
        """Records for transactions that are rolled back: whoever sees one has read what is not committed."""
        while True:
            key = self._rng.randrange(len(self._counts))
            yield b"%d" % key, json.dumps({"id": key, "region": "r0", "qty": 0, "times": -1, "check": 0}).encode(), []

    def _written(self, key: int) -> Sent:
        region, qty = f"r{self._rng.randrange(REGIONS)}", self._rng.randrange(QTY_MAX)
        self._counts[key] = times = self._counts[key] + 1
        self._versions[key] = version = self._versions[key] + 1
        check = checksum(str(key), region, qty, times)
        value = b'{"id":%d,"region":"%b","qty":%d,"times":%d,"check":%d,"at":%%.3f,"note":"as agreed"}' % (
            key, region.encode(), qty, times, check,
        )  # fmt: skip
        return b"%d" % key, value, [("version", b"%d" % version)]
