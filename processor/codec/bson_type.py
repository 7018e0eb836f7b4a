"""BSON, by the package bson that comes with pymongo."""

from __future__ import annotations

from datetime import UTC
from typing import Final

from processor.codec.contract import Codec, CodecOptions, empty_message, not_installed
from processor.codec.value_checks import (
    Wrappers,
    check_depth,
    check_read_back,
    check_writable_depth,
    depth_limit,
    place_of_fault,
)
from processor.errors import RecordRejected
from processor.record import Value

try:
    import bson
    from bson.binary import UuidRepresentation
    from bson.code import Code
    from bson.codec_options import CodecOptions as BsonOptions
    from bson.codec_options import DatetimeConversion
    from bson.dbref import DBRef
    from bson.errors import BSONError
except ImportError as error:
    raise not_installed("bson", error) from error

_OPTIONS: Final = BsonOptions(
    document_class=dict,
    tz_aware=True,
    tzinfo=UTC,
    uuid_representation=UuidRepresentation.STANDARD,
    # A date outside of Python's years is a DatetimeMS instead of an error.
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
_WRAPPERS: Final[Wrappers] = {
    DBRef: lambda reference: list(reference.as_doc().values()),
    Code: lambda code: code.scope,  # None without one.
}
"""Documents that the package makes values of classes of its own, with any documents in them."""


class BsonCodec(Codec):
    """The message type `bson`: one document.

    Its types are those of the package bson, written as they came: `ObjectId`, `Int64` beside `int`, `Decimal128`,
    `Binary`, `Regex`, `Timestamp`, `MinKey`. A date is a `datetime` in UTC, of milliseconds; a binary of subtype 0 is
    `bytes`, of subtype 4 a `UUID`. The types that BSON itself has given up become their successors: undefined null,
    symbol text, DBPointer `DBRef`. `_id` is written first.
    """

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one that refuses documents nested deeper than the option `max_depth`."""
        self._max_depth = depth_limit((options or CodecOptions()).max_depth, "bson")

    def decode(self, data: bytes) -> Value:
        """Parse a document. Of a member that occurs twice, the last one counts.

        Raises:
            RecordRejected: `undecodable`, with the place, as far as the parser knows it, or `too_deep`.
        """
        try:
            value = bson.decode(data, codec_options=_OPTIONS)
        except (BSONError, RecursionError, ValueError, TypeError, ArithmeticError) as error:
            if not data:
                raise empty_message() from None
            if "recursion" in str(error):  # The package makes it one of its own errors.
                raise RecordRejected("too_deep", f"nested deeper than {self._max_depth} objects and arrays") from None
            raise RecordRejected("undecodable", f"not BSON: {error} (of {len(data)} bytes)") from None
        if len(data) > 5 * self._max_depth:  # No document is smaller than 5 bytes.
            check_depth(value, self._max_depth, _WRAPPERS)
        return value

    def decode_own(self, data: bytes) -> Value:
        """Parse a document that `encode` wrote: its depth was checked.

        Raises:
            RecordRejected: `undecodable` or `too_deep`; another program wrote it.
        """
        try:
            return bson.decode(data, codec_options=_OPTIONS)
        except (BSONError, RecursionError, ValueError, TypeError, ArithmeticError):
            return self.decode(data)  # It raises the error with its place.

    def encode(self, value: Value) -> bytes:
        """Write one document; a tuple is an array.

        Raises:
            TypeError: not a document, or BSON does not hold a part of it exactly, such as an int beyond 64 bits, a date
                of microseconds or one without a time zone, with its JSON Pointer; or it is deeper than `max_depth`.
        """
        try:
            data = _write(value)
            back = bson.decode(data, codec_options=_OPTIONS)
        except (TypeError, ValueError, BSONError) as error:
            raise TypeError(f"{place_of_fault(value, _is_writable) or 'the message'}: {error}") from None
        if back != value:
            check_read_back(value, back)
        if len(data) > 5 * self._max_depth:
            check_writable_depth(back, self._max_depth, _WRAPPERS)
        return data

    def encode_decoded(self, value: Value) -> bytes:
        """Write a document that consists of values that `decode` returned.

        Raises:
            TypeError: not a document, or BSON has no type for a part of it.
        """
        return _write(value)


def _write(value: Value) -> bytes:
    if not isinstance(value, dict):
        raise TypeError(f"a BSON record is a document; this is {type(value).__name__}")
    try:
        return bson.encode(value, codec_options=_OPTIONS)
    except (BSONError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"BSON cannot write it: {error}") from None


def _is_writable(value: Value) -> bool:
    """Return whether a value is written as a member of a document, and read back as some value."""
    try:
        bson.decode(_write({"": value}), codec_options=_OPTIONS)
    except (TypeError, ValueError, BSONError):
        return False
    return True
