"""NVFIX and FIX: `name=value` and `tag=value` pairs, each ended by a separator; all values are text."""

from __future__ import annotations

import codecs
import re
from codecs import BOM_UTF8
from typing import ClassVar, Final

from processor.codec.contract import Codec, CodecOptions, empty_message
from processor.codec.value_checks import text_of
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Value
from processor.values import cached_by_text

MESSAGE_ENCODING: Final = "347"
"""The tag MessageEncoding: the character set of a message's texts."""

DATA_TAGS: Final = {
    "90": "91", "93": "89", "95": "96", "212": "213", "348": "349", "350": "351", "352": "353", "354": "355",
    "356": "357", "358": "359", "360": "361", "362": "363", "364": "365", "445": "446", "618": "619", "621": "622",
    "1184": "1185", "1277": "1278", "1280": "1281", "1282": "1283", "1359": "1360", "1397": "1398", "1401": "1402",
    "1403": "1404", "1468": "1469", "1618": "1619", "1620": "1621",
}  # fmt: skip
"""The data fields of FIX 4.0 to 5.0 SP2, by the tag of the field in front of each, which has its length in bytes."""

LENGTH_TAGS: Final = {data: length for length, data in DATA_TAGS.items()}
"""The same the other way round."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,39}", re.ASCII)
_ASCII: Final = (rb"\u0061", bytes(range(0x20, 0x7F)) + b"\x01\t\r\n")


@cached_by_text
def python_encoding(name: str) -> str | None:
    """Python's name of a character set by the value of tag 347, such as `ISO-8859-1`; None if it cannot be used.

    An encoding of messages leaves ASCII as it is, as tags and separators are ASCII: UTF-16 and UTF-7 are none.
    """
    if _NAME.fullmatch(name) is None:
        return None
    try:
        info = codecs.lookup(name)
        is_ascii = all(data.decode(info.name) == data.decode("ascii") for data in _ASCII)
        is_ascii = is_ascii and "a".encode(info.name) == b"a"  # And not a byte order mark in front.
    except (LookupError, ValueError, TypeError):
        return None
    return info.name if is_ascii and info.name != "idna" else None


def encoded(text: str, encoding: str) -> bytes:
    """A text in an encoding, from which it is read back as it was: some of Python's write ¥ as a backslash.

    Raises:
        UnicodeEncodeError: with the first character that the encoding lacks.
    """
    data = text.encode(encoding)
    if encoding != "utf-8" and (back := data.decode(encoding, "replace")) != text:
        place = next((place for place, pair in enumerate(zip(text, back, strict=False)) if pair[0] != pair[1]), 0)
        raise UnicodeEncodeError(encoding, text, place, place + 1, "it is read back as another one")
    return data


def encoded_beginning(text: str, size: int, encoding: str) -> str | None:
    """The beginning of a text that has so many bytes in an encoding; None if there is none."""
    part = text[:size]  # A character has a byte at least.
    data = part.encode(encoding)
    if len(data) == size:
        return part
    try:
        return data[:size].decode(encoding) if len(data) > size else None
    except UnicodeDecodeError:
        return None


_BYTE_ORDER_MARK: Final = "\ufeff"
_LENGTH_DIGITS_MAX: Final = 9


class NvfixCodec(Codec):
    """The message type `nvfix`.

    A record is an object of texts. A name that occurs several times is an array, in order, and is written again where
    it first stood: the fields of repeating groups survive, the way in which they were interleaved does not. An array of
    one is written as its value. An empty value is a value; there is no null. A byte order mark is skipped.
    """

    kind: ClassVar[str] = "name"
    """The noun for the text before the `=`."""
    data_names: ClassVar[dict[str, str]] = {}
    """The fields that may hold the separator, by the field in front of each that has its length in bytes."""
    length_names: ClassVar[dict[str, str]] = {}
    """The same the other way round."""

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one with the option `separator`.

        Raises:
            ConfigurationError: a separator that a name may hold, or `=`.
        """
        self._separator = (options or CodecOptions()).separator
        if self._separator == "=" or self._is_name(self._separator):
            raise ConfigurationError(f"separator is {self._separator!r}, which stands in fields; use \\x01 or |")

    def decode(self, data: bytes) -> Value:
        """Parse a message; the last separator may be missing.

        Raises:
            RecordRejected: `undecodable`, with the byte.
        """
        text = self._text(data, "utf-8")
        record = self._record(text, "utf-8")
        if _has_foreign(text) and (name := _foreign_name(record)) is not None:
            raise RecordRejected("undecodable", f"the name {name!r:.50} is of UTF-16, or has a byte order mark")
        return record

    def decode_own(self, data: bytes) -> Value:
        """Parse a message that `encode` wrote; only there an empty one is a record without fields."""
        return self.decode(data) if data else {}

    def encode(self, value: Value) -> bytes:
        """Write a message, with a separator after each field, the last one too.

        Raises:
            TypeError: not an object of texts and numbers, or arrays of them; a text that holds the separator.
        """
        data = self._written(value, "utf-8")
        if (b"\0" in data or BOM_UTF8 in data) and (name := _foreign_name(value)) is not None:
            raise TypeError(f"/{name} cannot be a field: {name!r} is no {self.kind}")
        return data

    def _text(self, data: bytes, encoding: str, hint: str = "") -> str:
        """The text of a message, without a byte order mark."""
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            raise RecordRejected(
                "undecodable", f"not {encoding.upper()}: {error.reason} at byte {error.start}{hint}"
            ) from None
        text = text.removeprefix(_BYTE_ORDER_MARK)
        if not text:
            raise empty_message()
        return text

    def _record(self, text: str, encoding: str, *, has_data: bool = True) -> Value:
        """The fields of a message; `has_data` is False for one that was written before data fields were known."""
        record: Value = {}
        data_names = self.data_names if has_data else {}
        fields = text.split(self._separator)
        if not fields[-1]:
            fields.pop()
        for index, field in enumerate(fields):
            name, equals, value = field.partition("=")
            if name in data_names:
                self._read_rest(record, text, len("".join(fields[:index])) + index, encoding)
                return record
            if not equals or not self._is_field_name(name):
                raise self._no_field(field, self._separator.join([*fields[:index], ""]), encoding)
            if name not in record:
                record[name] = value
            else:
                _append(record, name, value)
        return record

    def _read_rest(self, record: Value, text: str, at: int, encoding: str) -> None:
        """Add the fields from a place on, where data fields are: their lengths are left out, as writing makes them."""
        separator, data_names = self._separator, self.data_names
        while at < len(text):
            end = text.find(separator, at)
            end = len(text) if end < 0 else end
            name, equals, value = text[at:end].partition("=")
            if not equals or not self._is_field_name(name):
                raise self._no_field(text[at:end], text[:at], encoding)
            begin = end + len(f"{separator}{data_names.get(name)}=")
            if name in data_names and _is_length(value) and text[end + 1 : begin] == f"{data_names[name]}=":
                size, name = int(value), data_names[name]
                data = encoded_beginning(text[begin : begin + size], size, encoding)
                if data is None or text[begin + len(data) : begin + len(data) + 1] not in ("", separator):
                    place = len(text[:begin].encode(encoding))
                    raise RecordRejected(
                        "undecodable", f"{self.kind} {name} at byte {place} does not end after {size} bytes, as "
                        f"{self.kind} {self.length_names[name]} says"
                    )  # fmt: skip
                value, end = data, begin + len(data)
            if name not in record:
                record[name] = value
            else:
                _append(record, name, value)
            at = end + 1

    def _no_field(self, field: str, before: str, encoding: str) -> RecordRejected:
        place = len(before.encode(encoding))
        return RecordRejected("undecodable", f"expected {self.kind}=value at byte {place}; it is {field!r:.50}")

    def _written(self, value: Value, encoding: str) -> bytes:
        """A message in an encoding."""
        if type(value) is not dict:
            raise TypeError(f"a record is an object; this is {type(value).__name__}")
        separator, length_names = self._separator, self.length_names
        written = []
        try:
            for name, member in value.items():
                if type(name) is not str or not self._is_field_name(name) or separator in name or "=" in name:
                    raise TypeError(f"/{name} cannot be a field: {name!r} is no {self.kind}")
                if type(member) is list and not member:
                    raise TypeError(f"/{name} is an empty array, which cannot be written; leave it out")
                for item in member if type(member) is list else (member,):
                    text = text_of(item, f"/{name}")
                    if name in length_names:
                        written.append(f"{length_names[name]}={len(text.encode(encoding))}{separator}")
                    elif separator in text:
                        raise TypeError(f"/{name} holds the separator {separator!r}")
                    written.append(f"{name}={text}{separator}")
            return encoded("".join(written), encoding)
        except UnicodeEncodeError as error:
            before = f"{error.object[: error.start][-50:]!r} …"
            if encoding == "utf-8":
                raise TypeError(f"half a surrogate pair is no text: {before}") from None
            raise TypeError(f"{encoding} has no {error.object[error.start]!r}: {before}") from None

    def _is_field_name(self, name: str) -> bool:
        """Return whether it may stand before the `=`."""
        return bool(name)

    def _is_name(self, separator: str) -> bool:  # noqa: ARG002
        """True if a separator would be taken for a part of a name."""
        return False


