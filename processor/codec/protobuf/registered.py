"""Protocol Buffers messages whose schema is in a schema registry, framed as Confluent's serializers do it.

A frame is the id of a file's schema, and the path to the message type in that file. A message is parsed by the topic's
message type, since fields are compatible by their numbers; its own schema must exist, and have a message type of the
same full name at that path.

Its descriptors are parsed, or compiled by protoc where the registry has texts.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError

from processor.codec.contract import Codec, CodecOptions, empty_message
from processor.codec.frame import SCHEMA_ID_HEADER, path_in_frame, protobuf_frame, protobuf_frame_size
from processor.codec.protobuf.messages import DeltaCodec, MessageCodec, WholeCodec, implicit_fields
from processor.codec.schema_registry.schemas import Registry, SchemaText, is_base64
from processor.codec.schema_registry.topic_schema import UnusableSchema, framed_schema, open_topic_schema
from processor.codec.value_checks import depth_limit
from processor.errors import ConfigurationError, PartitionHeld, RecordRejected, Stop, unknown_name
from processor.record import Headers, Value
from processor.values import cached_by_text

PROTOC_TIMEOUT_S: Final = 30.0
"""Longest run of protoc for one schema."""
_MAIN: Final = "sowstream_main_schema.proto"
_SHIPPED: Final = re.compile(r"(google/(?:protobuf|type)|confluent(?:/types?)?)/(\w+)\.proto")
"""The files that come with the libraries, which no registry has."""


class SlowCompiler(UnusableSchema):
    """protoc has run out of time, as on a busy machine: the schema may be good."""


def file_of(schema: SchemaText) -> FileDescriptor:
    """The file that a schema describes, in a pool of its own with the files that it imports.

    Raises:
        UnusableSchema: it is no such schema, or it cannot be compiled.
        SlowCompiler: it is not compiled yet.
    """
    texts = {_MAIN: schema.text, **dict(zip(schema.reference_names, schema.references, strict=True))}
    if all(map(is_base64, texts.values())):
        files = [_parsed(name, text) for name, text in texts.items()]
    else:
        files = _compiled(texts)
    pool = descriptor_pool.DescriptorPool()
    remaining, added = {file.name: file for file in files}, set[str]()
    try:
        _add(_MAIN, remaining, added, pool)
        return pool.FindFileByName(_MAIN)
    except (TypeError, KeyError, ImportError) as error:
        raise UnusableSchema(f"a file that it needs is missing or wrong: {error!s:.300}") from None


def message_type(file: FileDescriptor, name: str | None) -> Descriptor:
    """A message type of a file by its full name, or the first one.

    Raises:
        UnusableSchema: there is no such type.
    """
    types = list(file.message_types_by_name.values())
    if name is None:
        if not types:
            raise UnusableSchema("it has no message type")
        return types[0]
    by_name = {kind.full_name: kind for outer in types for kind in _with_inner(outer)}
    if name not in by_name:
        raise UnusableSchema(unknown_name("message", name, list(by_name)))
    return by_name[name]


def message_at(file: FileDescriptor, path: Sequence[int]) -> Descriptor | None:
    """The message type at a path of positions; None if there is none."""
    types, message = list(file.message_types_by_name.values()), None
    for index in path:
        if not 0 <= index < len(types):
            return None
        message = types[index]
        types = list(message.nested_types)
    return message


def path_of(message: Descriptor) -> tuple[int, ...]:
    """The path of positions to a message type in its file."""
    outer = message.containing_type
    if outer is None:
        return (list(message.file.message_types_by_name.values()).index(message),)
    return (*path_of(outer), list(outer.nested_types).index(message))


def _with_inner(message: Descriptor) -> list[Descriptor]:
    return [message, *(kind for inner in message.nested_types for kind in _with_inner(inner))]


def _parsed(name: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text))
    except DecodeError as error:
        raise UnusableSchema(f"no file descriptor: {error}") from None
    file.name = name  # By this name others import it.
    return file


def _add(
    name: str,
    files: dict[str, descriptor_pb2.FileDescriptorProto],
    added: set[str],
    pool: descriptor_pool.DescriptorPool,
) -> None:
    """Add a file to a pool, those first that it imports."""
    if name in added:
        return
    added.add(name)
    if (file := files.get(name)) is None:
        file = _shipped(name)
    for imported in file.dependency:
        _add(imported, files, added, pool)
    pool.Add(file)


def _shipped(name: str) -> descriptor_pb2.FileDescriptorProto:
    """A file that comes with a library."""
    match = _SHIPPED.fullmatch(name)
    if match is None:
        raise KeyError(f"{name} is imported, and is not among the references of the schema")
    package = match[1].replace("/", ".")
    if package.startswith("confluent"):
        package = f"confluent_kafka.schema_registry.{package}"
    file = descriptor_pb2.FileDescriptorProto()
    importlib.import_module(f"{package}.{match[2]}_pb2").DESCRIPTOR.CopyToProto(file)
    return file


def _compiled(texts: dict[str, str]) -> list[descriptor_pb2.FileDescriptorProto]:
    """Have protoc compile the text of a file and of those that it imports."""
    if importlib.util.find_spec("grpc_tools") is None:
        raise UnusableSchema(
            "the registry returned the text of a .proto file, and protoc is missing: pip install grpcio-tools"
        )
    with tempfile.TemporaryDirectory(prefix="sowstream-proto-") as directory:
        for name, text in texts.items():
            _write(Path(directory), name, text)
        output = Path(directory, "set.pb")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={directory}", "--include_imports"]
        try:
            run = subprocess.run(
                [*command, f"--descriptor_set_out={output}", _MAIN],
                capture_output=True,
                text=True,
                timeout=PROTOC_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlowCompiler(f"protoc has not compiled it in {PROTOC_TIMEOUT_S:g} s") from None
        if run.returncode != 0:
            raise UnusableSchema(f"protoc refuses it: {run.stderr.strip():.300}")
        return list(descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file)


def _write(directory: Path, name: str, text: str) -> None:
    """Write the text of a file under its name; a registry's names stay in the directory."""
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise UnusableSchema(f"a reference by the name {name!r:.100}, which is no relative path")
    if is_base64(text):
        raise UnusableSchema(f"{name} is a descriptor and others are texts; register all of them in one way")
    file = directory / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


