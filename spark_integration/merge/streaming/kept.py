"""Keeps acks and records for the next micro-batch; acks wait until their records are in Kafka.

name         value
acks         a bundle for the ack topic
held         the number of bundles of records, ASCII decimal
held/<n>     the n-th bundle
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_integration.merge.streaming.bulk import BulkMap

_ACKS: Final = b"acks"
_HELD: Final = b"held"


class Kept:
    """Wraps a Spark map state with the names above, separately for each partition."""

    def __init__(self, kept: BulkMap) -> None:
        self._kept = kept

    def keep_acks(self, bundle: bytes) -> None:
        """Keep acks for the next micro-batch, which begins after Kafka has all records of this one."""
        self._kept.put_many({_ACKS: bundle})

    def take_acks(self) -> list[bytes]:
        """Remove and return the acks of the previous micro-batch."""
        return self._take([_ACKS])

    def hold(self, bundles: Sequence[bytes]) -> None:
        """Keep records for the next micro-batch."""
        self._kept.put_many({_HELD: b"%d" % len(bundles), **dict(zip(_names(len(bundles)), bundles, strict=True))})

    def take_held(self) -> list[bytes]:
        """Remove and return the kept records, in their order."""
        count = self._take([_HELD])
        return self._take(_names(int(count[0]))) if count else []

    def _take(self, names: Sequence[bytes]) -> list[bytes]:
        values = [value for value in self._kept.get_many(names).values() if value is not None]
        if values:
            self._kept.put_many(dict.fromkeys(names))
        return values


def _names(count: int) -> list[bytes]:
    return [b"held/%d" % number for number in range(count)]
