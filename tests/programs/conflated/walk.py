"""A seeded random walk over records, from which the feed makes a SOW topic or commands to a merge worker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, TypeAlias

Sent: TypeAlias = tuple[bytes, bytes | None, list[tuple[str, bytes]]]
"""A record's key, value and headers."""

_AT_ONCE: Final = 0.001
_DELETED: Final = 0.03
_RESTLESS: Final = 50
"""One key in so many is inserted and deleted all the time, within an interval."""


class Walk:
    """The current version and price of each record, and an endless sequence of updates."""

    def __init__(self, seed: int, keys: int) -> None:
        """Begin without records: the first update of a key inserts it."""
        self._rng = random.Random(seed)
        self._keys = [b"%d" % key for key in range(keys)]
        self._versions = [0] * keys
        self._prices = [100_000] * keys

    def records(self) -> Iterator[Sent]:
        """Full records with their versions, as on a SOW topic."""
        random_, keys, versions, prices = self._rng.random, self._keys, self._versions, self._prices
        count = len(keys)
        while True:
            key, what = int(random_() * count), random_()
            version = versions[key] + 1
            headers = [("version", b"%d" % version)]
            if what > 1 - _AT_ONCE:
                headers.append(("no_conflate", b"true"))
            if version > 1 and what < (0.5 if key % _RESTLESS == 0 else _DELETED):
                versions[key] = 0
                headers.append(("kind", b"delete"))
                yield keys[key], None, headers
                continue
            versions[key] = version
            if version == 1:
                headers.append(("kind", b"insert"))
            prices[key] += int(what * 21) - 10
            yield keys[key], _full_record(key, version, prices[key]), headers

    def commands(self) -> Iterator[Sent]:
        """Deltas and a few deletes, from which a merge worker makes a SOW topic."""
        for key, value, headers in self.records():
            requested = [header for header in headers if header[0] == "no_conflate"]
            number, version = int(key), self._versions[int(key)]
            if value is not None and version > 1 and version % 8:
                price = self._prices[number]
                yield key, b'{"id":%d,"px":%d,"book":{"bid":%d}}' % (number, price, price), requested
            elif value is not None:
                yield key, value, [*requested, ("command", b"publish")]
            else:
                yield key, None, requested


def _full_record(key: int, version: int, price: int) -> bytes:
    """A full record in which members come and go, nested ones too, and values return."""
    note = b',"note":"%d"' % (version % 5) if version % 4 else b""
    last = b',"last":%d' % price if version % 3 else b""
    return b'{"id":%d,"px":%d,"state":"%s","book":{"bid":%d,"ask":%d%b},"lots":[%d,%d]%b}' % (
        key, price, b"open" if version % 2 else b"held", price - 5, price + 5, last, version, price % 7, note,
    )  # fmt: skip
