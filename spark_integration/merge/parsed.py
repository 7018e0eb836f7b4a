"""Merges plain JSON with each record kept parsed between two of its deltas, and written when the last one has come.

A worker writes every state, for each is sent. Where only the last one of a key is wanted, and nothing but merging is
done to it, that is a third of the work. What a worker rejects only when it has written a record, or halfway through a
merge, is found out by those who call this: they merge such records again the workers' way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec

if TYPE_CHECKING:
    from processor.api import Codec, Outgoing, Value
    from processor.config import TopicConfig

_GROWTH_MAX: Final = 8
"""How much longer than as it came a message may be when it is written: `1e15` has 4 characters, then 18."""


class ParsedJson(JsonCodec):
    """JSON that is not written: in place of bytes stands a list with the value in it.

    A list, and not a class of our own: it is made, asked for its length and recognised without a step of Python's.
    """

    @classmethod
    def instead_of(cls, codec: Codec, topic: TopicConfig) -> ParsedJson | None:
        """One for a topic whose records may stay parsed; None where something may look at them, or change them.

        Args:
            codec: the topic's.
            topic: its settings.
        """
        if topic.merge_rules or topic.sequence_groups or topic.enrich or topic.preprocess:
            return None
        return cls(CodecOptions(max_depth=codec.max_depth)) if type(codec) is JsonCodec else None

    def encode(self, value: Value) -> bytes:
        """The value itself, in a list."""
        return cast("bytes", [value])

    def decode_own(self, data: bytes) -> Value:
        """What `encode` put away, or what a worker wrote."""
        kept: Any = data
        return kept[0] if type(kept) is list else super().decode_own(data)


def written(codec: Codec, record: Outgoing) -> Outgoing:
    """A record as its message type writes it."""
    kept: Any = record[1]
    return (record[0], codec.encode(kept[0]), record[2]) if type(kept) is list else record


def length_max(length: int) -> int:
    """How long a record may become that messages of this length together are merged into, in bytes."""
    return length * _GROWTH_MAX
