"""The records of a topic as an engine knows them: the last one of every key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from processor.record import Record


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
