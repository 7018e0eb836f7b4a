"""Composite messages: parts of any message types, each after its length in four bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from processor.codec.contract import Codec, CodecOptions, empty_message, load_codec
from processor.codec.value_checks import depth_limit
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Value
from processor.values.kinds import FieldType

_LENGTH_BYTES: Final = 4  # big-endian
_COMPOSITES: Final = ("composite-local", "composite-global")


class CompositeLocalCodec(Codec):
    """The message type `composite-local`: `{"0": …, "1": …}`, each part a value of its own type.

    A part of length zero is absent: unchanged in a delta, not there in a whole message. Missing parts at the end are
    absent too. A part whose type cannot do deltas is its bytes, and is replaced whole.
    """

    completes: ClassVar[bool] = True
    message_type: ClassVar[str] = "composite-local"
    has_opaque_parts: ClassVar[bool] = True
    """True if parts of types without deltas are kept as their bytes."""

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one with the option `parts`.

        Raises:
            ConfigurationError: no parts, a composite among them, a type that needs headers for its deltas, or what a
                part's type refuses.
        """
        options = options or CodecOptions()
        if not options.parts:
            raise ConfigurationError(f"{self.message_type} needs `parts`, the message types of its parts in order")
        depth_limit(options.max_depth - 1, f"{self.message_type}, which is a level itself, with 1 less,")
        part_options = replace(options, max_depth=options.max_depth - 1, parts=())
        self._parts: list[tuple[str, Codec]] = []
        for index, part in enumerate(options.parts):
            if part in _COMPOSITES:
                raise ConfigurationError(f"parts: part {index} is {part}; a composite in a composite is not supported")
            codec = load_codec(part, part_options)
            if codec.uses_headers and self.can_delta:
                raise ConfigurationError(
                    f"parts: part {index} is {part}, whose deltas need headers of their own; use composite-global"
                )
            self._parts.append((str(index), codec))

    def decode(self, data: bytes) -> Value:
        """Parse every part.

        Raises:
            RecordRejected: `undecodable`, with the byte or the part; errors of a part's type.
        """
        if not data:
            raise empty_message()
        record: Value = {}
        at = 0
        for name, codec in self._parts:
            if at == len(data):
                break
            begin = at + _LENGTH_BYTES
            at = begin + int.from_bytes(data[at:begin], "big")
            if at > len(data) or begin > len(data):
                raise RecordRejected(
                    "undecodable", f"part {name} at byte {begin - _LENGTH_BYTES} is longer than the message"
                )
            if begin == at:
                continue
            part = data[begin:at]
            try:
                value = codec.decode(part)
            except RecordRejected as error:
                raise RecordRejected(error.reason, f"part {name} at byte {begin}: {error.detail}") from None
            record[name] = part if self._is_opaque(codec) else value
        if at < len(data):
            raise RecordRejected("undecodable", f"{len(data) - at} bytes too many after the last part, at byte {at}")
        return record

    def encode(self, value: Value) -> bytes:
        """Write every part, those that are not in the value with length zero.

        Raises:
            TypeError: not an object of parts; values that a part's type refuses; a part with an empty message.
        """
        return self._encode(value, is_decoded=False)

    def encode_decoded(self, value: Value) -> bytes:
        """Write every part as its own type writes decoded values; errors as `encode`."""
        return self._encode(value, is_decoded=True)

    def _encode(self, value: Value, *, is_decoded: bool) -> bytes:
        if type(value) is not dict:
            raise TypeError(f"a composite record is an object of parts; this is {type(value).__name__}")
        written = []
        for name, codec in self._parts:
            part = self._part(name, codec, value[name], is_decoded=is_decoded) if name in value else b""
            written.append(len(part).to_bytes(_LENGTH_BYTES, "big") + part)
        if unknown := [name for name in value if name not in {known for known, _ in self._parts}]:
            raise TypeError(f"/{unknown[0]} is no part; there are {len(self._parts)}, from 0")
        return b"".join(written)

    def complete(self, record: Value) -> bool:
        """Let each part that merges complete its value.

        Raises:
            RecordRejected: errors of a part's type.
        """
        has_lost = False
        for name, codec in self._parts:
            if type(part := record.get(name)) is dict:
                has_lost |= codec.complete(part)
        return has_lost

    def field_type(self, path: tuple[str, ...]) -> FieldType:
        """The type of a field of a part, by the part's codec; a part of a type without deltas is bytes."""
        for name, codec in self._parts:
            if name == path[0]:
                if self._is_opaque(codec):
                    return FieldType(frozenset(("bytes",)) if len(path) == 1 else frozenset())
                return codec.field_type(path[1:]) if len(path) > 1 else FieldType()
        return FieldType(frozenset())

    def _part(self, name: str, codec: Codec, value: Value, *, is_decoded: bool) -> bytes:
        try:
            if self._is_opaque(codec) and isinstance(value, bytes):
                part = value
            else:
                part = codec.encode_decoded(value) if is_decoded else codec.encode(value)
        except TypeError as error:
            problem = str(error)
            raise TypeError(f"/{name}{problem}" if problem.startswith("/") else f"/{name}: {problem}") from None
        if not part:
            raise TypeError(f"/{name} would be written with no bytes, which means that it is absent; leave it out")
        return part

    def _is_opaque(self, codec: Codec) -> bool:
        return self.has_opaque_parts and not codec.can_delta


class CompositeGlobalCodec(CompositeLocalCodec):
    """The message type `composite-global`: full messages; every part is parsed, for keys and filters."""

    message_type: ClassVar[str] = "composite-global"
    has_opaque_parts: ClassVar[bool] = False
    can_delta: ClassVar[bool] = False
