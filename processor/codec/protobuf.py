"""Protocol Buffers: full messages, parsed by a descriptor set where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from processor.codec.contract import Codec, CodecOptions
from processor.codec.depth import check_depth, check_writable_depth, depth_limit
from processor.codec.needs import not_installed
from processor.errors import ConfigurationError, RecordRejected
from processor.explanation import unknown_name
from processor.record import Value

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError, EncodeError

    from processor.codec.protobuf_values import from_message, to_message
except ImportError as error:
    raise not_installed("protobuf", error) from error


class ProtobufCodec(Codec):
    """The message type `protobuf`.

    With `schema: {file: DESCRIPTOR_SET, message: full.Name}` a record is an object of fields by name; without, it is
    the bytes. What is stored and forwarded is always the publisher's bytes. A Confluent frame is skipped: no message
    begins with its zero byte. The schema it names is not asked for.
    """

    can_delta: ClassVar[bool] = False

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one with the option `schema`.

        Raises:
            ConfigurationError: the file is no descriptor set, or the message is not in it.
        """
        options = options or CodecOptions()
        self._max_depth = depth_limit(options.max_depth, "protobuf")
        self._make: Callable[[], Value] | None = None
        if options.schema is None:
            return
        if options.schema.file is None or options.schema.message is None:
            raise ConfigurationError("schema: protobuf takes {file: DESCRIPTOR_SET, message: full.Name}")
        self._make = _message_class(str(options.schema.file), options.schema.message)

    def decode(self, data: bytes) -> Value:
        """Parse a message; the bytes themselves where there is no schema.

        Raises:
            RecordRejected: `undecodable` or `too_deep`.
        """
        if self._make is None:
            return data
        message = self._make()
        body = data[_frame_bytes(data) :] if data[:1] == b"\0" else data
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            name = message.DESCRIPTOR.full_name
            raise RecordRejected("undecodable", f"not a {name}: {error} (of {len(body)} bytes)") from None
        value = from_message(message)
        check_depth(value, self._max_depth)
        return value

    def encode(self, value: Value) -> bytes:
        """Write a message, without a frame.

        Raises:
            TypeError: a field that the message does not have, a value that the field does not take, two fields of one
                oneof, or a nesting deeper than `max_depth` or than the library reads.
        """
        if self._make is None:
            if isinstance(value, bytes):
                return value
            raise TypeError(f"a protobuf message without a schema is bytes; this is {type(value).__name__}")
        message = self._make()
        try:
            to_message(message, value, "")
            data: bytes = message.SerializeToString()
            self._make().ParseFromString(data)
        except (EncodeError, DecodeError, RecursionError) as error:
            raise TypeError(f"{message.DESCRIPTOR.full_name}: {error}") from None
        check_writable_depth(value, self._max_depth)
        return data


def _message_class(file: str, name: str) -> Callable[[], Value]:
    """What makes empty messages of a type in a descriptor set."""
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    how = "make it with protoc --include_imports --descriptor_set_out"
    try:
        with open(file, "rb") as opened:  # noqa: PTH123
            files.ParseFromString(opened.read())
        for proto in files.file:
            pool.Add(proto)
    except OSError as error:
        raise ConfigurationError(f"schema: {file}: {error.strerror}; {how}") from None
    except (DecodeError, TypeError) as error:
        raise ConfigurationError(f"schema: {file} is no complete descriptor set: {error}; {how}") from None
    try:
        descriptor = pool.FindMessageTypeByName(name)
    except KeyError:
        known = [f"{proto.package}.{kind.name}".lstrip(".") for proto in files.file for kind in proto.message_type]
        raise ConfigurationError(f"schema: {file}: {unknown_name('message', name, known)}") from None
    made: Callable[[], Value] = message_factory.GetMessageClass(descriptor)
    return made


def _frame_bytes(data: bytes) -> int:
    """The length of a Confluent frame: a zero, the schema's number in four bytes, the message's place in its file."""
    try:
        count, at = _varint(data, 5)
        for _ in range(count):
            _, at = _varint(data, at)
    except IndexError:
        raise RecordRejected("undecodable", f"a Confluent frame that ends at byte {len(data)}") from None
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, and where it ends."""
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    number |= data[at] << shift
    return (number >> 1) ^ -(number & 1), at + 1