FILES_MAX: Final = 100
"""Most schemas of publishers of which the compiled file, or the problem, is kept."""


def registered_codec(options: CodecOptions) -> Codec:
    """The codec of a topic with `schema: {subject: NAME, message: full.Name}`; without `message`, the file's first one.

    Raises:
        ConfigurationError: there is no registry or no such subject, or its schema cannot be used.
        Stop: the registry does not answer.
    """
    max_depth = depth_limit(options.max_depth, "protobuf")
    registry, schema, where = open_topic_schema(options, "protobuf", "a descriptor set", "PROTOBUF")
    assert registry is not None
    assert schema.schema_id is not None, "only a subject leads here"
    assert options.schema is not None
    try:
        descriptor = message_type(file_of(schema), options.schema.message)
    except UnusableSchema as error:
        raise ConfigurationError(f"the schema of topic {options.topic!r}, {where}: {error}") from None
    frames = _Frames(registry, descriptor, schema.schema_id, may_wait=options.registry_wait_s is None)
    make = message_factory.GetMessageClass(descriptor)
    return (RegisteredWholeCodec if implicit_fields(descriptor) else RegisteredDeltaCodec)(make, max_depth, frames)


class _Frames:
    """The frames of the messages of one topic: its own, and those of its publishers."""

    def __init__(self, registry: Registry, message: Descriptor, schema_id: int, *, may_wait: bool) -> None:
        self.own = protobuf_frame(schema_id, path_of(message))
        self._registry, self._may_wait = registry, may_wait
        self._name = message.full_name
        self._files: dict[int | str, FileDescriptor | str] = {schema_id: message.file}
        self._problem = cached_by_text(self._find_problem)

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
        if frame != self.own and (problem := self._problem(frame)):
            raise RecordRejected("schema_mismatch", problem)

    def _find_problem(self, frame: bytes) -> str:
        schema, shown = framed_schema(self._registry, frame)
        file = self._file(schema, shown)
        if isinstance(file, str):
            return file
        path = path_in_frame(frame)
        message = message_at(file, path)
        if message is None:
            return f"schema {shown} has no message type at {list(path)!s:.100}"
        if message.full_name != self._name:
            return f"schema {shown} has {message.full_name} at {list(path)}; the topic's records are {self._name}"
        return ""

    def _file(self, schema: SchemaText, shown: int | str) -> FileDescriptor | str:
        """The file of a schema, or the reason why there is none; each is compiled once for all paths."""
        if (file := self._files.get(shown)) is not None:
            return file
        try:
            file = file_of(schema)
        except SlowCompiler as error:
            problem = f"schema {shown}: {error}, and will be asked again; give it more processor time: nothing is lost"
            raise Stop(problem) if self._may_wait else PartitionHeld("registry", problem) from None
        except UnusableSchema as error:
            file = f"schema {shown}: {error}"
        if len(self._files) >= FILES_MAX:
            self._files = {}
        self._files[shown] = file
        return file


class _RegisteredCodec(MessageCodec):
    """Framed messages: what a codec of one type of messages does, behind a frame that is checked and written."""

    uses_headers: ClassVar[bool] = True

    def __init__(self, make: Any, max_depth: int, frames: _Frames) -> None:
        """Take the class of the messages, how deep they may be nested, and their frames."""
        super().__init__(make, max_depth)
        self._frames = frames

    def decode(self, data: bytes) -> Value:
        """Parse a framed message.

        Raises:
            RecordRejected: `undecodable`, `too_deep`, `schema_not_found` or `schema_mismatch`.
            PartitionHeld, Stop: the registry does not answer, with the option `registry_wait_s` or without.
        """
        self._frames.check_message(data)
        return self.decode_own(data)

    def decode_own(self, data: bytes) -> Value:
        """Parse a stored message, of any version of the schema.

        One that is published whole has no frame where its publisher put that into a header.
        """
        return super().decode(data)  # type: ignore[safe-super] # of the class that is mixed in

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Value:  # noqa: ARG002
        """Parse a message by its frame or header `__value_schema_id`; errors as `decode`, and `bad_header`."""
        for name, value in headers:
            if name == SCHEMA_ID_HEADER:
                self._frames.check_header(value)
                break
        else:
            self._frames.check_message(data)
        return super().decode(data)  # type: ignore[safe-super] # as well

    def encode(self, value: Value) -> bytes:
        """Write a message, framed; a delta may lack required fields; errors as without a registry."""
        return self._frames.own + super().encode(value)  # type: ignore[safe-super] # as well


class RegisteredDeltaCodec(_RegisteredCodec, DeltaCodec):
    """Framed messages that distinguish an absent field from a default; a delta is a message with some of the fields."""


class RegisteredWholeCodec(_RegisteredCodec, WholeCodec):
    """Messages that are published whole, framed: the publisher's bytes are stored and forwarded."""
