"""Message types that differ from JSON in one way each."""

from __future__ import annotations

from processor.codec.json import JsonCodec
from processor.record import Headers, Value


class Framed(JsonCodec):
    """A message type whose deltas list their fields in a header, as Avro's do."""

    uses_headers = True

    def encode_delta(self, delta: Value) -> tuple[bytes, Headers]:
        """The values, and separately their names."""
        return self.encode(list(delta.values())), [("fields", self.encode(list(delta)))]

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Value:
        """Restore the names from the header, if it is a delta."""
        value = self.decode(data)
        return dict(zip(self.decode(dict(headers)["fields"]), value, strict=True)) if is_delta else value


class Whole(JsonCodec):
    """A message type that carries full records only, as protobuf does."""

    can_delta = False
