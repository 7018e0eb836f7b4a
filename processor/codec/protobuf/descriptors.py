"""Descriptors of the Protocol Buffers schemas of a registry: parsed, or compiled by protoc where they are texts."""

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
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError

from processor.codec.schema_registry.schemas import Found, is_base64
from processor.codec.schema_registry.topic_schema import UnusableSchema
from processor.config.suggestions import unknown_name

PROTOC_TIMEOUT_S: Final = 30.0
"""Longest run of protoc for one schema."""
_MAIN: Final = "sowstream_main_schema.proto"
_SHIPPED: Final = re.compile(r"(google/(?:protobuf|type)|confluent(?:/types?)?)/(\w+)\.proto")
"""The files that come with the libraries, which no registry has."""


def file_of(found: Found) -> FileDescriptor:
    """The file that a schema describes, in a pool of its own with the files that it imports.

    Raises:
        UnusableSchema: it is no such schema, or it cannot be compiled.
    """
    texts = {_MAIN: found.text, **dict(zip(found.reference_names, found.references, strict=True))}
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
    known = {kind.full_name: kind for outer in types for kind in _with_inner(outer)}
    if name not in known:
        raise UnusableSchema(unknown_name("message", name, list(known)))
    return known[name]


def message_at(file: FileDescriptor, path: Sequence[int]) -> Descriptor | None:
    """The message type at a path of positions; None if there is none."""
    types, found = list(file.message_types_by_name.values()), None
    for index in path:
        if not 0 <= index < len(types):
            return None
        found = types[index]
        types = list(found.nested_types)
    return found


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
            raise UnusableSchema(f"protoc has not compiled it in {PROTOC_TIMEOUT_S:g} s") from None
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
