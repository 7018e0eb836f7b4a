"""Protocol Buffers messages whose schema is in a schema registry, framed as Confluent's serializers do it.

A frame is the id of a file's schema, and the path to the message type in that file. A message is parsed by the topic's
message type, since fields are compatible by their numbers; its own schema must exist, and have a message type of the
same full name at that path.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor

from processor.codec.contract import Codec, CodecOptions, empty_message
from processor.codec.depth import depth_limit
from processor.codec.frame import SCHEMA_ID_HEADER, protobuf_frame_size
from processor.codec.protobuf.descriptors import file_of, message_at, message_type, path_of
from processor.codec.protobuf.messages import DeltaCodec, WholeCodec
from processor.codec.protobuf.presence import implicit_fields
from processor.codec.schema_registry.protobuf_frame import path_in_frame, write_frame
from processor.codec.schema_registry.schemas import Registry
from processor.codec.schema_registry.topic_schema import UnusableSchema, framed_schema, topic_schema
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Headers, Value

FRAMES_MAX: Final = 1000
"""Most frames that are remembered, with the problem that each has or has not."""


def registered_codec(options: CodecOptions) -> Codec:
    """The codec of a topic with `schema: {subject: NAME, message: full.Name}`; without `message`, the file's first one.

    Raises:
        ConfigurationError: there is no registry or no such subject, or its schema cannot be used.
        Stop: the registry does not answer.
    """
    max_depth = depth_limit(options.max_depth, "protobuf")
    registry = Registry(options.registry, options.registry_wait_s, "PROTOBUF") if options.registry else None
    found, where = topic_schema(options, registry, "protobuf", "a descriptor set")
    assert registry is not None
    assert found.schema_id is not None, "only a subject leads here"
    assert options.schema is not None
    try:
        descriptor = message_type(file_of(found), options.schema.message)
    except UnusableSchema as error:
        raise ConfigurationError(f"the schema of topic {options.topic!r}, {where}: {error}") from None
    frames = _Frames(registry, descriptor, found.schema_id)
    make = message_factory.GetMessageClass(descriptor)
    return (RegisteredWholeCodec if implicit_fields(descriptor) else RegisteredDeltaCodec)(make, max_depth, frames)


class _Frames:
    """The frames of the messages of one topic: its own, and those of its publishers."""

    def __init__(self, registry: Registry, message: Descriptor, schema_id: int) -> None:
        self.own = write_frame(schema_id, path_of(message))
        self._registry = registry
        self._name = message.full_name
        self._problems: dict[bytes, str] = {self.own: ""}

    def check_message(self, data: bytes) -> None:
        """Check the frame that a message begins with; errors as `check`, and `undecodable` where there is none."""
        if not data:
            raise empty_message()
        size = protobuf_frame_size(data)
        if size == 0:
            raise RecordRejected(
                "undecodable",
                f"no schema: {data[:1].hex() or 'nothing'} where Confluent's frame has 00, and no {SCHEMA_ID_HEADER}",
            )
        self.check(data[:size])

    def check_header(self, value: bytes | None) -> None:
        """Check the frame in header `__value_schema_id`; errors as `check`, and `bad_header` where it is none."""
        try:
            size = protobuf_frame_size(value or b"")
        except RecordRejected as error:
            raise RecordRejected("bad_header", f"header {SCHEMA_ID_HEADER}: {error.detail}") from None
        if not value or size != len(value):
            raise RecordRejected(
                "bad_header", f"header {SCHEMA_ID_HEADER}: {(value or b'')[:30].hex()} is no id with a path"
            )
        self.check(value)

    def check(self, frame: bytes) -> None:
        """Check that a frame names a schema with the topic's message type.

        Raises:
            RecordRejected: `schema_not_found` or `schema_mismatch`.
            PartitionHeld, Stop: the registry does not answer.
        """
        problem = self._problems.get(frame)
        if problem is None:
            problem = self._problem(frame)
            if len(self._problems) >= FRAMES_MAX:
                self._problems = {self.own: ""}
            self._problems[frame] = problem
        if problem:
            raise RecordRejected("schema_mismatch", problem)

    def _problem(self, frame: bytes) -> str:
        found, shown = framed_schema(self._registry, frame)
        path = path_in_frame(frame)
        try:
            message = message_at(file_of(found), path)
        except UnusableSchema as error:
            return f"schema {shown}: {error}"
        if message is None:
            return f"schema {shown} has no message type at {list(path)!s:.100}"
        if message.full_name != self._name:
            return f"schema {shown} has {message.full_name} at {list(path)}; the topic's records are {self._name}"
        return ""


class RegisteredDeltaCodec(DeltaCodec):
    """Framed messages that distinguish an absent field from a default; a delta is a message with some of the fields."""

    uses_headers: ClassVar[bool] = True

    def __init__(self, make: Any, max_depth: int, frames: _Frames) -> None:
        """Take the class of the messages, how deep they may be nested, and their frames."""
        super().__init__(make, max_depth)
        self._frames = frames

    def decode(self, data: bytes) -> Value:
        """Parse a framed record.

        Raises:
            RecordRejected: `undecodable`, `too_deep`, `schema_not_found` or `schema_mismatch`.
            PartitionHeld, Stop: the registry does not answer, with the option `registry_wait_s` or without.
        """
        self._frames.check_message(data)
        return super().decode(data)

    def decode_own(self, data: bytes) -> Value:
        """Parse a stored record, of this version of the schema or of an earlier one."""
        return super().decode(data)

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Value:  # noqa: ARG002
        """Parse a message by its frame or header `__value_schema_id`; errors as `decode`, and `bad_header`."""
        _check(self._frames, data, headers)
        return super().decode(data)

    def encode(self, value: Value) -> bytes:
        """Write a record or a delta, framed; a delta may lack required fields; errors as without a registry."""
        return self._frames.own + super().encode(value)


class RegisteredWholeCodec(WholeCodec):
    """Messages that are published whole, framed: the publisher's bytes are stored and forwarded."""

    uses_headers: ClassVar[bool] = True

    def __init__(self, make: Any, max_depth: int, frames: _Frames) -> None:
        """Take the class of the messages, how deep they may be nested, and their frames."""
        super().__init__(make, max_depth)
        self._frames = frames

    def decode(self, data: bytes) -> Value:
        """Parse a framed message; errors as `RegisteredDeltaCodec.decode`."""
        self._frames.check_message(data)
        return super().decode(data)

    def decode_own(self, data: bytes) -> Value:
        """Parse a stored message; it has no frame where its publisher put that into a header."""
        return super().decode(data)

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Value:  # noqa: ARG002
        """Parse a message by its frame or header `__value_schema_id`; errors as `decode`, and `bad_header`."""
        _check(self._frames, data, headers)
        return super().decode(data)

    def encode(self, value: Value) -> bytes:
        """Write a message, framed; errors as without a registry."""
        return self._frames.own + super().encode(value)


def _check(frames: _Frames, data: bytes, headers: Headers) -> None:
    for name, value in headers:
        if name == SCHEMA_ID_HEADER:
            frames.check_header(value)
            return
    frames.check_message(data)
