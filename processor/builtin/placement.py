"""Finds the key and the partition that a record belongs to, and forwards misplaced records (producers.md, 1 to 3).

A key belongs to the partition that murmur2 chooses, as Java's and Spark's clients do; librdkafka's default is another
hash. Only the key of a record that the worker has no state of is looked at, so updates of known keys cost nothing. Two
kinds of records are sent to the input topic again, in the transaction that commits their offset:

- without a Kafka key: the key is made of the message, or of header `sow_key`;
- under a key that belongs to another partition, or that spells several key fields in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from processor.api import RecordRejected, Value
from processor.builtin.key_format import key_reader
from processor.wire.command import was_forwarded
from processor.wire.forwarding import came_in, forwarded_header, refuse_reserved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Context, Record
    from processor.config import TopicConfig
    from processor.merge import KeyFields
    from processor.wire.command import CommandHeaders


class Placement:
    """The keys of one partition."""

    def __init__(
        self,
        context: Context,
        settings: TopicConfig,
        key: KeyFields,
        own_topic: str,
        read_body: Callable[[Record, CommandHeaders], Value],
    ) -> None:
        """Create the placement of a partition.

        Args:
            context: the partition's.
            settings: the topic's.
            key: its key fields.
            own_topic: the input topic.
            read_body: parses and preprocesses the message of a record with a value.
        """
        self._context = context
        self._mode = settings.foreign_partition
        self._key = key
        self._own_topic = own_topic
        self._read_body = read_body
        self._read_key = key_reader(settings.key_format, key, settings.key_names)
        self._raw_keys: dict[int, bytes] = {}
        self._own_source = f"{own_topic}/".encode()
        self._is_alone = settings.foreign_partition == "accept" or context.partitions == 1
        self._has_one_spelling = len(key.pointers) < 2

    @property
    def reads_keys(self) -> bool:
        """True if publishers write Kafka keys in another format than text."""
        return self._read_key is not None

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._context.partition

    @property
    def partitions(self) -> int:
        """Number of partitions that a new key is hashed over; 1 where every key may stay."""
        return 1 if self._is_alone else self._context.partitions

    def with_text_keys(
        self, records: Sequence[Record], reject: Callable[[Record, RecordRejected], None]
    ) -> list[Record]:
        """A batch under the texts of its keys; records whose key cannot be read are given to `reject` and left out."""
        assert self._read_key is not None
        self._raw_keys.clear()
        readable = []
        for record in records:
            key = record.key
            if key is not None and not was_forwarded(record, self._own_source):
                try:
                    text = self._read_key(key)
                except RecordRejected as error:
                    reject(record, error)
                    continue
                self._raw_keys[record.offset] = key
                record = record._replace(key=text)  # noqa: PLW2901 - the same record
            readable.append(record)
        return readable

    def original(self, record: Record) -> Record:
        """A record of the last batch as it came, with the Kafka key that its publisher wrote."""
        raw_key = self._raw_keys.get(record.offset)
        return record if raw_key is None else record._replace(key=raw_key)

    def elsewhere(self, key: bytes) -> bytes | None:
        """The key under which a record of a new key is to be forwarded; None if it belongs here.

        Raises:
            RecordRejected: `wrong_partition`, `key_mismatch` for a spelling under which it cannot stay, or
                `missing_key` for a reserved key.
        """
        refuse_reserved(key)
        own_key = key if self._has_one_spelling else self._key.canonical(key)
        if own_key is None:
            return None  # The check against the message says what is wrong with it.
        if own_key == key and (self._is_alone or self._context.partition_for(key) == self._context.partition):
            return None
        if self._mode == "move":
            return own_key
        if own_key != key:
            raise RecordRejected("key_mismatch", f"the key {key!r:.100} is spelled {own_key!r:.100}")
        raise RecordRejected(
            "wrong_partition",
            f"the key {key!r:.100} belongs to partition {self._context.partition_for(key)} of {self._own_topic}, "
            f"which murmur2 chooses, and came to partition {self._context.partition}; set the producer's partitioner "
            "to murmur2_random, or foreign_partition: move",
        )

    def forward(self, record: Record, key: bytes, request: CommandHeaders, *, is_mended: bool = False) -> None:
        """Send a record to the input topic again under its own key, as it came.

        Header `source` goes with it where it must be seen that it was forwarded: sequences are counted by the partition
        where a record came in, and a key that was read from another format is a text now.

        Args:
            record: the record.
            key: its own key.
            request: its headers.
            is_mended: whether its number was refused here before.
        """
        headers = record.headers or []
        if request.sequence >= 0 or self._read_key is not None:
            before = came_in(request.source, self._own_source)
            is_mended = is_mended or request.is_mended
            headers = [
                *headers,
                forwarded_header(self._own_topic, self._context.partition, record.offset, before, is_mended=is_mended),
            ]
        self._context.forward("publish", key, record.value, headers)

    def key_of_keyless(self, record: Record, request: CommandHeaders) -> bytes:
        """The key of a record that came without one, by header or by its message.

        Raises:
            RecordRejected: `missing_key`, or `key_mismatch` where header and message disagree.
        """
        if not self._key.pointers:
            if request.sow_key is None:
                raise RecordRejected("missing_key", "no Kafka key, and no header sow_key")
            return request.sow_key  # Base64 characters only, so it is no reserved key.
        body = None if record.value is None else self._read_body(record, request)
        text = self._key.text(body) if type(body) is dict else None
        if text is None:
            fields = ", ".join(self._key.pointers)
            raise RecordRejected("missing_key", f"no Kafka key, and no {fields} in the message")
        key = text.encode()
        if request.sow_key not in (None, key):
            raise other_sow_key(request.sow_key, key)
        refuse_reserved(key)
        return key


def other_sow_key(sow_key: bytes | None, key: bytes) -> RecordRejected:
    """The rejection of a record whose header `sow_key` is not its key."""
    return RecordRejected("key_mismatch", f"header sow_key is {sow_key!r:.100}, but the key is {key!r:.100}")
