"""The topic of an engine: its name, message type and key, how its records are parsed, and the last one of every key."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from processor.errors import RecordRejected, SowstreamError, Stop, SubscriptionFailed
from processor.filter import RecordMetadata
from processor.filter.filter import metadata_of
from processor.record import Record
from processor.values.key_text import text_of_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from processor.codec import Codec
    from processor.merge import KeyFields
    from processor.record import Value


log = logging.getLogger("sowstream.subscriptions")

ParsedRecord: TypeAlias = "tuple[Record, Value]"
"""A record with its parsed value."""

PAUSE: Final[ParsedRecord] = (Record(None, None, None, -1, 0), None)
"""Stands for no record: so many did not match that a reader with other work should turn to that."""


class Topic(NamedTuple):
    """A SOW topic, as far as its records must be understood."""

    name: str
    """Its configured name."""
    codec: Codec
    """Its message type."""
    key: KeyFields
    """Its key fields."""
    has_group_keys: bool = False
    """True if the keys of its records are those of groups, see `processor.values.key_text`."""

    def value(self, record: Record, partition: int | None = None) -> Value:
        """Parse a record.

        Args:
            record: one with a value.
            partition: its partition, for the error; None: not known.

        Raises:
            Stop: no worker wrote it like this.
        """
        try:
            return self.decoded(record)
        except RecordRejected as error:
            raise self.unreadable(record, error, partition) from error

    def decoded(self, record: Record) -> Value:
        """Parse a record that may hold anything.

        Raises:
            RecordRejected: no worker wrote it like this.
        """
        assert record.value is not None
        value = self.codec.decode_own(record.value)
        if type(value) is not dict and self.codec.can_delta:
            raise RecordRejected("not_an_object", "a SOW record is an object")
        return value

    def parsed(self, records: Iterable[Record]) -> Iterator[ParsedRecord]:
        """Each record with its value, parsed only when its turn comes: many values would fill the memory."""
        return ((record, self.value(record)) for record in records)

    def unreadable(self, record: Record, error: RecordRejected, partition: int | None = None) -> Stop:
        """The error that a subscriber gets for a record that cannot be parsed."""
        place = f"offset {record.offset}" if partition is None else f"partition {partition}, offset {record.offset}"
        what = f"{place} of its SOW topic, key {key_text(record)!r:.100},"
        return Stop(f"{self.name}: {what} is not what a worker writes: {error}")

    def failure(self, error: Exception) -> SowstreamError:
        """The error that a subscriber gets for one that ends its subscription; another project's goes to the log."""
        if isinstance(error, SowstreamError):
            return error
        log.error("a subscription to %s failed", self.name, exc_info=error)
        return SubscriptionFailed(f"{self.name}: an internal error, {type(error).__name__}; the log has the details")

    def metadata_of(self, record: Record) -> RecordMetadata:
        """The metadata of a record that a filter may use besides its fields."""
        return metadata_of(record, self.name)


def key_text(record: Record) -> str:
    """The SOW key of a record as text; a byte that is not UTF-8 is shown as an escape."""
    return text_of_key(record.key)


class RecordView(Protocol):
    """Keeps SOW records for one engine, on its thread.

    Of the headers it keeps those that a message is made of, see `metadata.is_kept`; of a record that is there the kind
    may be left out.
    """

    def get_many(self, keys: Sequence[bytes], partition: int | None = None) -> Mapping[bytes, Record | None]:
        """The records of these keys, None where there is none. Keys may repeat.

        Args:
            keys: the Kafka record keys.
            partition: where they are, if that is known.
        """

    def put(self, partition: int, records: Sequence[Record]) -> None:
        """Take the next records of a partition, in order; a tombstone forgets its key.

        From then on the view stands for all before the offset after the last of them.
        """

    def scan(self) -> Iterator[Record]:
        """Every record as it is now, not changed by records put while the iterator lives; in no order."""


class MemoryRecords:
    """A view in memory: for topics that are small enough, and for tests."""

    def __init__(self) -> None:
        self._records: dict[bytes, Record] = {}

    def __len__(self) -> int:
        """Number of its records."""
        return len(self._records)

    def get_many(self, keys: Sequence[bytes], partition: int | None = None) -> Mapping[bytes, Record | None]:  # noqa: ARG002
        """The records of these keys."""
        find = self._records.get
        return {key: find(key) for key in keys}

    def put(self, partition: int, records: Sequence[Record]) -> None:  # noqa: ARG002
        """Take the next records of a partition."""
        # Without a step for each: a snapshot of millions comes through here. A record without a key is nobody's.
        self._records.update({record[0]: record for record in records})  # type: ignore[misc]
        self._records.pop(None, None)  # type: ignore[call-overload]
        for gone in [record[0] for record in records if record[1] is None]:
            # The key may have been put again behind its tombstone.
            if gone in self._records and self._records[gone].value is None:
                del self._records[gone]

    def scan(self) -> Iterator[Record]:
        """Every record as it is now."""
        return iter(list(self._records.values()))


class NoRecords:
    """A view that keeps nothing: for subscriptions that deliver full updates without regard to earlier records."""

    def get_many(self, keys: Sequence[bytes], partition: int | None = None) -> Mapping[bytes, Record | None]:  # noqa: ARG002
        """None of them."""
        return dict.fromkeys(keys)

    def put(self, partition: int, records: Sequence[Record]) -> None:
        """Forgotten at once."""

    def scan(self) -> Iterator[Record]:
        """Nothing."""
        return iter(())
