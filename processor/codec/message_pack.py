"""MessagePack, by msgpack."""

from __future__ import annotations

from typing import Final

from processor.codec.contract import Codec, CodecOptions
from processor.codec.depth import check_depth, depth_limit
from processor.codec.needs import not_installed
from processor.errors import RecordRejected
from processor.record import Value

try:
    import msgpack
except ImportError as error:
    raise not_installed("msgpack", error) from error

_MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
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
            value = msgpack.unpackb(data, strict_map_key=False, object_pairs_hook=_object, ext_hook=msgpack.ExtType)
        except msgpack.StackError:
            raise RecordRejected("too_deep", f"nested deeper than {self._max_depth} objects and arrays") from None
        except msgpack.ExtraData as error:
            raise RecordRejected("undecodable", f"not MessagePack: one item ends at byte {_end(data, error)}") from None
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            said = str(error) or type(error).__name__
            raise RecordRejected("undecodable", f"not MessagePack: {said}, at byte {_place(data)}") from None
        if len(data) > self._max_depth:
            check_depth(value, self._max_depth)
        return value

    def encode(self, value: Value) -> bytes:
        """Write one message.

        Raises:
            TypeError: not a value of MessagePack, an int beyond 64 bits, a map key that is no text.
        """
        _check_names(value)
        try:
            data: bytes = msgpack.packb(value)
        except (ValueError, OverflowError) as error:
            raise TypeError(f"MessagePack cannot write it: {error}") from None
        return data


def _object(pairs: list[tuple[Value, Value]]) -> Value:
    """The members of a map, whose keys are text."""
    for name, _ in pairs:
        if type(name) is not str:
            raise ValueError(f"the map key {name!r:.50} is no text")
    return dict(pairs)


def _check_names(value: Value) -> None:
    """Refuse what would be written and could not be read again."""
    level = [value]
    while level:
        below: list[Value] = []
        for item in level:
            if isinstance(item, dict):
                for name in item:
                    if not isinstance(name, str):
                        raise TypeError(f"the map key {name!r:.50} is no text")
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = below


def _end(data: bytes, error: Value) -> int:
    """The byte after the first item."""
    return len(data) - len(error.extra)


def _place(data: bytes) -> int:
    """The byte at which the first item begins that cannot be read, found by reading it again, flat.

    A map key that is no text can be read: then it is the end, and the message names the key.
    """
    unpacker = msgpack.Unpacker(strict_map_key=False, ext_hook=msgpack.ExtType, max_buffer_size=len(data) + 1)
    unpacker.feed(data)
    while (at := unpacker.tell()) < len(data):
        try:
            if data[at] in _MAPS:
                unpacker.read_map_header()
            elif data[at] in _ARRAYS:
                unpacker.read_array_header()
            else:
                unpacker.unpack()
        except (ValueError, TypeError, msgpack.UnpackException):
            break
    return int(at)
