"""Binary: any bytes, carried whole."""

from __future__ import annotations

from typing import ClassVar

from processor.codec.contract import Codec, CodecOptions
from processor.record import Value


class BinaryCodec(Codec):
    """The message type `binary`: the value is the bytes. Such a topic has `key: explicit`."""

    can_delta: ClassVar[bool] = False
    noun: ClassVar[str] = "a binary message"
    """What the error of a value that is not bytes calls it."""

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one; no option says anything to it."""

    def decode(self, data: bytes) -> Value:
        """The bytes."""
        return data

    def encode(self, value: Value) -> bytes:
        """The bytes.

        Raises:
            TypeError: not bytes.
        """
        if isinstance(value, bytes):
            return value
        raise TypeError(f"{self.noun} is bytes; this is {type(value).__name__}")
