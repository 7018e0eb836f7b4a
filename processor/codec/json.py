"""JSON, by orjson; the rare number that orjson would round takes an exact, slower way."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Final

import orjson

from processor.codec import exact
from processor.codec.contract import Codec, CodecOptions, JsonText, empty_message
from processor.codec.frame import SCHEMA_ID_HEADER, frame_size, without_frame
from processor.codec.json_value import json_value
from processor.codec.value_checks import DEPTH_MAX, check_depth
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Value
from processor.values.kinds import FieldType

_BETWEEN: Final = b",null,"
"""The separator of messages that are parsed together."""

_ANY_NUMBER: Final = FieldType(any_number=True)

_NO_BRACKETS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[^][{}"]+', re.DOTALL)
_LEVELS: Final = {"{": 1, "[": 1, "}": -1, "]": -1}


class JsonCodec(Codec):
    """The message type `json`.

    Numbers are `int` within 64 bits and `float` otherwise, as long as that changes nothing. One that neither holds,
    such as 18446744073709551616 or 0.1234567890123456789, is a `decimal.Decimal`, and is written with all its digits.

    The frame of Confluent's JSON Schema serializer is skipped. Nothing is written with a frame, and the header that may
    stand for one does not travel on: merged values need not be of the publisher's schema.
    """

    header_names: ClassVar[frozenset[str]] = frozenset((SCHEMA_ID_HEADER,))

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one that refuses messages nested deeper than the option `max_depth`, in objects and arrays.

        Raises:
            ConfigurationError: deeper than can be written.
        """
        max_depth = (options or CodecOptions()).max_depth
        if not 1 <= max_depth <= DEPTH_MAX:
            raise ConfigurationError(f"max_depth is {max_depth}; JSON takes 1 to {DEPTH_MAX}")
        self.max_depth = max_depth
        # A level takes an opening and a closing byte: what is shorter than this cannot be too deep.
        self._shallow_bytes = 2 * max_depth + 1
        # A subclass that reads one message its own way reads many so, too.
        self._reads_together = type(self).decode_own is JsonCodec.decode_own
        if type(self) is JsonCodec:
            self.json_text = JsonText(orjson.loads, orjson.dumps, exact.survives, max_depth)

    def decode(self, data: bytes) -> Value:
        """Parse a message that anybody may have written. Of a member that occurs twice, the last one counts.

        Raises:
            RecordRejected: `undecodable`, with line and column, or `too_deep`.
        """
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            return self._framed(data) if frame_size(data) else self._refused(data, error)
        if len(data) > self._shallow_bytes:
            self._check_depth(data, value)
        # What is written as it was read has lost nothing: one comparison settles it for every compact publisher.
        written = orjson.dumps(value)
        if written != data and not exact.survives(data, written):
            return _exact(data)
        return value

    def decode_own(self, data: bytes) -> Value:
        """Parse a message that `encode` wrote.

        Raises:
            RecordRejected: `undecodable`; another program wrote it.
        """
        if data and data[-1] == exact.MARK:
            return _exact(data)
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise RecordRejected("undecodable", f"not JSON: {error}") from None

    def decode_own_many(self, messages: Sequence[bytes]) -> list[Value]:
        """Parse messages that `encode` wrote; together, as one array with a null between each two and the next.

        Raises:
            RecordRejected: `undecodable`: one of them is.
        """
        between = len(messages) - 1
        joined = _BETWEEN.join(messages)
        # Bad messages may be a good text together: `1],[2`, or `{"a":[1` and `2]}`, with a `{},{}` to make up for the
        # one too few. Not where no message says null, and each of our nulls became an element of the array: then there
        # is at least one value between any two of them, and as there are no more values than messages, just one.
        is_safe = joined.count(b"null") == between and b" ,null," not in joined and joined[-1:] != b" "
        if is_safe and self._reads_together:
            try:
                found: list[Value] = orjson.loads(b"[%b]" % joined)
            except orjson.JSONDecodeError:
                found = []  # One by one, then; a message may also be too deep for an array, and for nothing else.
            if len(found) == between + 1 + between and found[1::2].count(None) == between:
                return found[::2]
        return list(map(self.decode_own, messages))

    def encode(self, value: Value) -> bytes:
        """Write one message, compact, members in their order; a tuple is an array, an int may have any length.

        orjson writes NaN as null, and dates, UUIDs, enums and dataclasses as something else. So the text is read
        again, at the speed of C: only where that is not the value it is gone through.

        Raises:
            TypeError: JSON does not have a part of it, with its JSON Pointer, or it is nested deeper than `max_depth`.
        """
        try:
            data = orjson.dumps(value)
            back = orjson.loads(data)
            if back == value:
                self._check_writable_depth(data, back)
                return b"".join((data, b""))
        except orjson.JSONEncodeError:
            pass
        plain = json_value(value)
        data = _write(plain)
        self._check_writable_depth(data, plain)
        return data

    def encode_decoded(self, value: Value) -> bytes:
        """Write a value that consists of values that `decode` returned, which has no NaN; errors as `encode`."""
        return _write(value)

    def _framed(self, data: bytes) -> Value:
        """Parse a message behind Confluent's frame."""
        message = without_frame(data)
        skipped = len(data) - len(message)
        if frame_size(message):
            raise RecordRejected("undecodable", f"not JSON: byte {message[0]:02x} after a frame of {skipped} bytes")
        try:
            return self.decode(message)
        except RecordRejected as error:
            raise RecordRejected(error.reason, f"after a frame of {skipped} bytes: {error.detail}") from None

    def field_type(self, path: tuple[str, ...]) -> FieldType:  # noqa: ARG002
        """Any value; a number keeps every digit."""
        return _ANY_NUMBER

    def _refused(self, data: bytes, error: orjson.JSONDecodeError) -> Value:
        """The value after all, where only the size of a number or a byte order mark was wrong; else the reason."""
        if not data.strip():
            raise empty_message() from None
        if data.startswith(BOM_UTF8) and not data.startswith(BOM_UTF8 * 2):
            return self.decode(data[len(BOM_UTF8) :])
        # Measured, as each version of orjson names it in its own words, and some run out of memory first.
        if data.count(b"{") + data.count(b"[") > self.max_depth and _depth(error.doc[: error.pos]) > self.max_depth:
            raise RecordRejected("too_deep", f"nested deeper than {self.max_depth} objects and arrays") from None
        if not error.msg.startswith("number is infinity"):
            raise RecordRejected("undecodable", f"not JSON: {error}") from None
        value = _exact(data)
        self._check_depth(data, value)
        try:
            self.encode_decoded(value)
        except TypeError as unwritable:
            # Python reads half a surrogate pair, which is no text and cannot be written.
            raise RecordRejected("undecodable", f"not JSON: {unwritable}") from None
        return value

    def _check_writable_depth(self, data: bytes, value: Value) -> None:
        """Refuse to write a value too deep to be read."""
        if len(data) > self._shallow_bytes:
            try:
                self._check_depth(data, value)
            except RecordRejected as error:
                raise TypeError(error.detail) from None

    def _check_depth(self, data: bytes, value: Value) -> None:
        """Refuse a value that is too deep; few messages have so many brackets that they need a walk."""
        if data.count(b"{") + data.count(b"[") > self.max_depth:
            check_depth(value, self.max_depth)


def _write(value: Value) -> bytes:
    try:
        # Joined, it is a copy of its own size: what orjson 3.13 returns keeps a page of memory, however short.
        return b"".join((orjson.dumps(value), b""))
    except orjson.JSONEncodeError:
        pass
    try:
        return exact.dumps(value)
    except TypeError:
        return exact.dumps(json_value(value))


def _depth(text: str) -> int:
    """The deepest nesting in the beginning of a text, in brackets that are not in a string."""
    return max(accumulate(map(_LEVELS.__getitem__, _NO_BRACKETS.sub("", text))), default=0)


def _exact(data: bytes) -> Value:
    """Parse with every digit kept."""
    try:
        return exact.loads(data)
    except RecursionError:
        raise RecordRejected("too_deep", "nested deeper than can be read") from None
    except ValueError as error:
        raise RecordRejected("undecodable", f"not JSON: {error}") from None
