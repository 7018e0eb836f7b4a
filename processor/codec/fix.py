"""FIX: `tag=value` pairs as in NVFIX, keyed by tag."""

from __future__ import annotations

from processor.codec.nvfix import NvfixCodec


class FixCodec(NvfixCodec):
    """The message type `fix`: names are tags, digits only.

    Nothing of FIX's own rules is checked or made: 9 (BodyLength) and 10 (CheckSum) are fields like others, and a
    merged record has those of the message that brought them. Data fields that hold the separator cannot be told.
    """

    kind = "tag"

    def _is_field_name(self, name: str) -> bool:
        return name.isascii() and name.isdigit()

    def _is_name(self, separator: str) -> bool:
        return self._is_field_name(separator)
