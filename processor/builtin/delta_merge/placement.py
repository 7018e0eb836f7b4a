"""Finds the key and the partition that a record belongs to, and forwards misplaced records (producers.md, 1 to 3).

Kafka keys that publishers do not write as texts are read here, too: Connect's and Debezium's JSON, Java's integers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from processor.api import RecordRejected, Value
from processor.values.kinds import MISSING
from processor.values.pointer import find, names
from processor.wire.command import was_forwarded
from processor.wire.forwarding import came_in, forwarded_header, refuse_reserved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Context, Record
    from processor.config import TopicConfig
    from processor.merge import KeyFields
    from processor.wire.command import CommandHeaders


ReadKey: TypeAlias = Callable[[bytes], bytes]
"""Turns a Kafka key as its publisher wrote it into the text of the key. It raises RecordRejected, `missing_key`."""

_INTEGERS: Final = {4: struct.Struct(">i"), 8: struct.Struct(">q")}
_EXTENDED: Final = ("$oid", "$uuid", "$numberInt", "$numberLong", "$symbol")
"""The kinds of MongoDB's extended JSON that can be keys: `{"$oid": "596e…"}`."""
_AS_TEXT: Final = "let the connector write it as a text, a NUMERIC of Debezium with decimal.handling.mode: string"
_ENVELOPE: Final = frozenset(("schema", "payload"))
"""The members of a key that Connect's JsonConverter writes with `schemas.enable`."""


def key_reader(
    key_format: Literal["text", "json", "int"], key: KeyFields, key_names: Mapping[str, str]
) -> ReadKey | None:
    """The function that reads a topic's Kafka keys; None where they are texts already.

    Args:
        key_format: the topic's setting.
        key: its key fields.
        key_names: the names of key fields in JSON keys, by JSON Pointer, where they differ.
    """
    if key_format == "text":
        return None
    return _read_integer if key_format == "int" else _json_reader(key, key_names)


def _read_integer(key: bytes) -> bytes:
    """A big-endian signed integer of 4 or 8 bytes, as Java's IntegerSerializer and LongSerializer write it."""
    integer = _INTEGERS.get(len(key))
    if integer is None:
        raise RecordRejected("missing_key", f"the Kafka key has {len(key)} bytes; key_format int reads 4 or 8")
    (number,) = integer.unpack(key)
    return b"%d" % number


def _json_reader(key: KeyFields, key_names: Mapping[str, str]) -> ReadKey:
    """A reader of JSON keys: an object of the key fields, or the value of the only one; a value alone without any."""
    places = [(key_names.get(pointer), names(pointer)) for pointer in key.pointers]

    def read(data: bytes) -> bytes:
        try:
            value: Value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RecordRejected("missing_key", f"the Kafka key is not JSON, as key_format says: {error}") from None
        if type(value) is dict and value.keys() == _ENVELOPE:
            value = value["payload"]
        try:
            if type(value) is dict and key_names:
                values = [
                    find(value, path) if name is None else _identifier(value.get(name, MISSING))
                    for name, path in places
                ]
                text = None if MISSING in values else key.text_of_values(values if len(values) > 1 else values[0])
            else:
                text = key.text(value) if type(value) is dict else key.text_of_values(value)
        except RecordRejected as error:
            raise RecordRejected(error.reason, f"in the Kafka key {data!r:.100}, {error.detail}; {_AS_TEXT}") from None
        if text is None:
            fields = ", ".join(key_names.get(pointer, pointer) for pointer in key.pointers)
            raise RecordRejected(
                "missing_key",
                f"the Kafka key {data!r:.100} is no single value; key: explicit takes a string, an integer or a boolean"
                if not fields
                else f"the Kafka key {data!r:.100} does not have the key fields {fields}; key_names maps other names",
            )
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise RecordRejected("missing_key", f"the Kafka key {data!r:.100} has half a surrogate pair") from None

    return read


def _identifier(value: Value) -> Value:
    """The value of a key field; of MongoDB's extended JSON, which its connector writes as a text, the value in it."""
    if type(value) is str and value[:1] in ("{", '"'):
        try:
            parsed: Value = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return parsed if type(parsed) is str else _unwrapped(parsed, value)
    return _unwrapped(value, value)


def _unwrapped(value: Value, otherwise: Value) -> Value:
    if type(value) is dict and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind in _EXTENDED and type(inner) in (str, int):
            return inner
    return otherwise


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
        self.reads_keys = self._read_key is not None
        """True if publishers write Kafka keys in another format than text."""
        self._raw_keys: dict[int, bytes] = {}
        self._own_source = f"{own_topic}/".encode()
        self._is_alone = settings.foreign_partition == "accept" or context.partitions == 1

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
        own_key = self._key.canonical(key) if self._key.has_spellings else key
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
