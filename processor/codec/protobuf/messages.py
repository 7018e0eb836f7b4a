"""The codecs of Protocol Buffers messages: bytes, messages that are published whole, and messages with deltas.

In a record of a message with deltas a field is there if, and only if, it is in the message.
A message merges field by field if each of its singular scalar fields has presence: all of proto2, those of proto3 that
are `optional` or in a oneof. In any other message an absent field and a default look alike, so it merges as one value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError

from processor.codec.binary import BinaryCodec
from processor.codec.contract import Codec
from processor.codec.frame import SCHEMA_ID_HEADER, without_protobuf_frame
from processor.codec.protobuf.values import (
    field_of,
    from_message,
    is_map,
    key_text,
    member_name,
    plain_scalar,
    to_message,
    unknown_members,
)
from processor.codec.value_checks import check_depth, check_writable_depth
from processor.errors import RecordRejected
from processor.record import Value


class WholeMessage(dict[str, Value]):
    """The record of a message that replaces whole: merging only descends into plain `dict`."""

    __slots__ = ()


class _Shape(NamedTuple):
    """The shape of the records of one message type."""

    empty: type[dict[str, Value]]
    """The class of its records: `dict`, or `WholeMessage`."""
    implicit: Mapping[str, Value]
    """The scalar fields without presence, each with its default: in a record they are always there."""
    required: tuple[str, ...]
    """The fields that a full message of proto2 cannot leave out."""
    choices: tuple[frozenset[str], ...]
    """The names of the fields in each oneof."""


def implicit_fields(message: Descriptor) -> list[FieldDescriptor]:
    """The singular scalar fields of a message without presence, those of messages in it not included."""
    return [field for field in message.fields if not field.is_repeated and not field.has_presence]


class PresentFields:
    """Reads and completes the records of one message type, and of the types inside it."""

    __slots__ = ("_shapes",)

    def __init__(self) -> None:
        self._shapes: dict[Descriptor, _Shape] = {}

    def read(self, message: Value, levels: int, *, has_unknown: bool = True) -> dict[str, Value]:
        """The record of a message: present fields by name, then unknown ones by number.

        An extension is named by its full name in brackets. An empty repeated field or map is absent. In a message that
        replaces whole, a field without presence always has a value.

        Args:
            message: a parsed message.
            levels: how many objects and arrays may be nested, the record included.
            has_unknown: False if it is known to have no unknown fields, nor any message in it.

        Raises:
            RecordRejected: `too_deep`.
        """
        _check(levels)
        shape = self._shape(message.DESCRIPTOR)
        return self._record(message, message.ListFields(), shape, levels, has_unknown=has_unknown)

    def complete(self, message: Descriptor, record: Value, path: str = "") -> bool:
        """Reduce a merged record in place to the fields that its message can hold; True if that took anything away.

        An empty array or map becomes absent. Of several fields of one oneof the last one stays: the one that was set
        last, as a merge appends new members.

        Raises:
            RecordRejected: `schema_mismatch`: a required field is missing.
        """
        has_lost = False
        for name, value in list(record.items()):
            field = field_of(message, name)
            if field is None:
                continue  # Unknown, or an error that writing the record explains.
            if field.is_repeated and not value:
                del record[name]
                has_lost = True
            elif (inner := _inner(field)) is not None:
                for place, child in _children(field, value, f"{path}/{name}"):
                    has_lost |= self.complete(inner, child, place)
        shape = self._shape(message)
        for choice in shape.choices:
            for name in [name for name in record if name in choice][:-1]:
                del record[name]
                has_lost = True
        for name in shape.required:
            if name not in record:
                raise RecordRejected("schema_mismatch", f"{path}/{name} is missing; {message.full_name} requires it")
        return has_lost

    def _value(self, field: FieldDescriptor, value: Value, levels: int, *, has_unknown: bool) -> Value:
        """A field's value; `levels` are those left for it."""
        if not field.is_repeated:
            if field.message_type is None:
                return plain_scalar(field, value)
            return self.read(value, levels, has_unknown=has_unknown)
        _check(levels)
        if is_map(field):
            inner = field.message_type.fields_by_name["value"]
            return {key_text(key): self._value(inner, value[key], levels - 1, has_unknown=has_unknown) for key in value}
        if field.message_type is None:
            return [plain_scalar(field, item) for item in value]
        _check(levels - 1)
        shape = self._shape(field.message_type)
        empty, implicit = shape.empty, shape.implicit
        # A mebibyte holds half a million empty messages: none of them takes a call.
        return [
            self._record(item, fields, shape, levels - 1, has_unknown=has_unknown)
            if (fields := item.ListFields()) or has_unknown
            else empty(implicit)
            for item in value
        ]

    def _record(
        self,
        message: Value,
        fields: Sequence[tuple[FieldDescriptor, Value]],
        shape: _Shape,
        levels: int,
        *,
        has_unknown: bool,
    ) -> dict[str, Value]:
        """The record of a message whose present fields have been listed."""
        if not fields and not has_unknown:
            return shape.empty(shape.implicit)
        record = shape.empty()
        for field, value in fields:
            record[member_name(field)] = self._value(field, value, levels - 1, has_unknown=has_unknown)
        for name, default in shape.implicit.items():
            if name not in record:
                record[name] = default
        if has_unknown:
            record.update(unknown_members(message))
        return record

    def _shape(self, message: Descriptor) -> _Shape:
        shape = self._shapes.get(message)
        if shape is None:
            implicit = tuple(implicit_fields(message))
            shape = self._shapes[message] = _Shape(
                WholeMessage if implicit else dict,
                {field.name: plain_scalar(field, field.default_value) for field in implicit},
                tuple(field.name for field in message.fields if field.is_required),
                tuple(frozenset(field.name for field in oneof.fields) for oneof in message.oneofs),
            )
        return shape


