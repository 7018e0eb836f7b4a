"""What a message type is: bytes ⇄ plain Python values, plus whether it can do deltas."""

from __future__ import annotations

from typing import Protocol

from processor.record import Value


class Codec(Protocol):
    """One message type. Instances hold no state between calls: any number of partitions may share one."""

    can_delta: bool
    """False for types that carry full messages only."""

    def decode(self, data: bytes) -> Value:
        """Parse a message that anybody may have written.

        Raises:
            RecordRejected: `undecodable` or `too_deep`, with the position.
        """

    def decode_own(self, data: bytes) -> Value:
        """Parse a message that `encode` wrote, such as a stored record: the same value, without the checks.

        Raises:
            RecordRejected: as `decode`.
        """

    def encode(self, value: Value) -> bytes:
        """Write one message.

        Raises:
            TypeError: the message type has no way to write this value.
        """
