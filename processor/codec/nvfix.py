"""NVFIX and FIX: `name=value` and `tag=value` pairs, each ended by a separator; all values are text."""

from __future__ import annotations

from processor.codec.contract import Codec, CodecOptions
from processor.codec.text_value import text_of
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Value


class NvfixCodec(Codec):
    """The message type `nvfix`.

    A record is an object of texts. A name that occurs several times is an array, in order, and is written again where
    it first stood: the fields of repeating groups survive, the way in which they were interleaved does not. An array of
    one is written as its value. An empty value is a value; there is no null.
    """

    kind = "name"
    """The noun for the text before the `=`."""

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
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise RecordRejected("undecodable", f"not UTF-8: {error.reason} at byte {error.start}") from None
        record: Value = {}
        fields = text.split(self._separator)
        if not fields[-1]:
            fields.pop()
        for index, field in enumerate(fields):
            name, equals, value = field.partition("=")
            if not equals or not self._is_field_name(name):
                place = len(self._separator.join([*fields[:index], ""]).encode())
                raise RecordRejected("undecodable", f"expected {self.kind}=value at byte {place}; it is {field!r:.50}")
            if name not in record:
                record[name] = value
            elif type(record[name]) is list:
                record[name].append(value)
            else:
                record[name] = [record[name], value]
        return record

    def encode(self, value: Value) -> bytes:
        """Write a message, with a separator after each field, the last one too.

        Raises:
            TypeError: not an object of texts and numbers, or arrays of them; a text that holds the separator.
        """
        if type(value) is not dict:
            raise TypeError(f"a record is an object; this is {type(value).__name__}")
        separator = self._separator
        written = []
        for name, member in value.items():
            if type(name) is not str or not self._is_field_name(name) or separator in name or "=" in name:
                raise TypeError(f"/{name} cannot be a field: {name!r} is no {self.kind}")
            if type(member) is list and not member:
                raise TypeError(f"/{name} is an empty array, which cannot be written; leave it out")
            for item in member if type(member) is list else (member,):
                text = text_of(item, f"/{name}")
                if separator in text:
                    raise TypeError(f"/{name} holds the separator {separator!r}")
                written.append(f"{name}={text}{separator}")
        try:
            return "".join(written).encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"half a surrogate pair is no text: {error.object[: error.start][-50:]!r} …") from None

    def _is_field_name(self, name: str) -> bool:
        """Return whether it may stand before the `=`."""
        return bool(name)

    def _is_name(self, separator: str) -> bool:  # noqa: ARG002
        """True if a separator would be taken for a part of a name."""
        return False


class FixCodec(NvfixCodec):
    """The message type `fix`: names are tags, digits only.

    Nothing of FIX's own rules is checked or made: 9 (BodyLength) and 10 (CheckSum) are fields like others, and a
    merged record has those of the message that brought them. Data fields that hold the separator are not recognized.
    """

    kind = "tag"

    def _is_field_name(self, name: str) -> bool:
        return name.isascii() and name.isdigit()

    def _is_name(self, separator: str) -> bool:
        return self._is_field_name(separator)