def _check(levels: int) -> None:
    """Reject a record when no level is left for an object or array."""
    if levels < 1:
        raise RecordRejected("too_deep", "nested deeper than max_depth objects and arrays")


def _inner(field: FieldDescriptor) -> Descriptor | None:
    """The type of the messages in a field, a map's values included; None if there are none."""
    inner = field.message_type
    return inner.fields_by_name["value"].message_type if is_map(field) else inner


def _children(field: FieldDescriptor, value: Value, path: str) -> list[tuple[str, Value]]:
    """The records in a field's value, each with its path; those of another kind are left to writing."""
    if is_map(field):
        children = list(value.items()) if isinstance(value, dict) else []
    elif field.is_repeated:
        children = list(enumerate(value)) if type(value) is list else []
    else:
        return [(path, value)] if isinstance(value, dict) else []
    return [(f"{path}/{name}", child) for name, child in children if isinstance(child, dict)]


_MANY_BYTES: Final = 4096
"""A message of so many bytes may hold so many others that it is worth a look whether any has unknown fields."""


class BytesCodec(BinaryCodec):
    """Protobuf messages without a schema: any bytes."""

    noun: ClassVar[str] = "a protobuf message without a schema"


class MessageCodec(Codec):
    """Protobuf messages of one type."""

    def __init__(self, make: Value, max_depth: int) -> None:
        """Take the class of the messages, and how deep they may be nested."""
        self._make = make
        self._max_depth = max_depth

    def _parsed(self, data: bytes) -> Value:
        """A message of the library's, parsed without its frame."""
        message = self._make()
        body = without_protobuf_frame(data)
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            name = message.DESCRIPTOR.full_name
            raise RecordRejected("undecodable", f"not a {name}: {error} (of {len(body)} bytes)") from None
        return message

    def _filled(self, record: Value) -> Value:
        """A message of the library's with the fields of a record."""
        message = self._make()
        try:
            to_message(message, record, "", has_presence=self.can_delta)
        except RecursionError as error:
            raise TypeError(f"{message.DESCRIPTOR.full_name}: {error}") from None
        return message


class WholeCodec(MessageCodec):
    """Messages of which an absent field cannot be distinguished from a default: full messages only.

    Merging has no part in them: the publisher's bytes are stored and forwarded.
    """

    can_delta: ClassVar[bool] = False

    def decode(self, data: bytes) -> Value:
        """Parse a message.

        Raises:
            RecordRejected: `undecodable` or `too_deep`.
        """
        value = from_message(self._parsed(data))
        check_depth(value, self._max_depth)
        return value

    def encode(self, value: Value) -> bytes:
        """Write a message, without a frame.

        Raises:
            TypeError: a field that the message does not have, a value that the field does not take, two fields of one
                oneof, or a nesting deeper than `max_depth` or than the library reads.
        """
        message = self._filled(value)
        try:
            data: bytes = message.SerializeToString()
            self._make().ParseFromString(data)
        except (EncodeError, DecodeError, RecursionError) as error:
            raise TypeError(f"{message.DESCRIPTOR.full_name}: {error}") from None
        check_writable_depth(value, self._max_depth)
        return data


class DeltaCodec(MessageCodec):
    """Messages that distinguish an absent field from a default: a delta is a message with some of the fields.

    Records are written without a frame, with the fields that this schema does not know.
    """

    completes: ClassVar[bool] = True
    header_names: ClassVar[frozenset[str]] = frozenset((SCHEMA_ID_HEADER,))

    def __init__(self, make: Value, max_depth: int) -> None:
        """Take the class of the messages, and how deep they may be nested."""
        super().__init__(make, max_depth)
        self._fields = PresentFields()

    def decode(self, data: bytes) -> Value:
        """Parse a record or a delta: the fields that are present.

        Raises:
            RecordRejected: `undecodable` or `too_deep`.
        """
        message = self._parsed(data)
        # To look into each of many messages for unknown fields takes longer than to read them.
        has_unknown = len(data) < _MANY_BYTES or _has_unknown(message)
        return self._fields.read(message, self._max_depth, has_unknown=has_unknown)

    def encode(self, value: Value) -> bytes:
        """Write a record or a delta, without a frame; a delta may lack required fields.

        Raises:
            TypeError: a field that the message does not have, or a value that the field does not take.
        """
        message = self._filled(value)
        try:
            data: bytes = message.SerializePartialToString(deterministic=True)
        except EncodeError as error:
            raise TypeError(f"{message.DESCRIPTOR.full_name}: {error}") from None
        return data

    def complete(self, record: Value) -> bool:
        """Remove in place the fields that the message cannot hold with the rest: empty arrays, the loser of a oneof.

        Raises:
            RecordRejected: `schema_mismatch`: a required field is missing.
        """
        return self._fields.complete(self._make.DESCRIPTOR, record)


def _has_unknown(message: Value) -> bool:
    """Return whether a message, or any in it, has unknown fields."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.ByteSize() != message.ByteSize())
