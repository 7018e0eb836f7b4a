"""Keeps acks, records and the window of rejected records of a partition for the next micro-batch.

Acks wait until their records are in Kafka.

name         value
acks         a bundle for the ack topic
held         the number of bundles of records, ASCII decimal
held/<n>     the n-th bundle
window       see `RejectWindow`

The mark of the versions of lives (`processor.wire.partition_marks`) is in the same map, under its own name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from spark_integration.merge.streaming.bulk import BulkMap

_ACKS: Final = b"acks"
_HELD: Final = b"held"
_WINDOW: Final = b"window"


class Left(NamedTuple):
    """The values that the previous micro-batch has left."""

    acks: list[bytes]
    """Bundles for the ack topic: one, or none."""
    held: list[bytes]
    """Bundles of records, in their order."""
    window: bytes | None
    """The window of rejected records."""


class Kept:
    """Wraps a Spark map state with the names above, separately for each partition."""

    def __init__(self, kept: BulkMap) -> None:
        self._kept = kept

    def keep_acks(self, bundle: bytes) -> None:
        """Keep acks for the next micro-batch, which begins after Kafka has all records of this one."""
        self._kept.put_many({_ACKS: bundle})

    def keep_window(self, window: bytes | None) -> None:
        """Keep the window of rejected records; None removes it."""
        self._kept.put_many({_WINDOW: window})

    def hold(self, bundles: Sequence[bytes]) -> None:
        """Keep records for the next micro-batch."""
        self._kept.put_many({_HELD: b"%d" % len(bundles), **dict(zip(_names(len(bundles)), bundles, strict=True))})

    def take(self) -> Left:
        """Return all of it, and remove the acks and the records."""
        values = self._kept.get_many([_ACKS, _HELD, _WINDOW])
        acks, held = values[_ACKS], values[_HELD]
        names = [] if held is None else _names(int(held))
        bundles = [bundle for bundle in self._kept.get_many(names).values() if bundle is not None] if names else []
        gone = [*names, *(name for name in (_ACKS, _HELD) if values[name] is not None)]
        if gone:
            self._kept.put_many(dict.fromkeys(gone))
        return Left([] if acks is None else [acks], bundles, values[_WINDOW])


def _names(count: int) -> list[bytes]:
    return [b"held/%d" % number for number in range(count)]
