"""The key of a record (merge.md, "Words", rule 7 and "Keys of several fields"; producers.md, rules 1 and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.programs.oracle import exact_json
from tests.programs.oracle.values import MISSING, Path, Rejected, is_object, value_at, with_value

Object = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """The key fields of a topic; none where the key is explicit."""

    paths: tuple[Path, ...]

    def text(self, record: Object) -> str | None:
        """The key in a message; None if one of its fields is missing.

        Raises:
            Rejected: `missing_key`: a field's value is no key.
        """
        texts = [self._text_at(record, path) for path in self.paths]
        if not texts or None in texts:
            return None
        return self.text_of([text for text in texts if text is not None])

    def text_of(self, texts: list[str]) -> str:
        """The key of one field is its text; of several, the compact JSON array of their texts."""
        return texts[0] if len(texts) == 1 else exact_json.write(texts).decode()

    def canonical(self, key: bytes) -> bytes | None:
        """The one text of the same fields as this key; None if it is no key of such fields."""
        if len(self.paths) < 2:
            return key
        try:
            texts = exact_json.parse(key)
        except Rejected:
            return None
        if not isinstance(texts, list) or len(texts) != len(self.paths):
            return None
        return self.text_of(texts).encode() if all(isinstance(text, str) for text in texts) else None

    def check(self, key: bytes, body: Object, *, nulls_missing: bool) -> None:
        """Make sure that the key fields in a message agree with its Kafka key.

        Raises:
            Rejected: `key_mismatch`, or `missing_key` where a value is no key.
        """
        if not self.paths:
            return
        texts = [self._text_at(body, path, nulls_missing=nulls_missing) for path in self.paths]
        if self.canonical(key) != key:
            raise Rejected("key_mismatch")
        own = exact_json.parse(key) if len(self.paths) > 1 else [key.decode()]
        if any(text is not None and text != wanted for text, wanted in zip(texts, own, strict=True)):
            raise Rejected("key_mismatch")

    def check_place(self, record: Object, delta: Object, *, nulls_missing: bool) -> None:
        """Make sure that a delta does not replace an object that contains a key field of the record.

        Raises:
            Rejected: `key_mismatch`.
        """
        for path in self.paths:
            for depth in range(1, len(path)):
                inner = value_at(delta, path[:depth])
                is_missing = inner is MISSING or (inner is None and nulls_missing)
                if value_at(record, path) is not MISSING and not is_missing and not is_object(inner):
                    raise Rejected("key_mismatch", f"{path[:depth]} holds a key field")

    def kept(self, record: Object, merged: Object) -> Object:
        """A merged record with the key fields that it had before, at any depth and under any `merge_depth`."""
        for path in self.paths:
            value = value_at(record, path)
            if value is not MISSING:
                merged = with_value(merged, path, value)
        return merged

    def completed(self, key: bytes, record: Object | None, body: Object) -> Object:
        """A full record with its key field from the Kafka key, where the key is one field and the message lacks it.

        A text stays a text; it is the record's own value where that has the same text, such as a number.
        """
        if len(self.paths) != 1 or value_at(body, self.paths[0]) is not MISSING:
            return body
        path = self.paths[0]
        for depth in range(1, len(path)):
            if value_at(body, path[:depth]) is not MISSING and not is_object(value_at(body, path[:depth])):
                raise Rejected("missing_key", f"{path[:depth]} is no object")
        before = MISSING if record is None else value_at(record, path)
        if before is not MISSING and key_text(before) == key.decode():
            return with_value(body, path, before)
        return with_value(body, path, key.decode())

    def only(self, record: Object) -> Object:
        """The key fields of a record, in an object of their own."""
        fields: Object = {}
        for path in self.paths:
            value = value_at(record, path)
            if value is not MISSING:
                fields = with_value(fields, path, value)
        return fields

    def _text_at(self, body: Object, path: Path, *, nulls_missing: bool = False) -> str | None:
        value = value_at(body, path)
        if value is MISSING or (value is None and nulls_missing):
            return None
        text = key_text(value)
        if text is None:
            raise Rejected("missing_key", f"{value!r} is no key")
        return text


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's Java client chooses: murmur2, as in `org.apache.kafka.common.utils.Utils`."""
    mixer, mask = 0x5BD1E995, 0xFFFFFFFF

    def mixed(word: int) -> int:
        word = word * mixer & mask
        return (word ^ word >> 24) * mixer & mask

    value = 0x9747B28C ^ len(key)
    while len(key) >= 4:
        value = value * mixer & mask ^ mixed(int.from_bytes(key[:4], "little"))
        key = key[4:]
    if key:
        value = (value ^ int.from_bytes(key, "little")) * mixer & mask
    value = (value ^ value >> 13) * mixer & mask
    return ((value ^ value >> 15) & 0x7FFFFFFF) % partitions


def key_text(value: Any) -> str | None:
    """The text of a key field's value: a string, an integer or a boolean; None for any other value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, Decimal):
        return str(int(value))
    return None
