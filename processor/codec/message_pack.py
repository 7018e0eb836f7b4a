"""MessagePack, by msgpack."""

from __future__ import annotations

from typing import Final

from processor.codec.contract import Codec, CodecOptions, empty_message, not_installed
from processor.codec.value_checks import check_depth, check_read_back, check_writable_depth, depth_limit, place_of_fault
from processor.errors import RecordRejected
from processor.record import Value

try:
    import msgpack
except ImportError as error:
    raise not_installed("msgpack", error) from error

_MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_PLACE_ITEMS_MAX: Final = 100_000
"""Most items that are read again to find the place of an error."""
_ARRAYS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))


class MsgpackCodec(Codec):
    """The message type `msgpack`.

    Binary is `bytes`; an extension is a `msgpack.ExtType`, a timestamp a `msgpack.Timestamp`, and both are written as
    they came. A float of 32 bits keeps its value and is written with 64. Map keys are text.
    """

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one that refuses messages nested deeper than the option `max_depth`."""
        self._max_depth = depth_limit((options or CodecOptions()).max_depth, "msgpack")

    def decode(self, data: bytes) -> Value:
        """Parse a message. Of a member that occurs twice, the last one counts.

        Raises:
            RecordRejected: `undecodable`, with the byte, or `too_deep`.
        """
        # No length in a message may promise more than the message has: msgpack's own limits follow from its size.
        try:
            value = _unpack(data)
        except msgpack.StackError:
            raise RecordRejected("too_deep", f"nested deeper than {self._max_depth} objects and arrays") from None
        except msgpack.ExtraData as error:
            raise RecordRejected("undecodable", f"not MessagePack: one item ends at byte {_end(data, error)}") from None
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            if not data:
                raise empty_message() from None
            said = str(error) or type(error).__name__
            raise RecordRejected("undecodable", f"not MessagePack: {said}, {_place(data)}") from None
        if len(data) > self._max_depth:
            check_depth(value, self._max_depth)
        return value

    def decode_own(self, data: bytes) -> Value:
        """Parse a message that `encode` wrote: its keys are text, and its depth was checked.

        Raises:
            RecordRejected: `undecodable` or `too_deep`; another program wrote it.
        """
        try:
            return msgpack.unpackb(data, strict_map_key=False, ext_hook=msgpack.ExtType)
        except (ValueError, TypeError, msgpack.UnpackException):
            return self.decode(data)  # It raises the error with its place.

    def encode(self, value: Value) -> bytes:
        """Write one message; a tuple is an array.

        Raises:
            TypeError: a part is not a value of MessagePack, such as an int beyond 64 bits or a map key that is no text,
                with its JSON Pointer; or it is nested deeper than `max_depth`.
        """
        try:
            data = _pack(value)
            back = _unpack(data)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{place_of_fault(value, _is_writable) or 'the message'}: {error}") from None
        if back != value:
            check_read_back(value, back)
        if len(data) > self._max_depth:
            check_writable_depth(back, self._max_depth)
        return data

    def encode_decoded(self, value: Value) -> bytes:
        """Write a value that consists of values that `decode` returned.

        Raises:
            TypeError: MessagePack does not have a part of it.
        """
        return _pack(value)


def _pack(value: Value) -> bytes:
    try:
        data: bytes = msgpack.packb(value)
    except (ValueError, OverflowError) as error:
        raise TypeError(f"MessagePack cannot write it: {error}") from None
    return data


def _unpack(data: bytes) -> Value:
    return msgpack.unpackb(data, strict_map_key=False, object_pairs_hook=_object, ext_hook=msgpack.ExtType)


def _is_writable(value: Value) -> bool:
    """Return whether a value is written, and read back as some value."""
    try:
        _unpack(_pack(value))
    except (TypeError, ValueError):
        return False
    return True


def _object(pairs: list[tuple[Value, Value]]) -> Value:
    """The members of a map, whose keys are text."""
    for name, _ in pairs:
        if type(name) is not str:
            raise ValueError(f"the map key {name!r:.50} is no text")
    return dict(pairs)


def _end(data: bytes, error: Value) -> int:
    """The byte after the first item."""
    return len(data) - len(error.extra)


def _place(data: bytes) -> str:
    """The byte at which the first item begins that cannot be read, found by reading it again, flat.

    A map key that is no text can be read: then it is the end, and the message names the key.
    """
    unpacker = msgpack.Unpacker(strict_map_key=False, ext_hook=msgpack.ExtType, max_buffer_size=len(data) + 1)
    unpacker.feed(data)
    for _ in range(_PLACE_ITEMS_MAX):
        at = unpacker.tell()
        if at >= len(data):
            return f"at byte {at}"
        try:
            if data[at] in _MAPS:
                unpacker.read_map_header()
            elif data[at] in _ARRAYS:
                unpacker.read_array_header()
            else:
                unpacker.unpack()
        except (ValueError, TypeError, msgpack.UnpackException):
            return f"at byte {at}"
    return f"behind byte {unpacker.tell()}"
