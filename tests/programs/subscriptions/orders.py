"""The records of the run: a reader can check from a record alone that it is intact and requested."""

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
    """A subscription's filter, with a check in Python."""

    filter: str
    """The filter in the filter language."""
    matches: Callable[[str, int], bool]
    """The same filter in Python, of a region and a quantity."""


def _region(number: int) -> Wanted:
    return Wanted(f"/region = 'r{number}'", lambda region, _: region == f"r{number}")


WANTED: Final = (
    *(_region(number) for number in range(16)),
    Wanted("/qty > 900", lambda _, qty: qty > 900),
    Wanted("/region IN ('r16', 'r17') AND /qty <= 500", lambda region, qty: region in ("r16", "r17") and qty <= 500),
    Wanted("NOT /qty BETWEEN 100 AND 950", lambda _, qty: not 100 <= qty <= 950),
    Wanted("/region = 'r18' OR /region = 'r19'", lambda region, _: region in ("r18", "r19")),
)
"""Twenty subscriptions: most are for one of twenty regions, some have filters that no index answers."""


class Held(NamedTuple):
    """The fields of a record that the run compares."""

    region: str
    qty: int
    times: int
    """How often the record was written."""
    check: int
    """A checksum of the other fields; it is wrong for a record that never existed."""

    @classmethod
    def of(cls, record: dict[str, Any]) -> Held:
        """The fields of a full record."""
        return cls(record["region"], record["qty"], record["times"], record["check"])

    def after(self, delta: dict[str, Any]) -> Held:
        """The fields after a delta."""
        return Held(*(delta.get(name, value) for name, value in zip(self._fields, self, strict=True)))

    def is_intact(self, key: str) -> bool:
        """Return whether exactly this record was written."""
        return self.check == checksum(key, self.region, self.qty, self.times)


def checksum(key: str, region: str, qty: int, times: int) -> int:
    """The checksum of a record's fields."""
    return crc32(f"{key}/{region}/{qty}/{times}".encode())


class Book:
    """The current record of each key, for the writer, and an endless sequence of updates."""

    def __init__(self, seed: int, records: int) -> None:
        self._rng = random.Random(seed)
        self._counts = [0] * records
        self._versions = [0] * records

    def all(self) -> Iterator[Sent]:
        """Write every record once."""
        for key in range(len(self._counts)):
            yield self._written(key)

    def updates(self) -> Iterator[Sent]:
        """Update random records, with new regions and quantities; one in a hundred is deleted."""
        choose, chance = self._rng.randrange, self._rng.random
        while True:
            key = choose(len(self._counts))
            if chance() < 0.01 and self._versions[key]:
                self._versions[key] = 0
                yield b"%d" % key, None, [("version", b"1"), ("kind", b"delete")]
            else:
                yield self._written(key)

    def uncommitted(self) -> Iterator[Sent]:
        """Records for transactions that are rolled back: a subscriber with one of them has read uncommitted records."""
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