class FixCodec(NvfixCodec):
    """The message type `fix`: names are tags, digits only.

    Tag 347 (MessageEncoding) says in which character set a message is read, and a record with it is written; without
    it, that is UTF-8. A data field, such as 355 (EncodedText), has as many bytes as the field in front of it says
    (354), and may hold the separator. A record has no such length: writing makes it.

    Nothing else of FIX's own rules is checked or made: 9 (BodyLength) and 10 (CheckSum) are fields like others, and a
    merged record has those of the message that brought them.
    """

    kind = "tag"
    data_names = DATA_TAGS
    length_names = LENGTH_TAGS

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one; errors as of `nvfix`."""
        super().__init__(options)
        separator = re.escape(self._separator.encode())
        self._encoding_field = re.compile(rb"(?:\A|%b)347=(.*?)(?:%b|\Z)" % (separator, separator), re.DOTALL)

    def decode(self, data: bytes) -> Value:
        """Parse a message in the encoding that its tag 347 names.

        Raises:
            RecordRejected: as of `nvfix`; tag 347 is in the data of another field.
        """
        field = self._encoding_field.search(data) if b"347=" in data else None
        if field is None:
            hint = "; in another encoding a message says so in tag 347 (MessageEncoding)"
            return self._record(self._text(data, "utf-8", hint), "utf-8")
        name = field[1].decode("ascii", "replace")
        encoding = python_encoding(name)
        hint = "" if encoding else f", and tag 347 names no encoding that is known: {name!r:.50}"
        record = self._record(self._text(data, encoding or "ascii", hint), encoding or "ascii")
        if _first(record.get(MESSAGE_ENCODING)) != name:
            raise RecordRejected("undecodable", f"tag 347 at byte {field.start()} is in the data of another field")
        return record

    def decode_own(self, data: bytes) -> Value:
        """Parse a message that `encode` wrote, also before it knew encodings and data fields."""
        try:
            return super().decode_own(data)
        except RecordRejected as error:
            try:
                return self._record(data.decode(), "utf-8", has_data=False)
            except (UnicodeDecodeError, RecordRejected):
                raise error from None

    def encode(self, value: Value) -> bytes:
        """Write a message in the encoding that its tag 347 names.

        Raises:
            TypeError: as of `nvfix`; the encoding lacks a character; tag 347 would be read from another field; a length
                that would be written twice.
        """
        data = self.encode_decoded(value)
        for length, name in DATA_TAGS.items():
            if length in value and name in value:
                raise TypeError(f"/{length} is the length of /{name}, and is written with it: leave it out")
        return data

    def encode_decoded(self, value: Value) -> bytes:
        """Write a message of values that `decode` returned; errors as `encode`."""
        name = _first(value.get(MESSAGE_ENCODING)) if type(value) is dict else None
        encoding = "utf-8" if name is None else python_encoding(str(name)) or "ascii"
        data = self._written(value, encoding)
        field = self._encoding_field.search(data) if b"347=" in data else None
        if (None if field is None else field[1].decode("ascii", "replace")) != (None if name is None else str(name)):
            raise TypeError(f"in {encoding.upper()}, tag 347 would be read in the data of another field")
        return data

    def _is_field_name(self, name: str) -> bool:
        return name.isascii() and name.isdigit()

    def _is_name(self, separator: str) -> bool:
        return self._is_field_name(separator)


def _has_foreign(text: str) -> bool:
    """Return whether a text has a character that no name has."""
    return "\0" in text or _BYTE_ORDER_MARK in text


def _foreign_name(record: Value) -> str | None:
    """The first name with NUL, as those of a message in UTF-16 have, or with a byte order mark in front."""
    return next((name for name in record if "\0" in name or name[0] == _BYTE_ORDER_MARK), None)


def _append(record: Value, name: str, value: str) -> None:
    """Add another value of a field that a record has."""
    if type(record[name]) is list:
        record[name].append(value)
    else:
        record[name] = [record[name], value]


def _is_length(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= _LENGTH_DIGITS_MAX


def _first(value: Value) -> Value:
    """The first value of a field that may be repeated."""
    return value[0] if type(value) is list and value else value
