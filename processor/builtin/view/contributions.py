"""Contributions as they travel between the stages of a view, and lie in its tables: JSON arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.codec import load_codec
from processor.filter.aggregate import Contribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Contribution(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class Contributions:
    """Writes and reads contributions, with every digit of their numbers."""

    def __init__(self) -> None:
        """Load the message type."""
        self._codec = load_codec("json")

    def encode_many(self, contributions: Iterable[Contribution]) -> list[bytes]:
        """Write contributions, whose values are finite numbers, texts, truth values and NULL alone."""
        write = self._codec.encode_decoded
        return [
            write([timestamp_ms, partition, offset, list(group), list(arguments)])
            for (timestamp_ms, partition, offset), group, arguments in contributions
        ]

    def decode_many(self, messages: Sequence[bytes]) -> list[Contribution]:
        """Read contributions that `encode_many` wrote, parsed together."""
        return [
            _new(Contribution, ((timestamp_ms, partition, offset), tuple(group), tuple(arguments)))
            for timestamp_ms, partition, offset, group, arguments in self._codec.decode_own_many(messages)
        ]
