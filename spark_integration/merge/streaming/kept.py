"""What a micro-batch leaves to the next one: acks, which must not be ahead of what they tell, and records.

name         value
acks         a bundle for the ack topic
held         how many bundles of records there are, ASCII decimal
held/<n>     the n-th of them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_integration.merge.streaming.bulk import BulkMap

_ACKS: Final = b"acks"
_HELD: Final = b"held"


class Kept:
    """One map state of Spark's, in which each partition has its own names."""

    def __init__(self, kept: BulkMap) -> None:
        self._kept = kept

    def keep_acks(self, bundle: bytes) -> None:
        """Leave acks to the next micro-batch, which begins when Kafka has all of this one."""
        self._kept.put_many({_ACKS: bundle})

    def take_acks(self) -> list[bytes]:
        """The acks of the micro-batch before."""
        return self._take([_ACKS])

    def hold(self, bundles: Sequence[bytes]) -> None:
        """Leave records to the next micro-batch."""
        self._kept.put_many({_HELD: b"%d" % len(bundles), **dict(zip(_names(len(bundles)), bundles, strict=True))})

    def take_held(self) -> list[bytes]:
        """The records that were left, in their order."""
        count = self._take([_HELD])
        return self._take(_names(int(count[0]))) if count else []

    def _take(self, names: Sequence[bytes]) -> list[bytes]:
        found = [value for value in self._kept.get_many(names).values() if value is not None]
        if found:
            self._kept.put_many(dict.fromkeys(names))
        return found


def _names(count: int) -> list[bytes]:
    return [b"held/%d" % number for number in range(count)]
