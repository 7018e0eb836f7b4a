"""The key of a record: which fields make it, its text, and that a body agrees with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

from processor.errors import ConfigurationError, RecordRejected
from processor.merge.delta import apply_delta
from processor.record import Value
from processor.values.key_text import parts_of_key
from processor.values.kinds import MISSING, UUIDS, FieldType
from processor.values.pointer import find, names

TypeOf: TypeAlias = Callable[[tuple[str, ...]], FieldType]
"""Gives the type of the field at a path of names."""

_IDENTIFIERS: Final = frozenset(("uuid.UUID", "bson.objectid.ObjectId"))


class KeyFields:
    """The key fields of a topic.

    The key of a record is a text: of one field its value as text (a string as it is, an integer in decimal, true or
    false, a UUID or an ObjectId in its usual form), of several the compact JSON array of those texts. The Kafka record
    key is that text in UTF-8.
    """

    __slots__ = ("_names", "_only_name", "_uuids", "has_spellings", "pointers", "text")

    pointers: tuple[str, ...]
    """The JSON Pointers, as configured."""
    has_spellings: bool
    """True if a Kafka key may spell the key otherwise."""
    text: Callable[[Value], str | None]
    """The key of a record, from its body; None if a key field is missing.

    Raises:
        RecordRejected: `missing_key`: a key field is there, with a value that is no key.
    """

    def __init__(self, pointers: tuple[str, ...], type_of: TypeOf | None = None) -> None:
        """Compile the pointers; none at all where the key is explicit: then a body is ignored.

        Args:
            pointers: the JSON Pointers of the fields.
            type_of: gives the type of a field by the topic's schema; None: a UUID is met in its usual form alone.

        Raises:
            ConfigurationError: one is not a JSON Pointer to a field.
        """
        if "" in pointers:
            raise ConfigurationError("a key field is a field, such as /id")
        try:
            self._names = tuple(names(pointer) for pointer in pointers)
        except ValueError as error:
            raise ConfigurationError(f"key: {error}") from None
        self.pointers = pointers
        self._uuids = [type_of is not None and type_of(path).kinds == UUIDS for path in self._names]
        self.has_spellings = len(pointers) > 1 or any(self._uuids)
        # One field at the top is the usual key, and the hot path: it has its own ways below.
        self._only_name = self._names[0][0] if len(pointers) == 1 and len(self._names[0]) == 1 else None
        if self._only_name is not None:
            self.text = _text_of_member(self._only_name, pointers[0])
        elif not pointers:
            self.text = _no_text
        elif len(pointers) == 1:
            self.text = self._text_of_path
        else:
            self.text = self._text_of_several

    @property
    def only_name(self) -> str | None:
        """The name of the one key field, where it is a field at the top; else None."""
        return self._only_name

    @property
    def top_names(self) -> tuple[str, ...]:
        """The names of the key fields, where all are fields at the top; else none."""
        return tuple(path[0] for path in self._names) if all(len(path) == 1 for path in self._names) else ()

    def only(self, record: Value) -> Value:
        """A new object with just the key fields that the record has, where the record has them."""
        fields: Value = {}
        for path in self._names:
            value = find(record, path)
            if value is not MISSING:
                for name in reversed(path):
                    value = {name: value}
                apply_delta(fields, value)
        return fields

    def with_delta(self, record: Value, delta: Value) -> Value:
        """The body of a delta record, a new object: the key fields of the record, then the delta."""
        name = self._only_name
        if name is None:
            return apply_delta(self.only(record), delta)
        return {name: record[name], **delta} if name in record else dict(delta)

    def protect(self, record: Value, delta: Value, nulls_missing: bool = True, merge_depth: int | None = None) -> None:
        """Keep the key fields that the record has from changing through a delta, which is changed in place.

        `check` compares them as text; this keeps a `"7"` from taking the place of a `7` (spec merge.md, rule 7), and a
        nested one from going with its object: an object that replaces, below `merge_depth`, gets the record's key
        fields; one that something else would replace cannot have them.

        Args:
            record: the record before the merge.
            delta: the delta to merge into it.
            nulls_missing: a null counts as left out, as under the null policy `ignore`.
            merge_depth: the depth to which objects merge; None: any.

        Raises:
            RecordRejected: `key_mismatch`: the delta replaces an object that a key field is in.
        """
        name = self._only_name
        if name is not None:
            if name in record:
                delta.pop(name, None)
            return
        for pointer, path in zip(self.pointers, self._names, strict=True):
            value = find(record, path)
            if value is not MISSING:
                _keep(delta, path, value, pointer, nulls_missing=nulls_missing, merge_depth=merge_depth)

    def check(self, key: bytes, body: Value, nulls_missing: bool = False) -> None:
        """Make sure that the key is the text that key fields make, and that those in a body agree with it.

        Args:
            key: the Kafka record key.
            body: the record, or a delta, which may leave key fields out.
            nulls_missing: a null counts as left out, as in a delta under the null policy `ignore`.

        Raises:
            RecordRejected: `key_mismatch`, naming the field and both texts, or the right spelling of the key;
                `missing_key` where a value is no key.
        """
        name = self._only_name
        if name is not None:
            value = body.get(name, MISSING)
            kind = type(value)
            # The usual cases, decided without a call.
            if (kind is str and value.encode() == key) or (kind is int and b"%d" % value == key) or value is MISSING:
                return
        texts = self._texts(body, nulls_missing=nulls_missing)
        if len(texts) > 1:
            self._check_spelling(key)
        if not any(text is not None for text in texts):
            return
        expected = _texts_of_key(key, len(texts))
        assert expected is not None
        for pointer, text, wanted in zip(self.pointers, texts, expected, strict=True):
            if text is not None and text != wanted:
                raise RecordRejected(
                    "key_mismatch", f"{pointer} is {text!r:.100}, but the record's key says {wanted!r:.100}"
                )

    def text_of_values(self, values: Value) -> str | None:
        """The key of the values themselves: of the only field's, or of an array with one for each field; else None.

        Without key fields it is the text of the one value.

        Raises:
            RecordRejected: `missing_key`: a value is no key.
        """
        if len(self.pointers) < 2:
            return None if type(values) is list else _scalar_text(values, *(self.pointers or ("the key",)))
        if type(values) is not list or len(values) != len(self.pointers):
            return None
        pairs = zip(values, self.pointers, strict=True)
        return _array_text([_scalar_text(value, pointer) for value, pointer in pairs])

    def canonical(self, key: bytes) -> bytes | None:
        """The one text of the same key fields as this key; None if the key is not one of such fields.

        A key of several fields has other spellings: a JSON array with spaces or escapes, such as those of Python's
        `json.dumps`. So has a UUID: in capitals, without hyphens, in braces.
        """
        if not self.has_spellings:
            return key
        texts = _texts_of_key(key, len(self.pointers))
        if texts is None:
            return None
        texts = [_usual_uuid(text) if is_uuid else text for text, is_uuid in zip(texts, self._uuids, strict=True)]
        return (texts[0] if len(texts) == 1 else _array_text(texts)).encode(errors="surrogateescape")

    def spelled(self, key: str) -> str:
        """The canonical text of a key as a user spells it; the text itself if it is no key of these fields."""
        own_key = self.canonical(key.encode(errors="surrogatepass"))
        try:
            return key if own_key is None else own_key.decode()
        except UnicodeDecodeError:
            return key

    def complete(self, body: Value, key: bytes, record: Value | None) -> bool:
        """Add the missing key field to a full record, in place, from its Kafka key; whether it was missing.

        Only where the key is one field. The value is a text, or what the record has now under that key (producers.md,
        rule 6).

        Args:
            body: the full record.
            key: the Kafka record key.
            record: the record before; None if there is none.

        Raises:
            RecordRejected: `missing_key`: the key is not UTF-8, or something else is in the field's place.
        """
        if len(self.pointers) != 1:
            return False
        (pointer,), (path,) = self.pointers, self._names
        if find(body, path) is not MISSING:
            return False
        try:
            value: Value = key.decode()
        except UnicodeDecodeError:
            raise RecordRejected(
                "missing_key", f"no {pointer} in the message, and its Kafka key is not UTF-8"
            ) from None
        before = MISSING if record is None else find(record, path)
        if before is not MISSING and _scalar_text(before, pointer) == value:
            value = before
        *parents, last = path
        for name in parents:
            inner = body.setdefault(name, {})
            if type(inner) is not dict:
                raise RecordRejected("missing_key", f"{pointer} is missing: {name} is {_kind(inner)}, not an object")
            body = inner
        body[last] = value
        return True

    def _check_spelling(self, key: bytes) -> None:
        """Refuse a key of several fields that is not their canonical text."""
        canonical = self.canonical(key)
        if canonical is None:
            raise RecordRejected(
                "key_mismatch",
                f"{', '.join(self.pointers)} make the key; {key!r:.100} is no JSON array of {len(self.pointers)} texts",
            )
        if canonical != key:
            raise RecordRejected("key_mismatch", f"the key {key!r:.100} is spelled {canonical!r:.100}")

    def _texts(self, body: Value, *, nulls_missing: bool = False) -> list[str | None]:
        """The text of each key field, None for a missing one."""
        texts = []
        for pointer, path in zip(self.pointers, self._names, strict=True):
            value = find(body, path)
            missing = value is MISSING or (value is None and nulls_missing)
            texts.append(None if missing else _scalar_text(value, pointer))
        return texts

    def _text_of_path(self, record: Value) -> str | None:
        return self._texts(record)[0]

    def _text_of_several(self, record: Value) -> str | None:
        texts = self._texts(record)
        if None in texts:
            return None
        return _array_text(texts)


def _usual_uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        return text


def _array_text(texts: Sequence[str | None]) -> str:
    """The key of several fields: the compact JSON array of their texts."""
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def _no_text(record: Value) -> None:
    """`KeyFields.text` where the key is explicit."""


def _text_of_member(name: str, pointer: str) -> Callable[[Value], str | None]:
    """`KeyFields.text` for one field at the top."""

    def text(record: Value) -> str | None:
        value = record.get(name, MISSING)
        kind = type(value)
        if kind is str:
            return value  # type: ignore[no-any-return]
        if kind is int:
            return str(value)
        return None if value is MISSING else _scalar_text(value, pointer)

    return text


def _keep(
    delta: Value,
    path: tuple[str, ...],
    value: Value,
    pointer: str,
    *,
    nulls_missing: bool,
    merge_depth: int | None,
) -> None:
    """Set a key field in the objects of a delta that it is in: one that replaces whole would lose it otherwise."""
    *parents, last = path
    if not parents:
        delta.pop(last, None)
        return
    for depth, name in enumerate(parents):
        if nulls_missing and delta.get(name, MISSING) is None:
            del delta[name]
        if name not in delta and (merge_depth is None or depth < merge_depth):
            return  # The object around it merges, so what it leaves out stays.
        inner = delta.setdefault(name, {})
        if type(inner) is not dict:
            raise RecordRejected(
                "key_mismatch", f"{name} is {_kind(inner)}; the key field {pointer} is inside it and would be lost"
            )
        delta = inner
    delta[last] = value


def _scalar_text(value: Value, pointer: str) -> str:
    """A key field's value as text."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is bool:
        return "true" if value else "false"
    # A Decimal without exponent is an integer too long for 64 bits.
    if kind is int or (kind is Decimal and value.as_tuple().exponent == 0) or _is_identifier(kind):
        return str(value)
    if isinstance(value, int):
        return str(int(value))  # Such as BSON's Int64.
    raise RecordRejected(
        "missing_key", f"{pointer} is {_kind(value)}; a key is a string, an integer, a boolean, a UUID or an ObjectId"
    )


def _is_identifier(kind: type) -> bool:
    """Return whether its text is its one way to be written. By name: merging knows no message type's packages."""
    return f"{kind.__module__}.{kind.__qualname__}" in _IDENTIFIERS


def _kind(value: Value) -> str:
    """A value's kind in plain words."""
    kind = type(value)
    words = {
        type(None): "null",
        float: "a decimal number",
        Decimal: "a decimal number",
        dict: "an object",
        list: "an array",
        str: "a string",
        int: "an integer",
        bool: "a boolean",
    }
    return words.get(kind, kind.__name__)


def _texts_of_key(key: bytes, count: int) -> list[str] | None:
    """The text of each key field by the record's key; None if it does not name one for each."""
    # Bytes that are not UTF-8 become what no decoded text holds: they agree with nothing.
    text = key.decode(errors="surrogateescape")
    if count == 1:
        return [text]
    parts = parts_of_key(text, count)
    if parts is not None and "\\" in text:
        try:
            "".join(parts).encode(errors="surrogateescape")
        except UnicodeEncodeError:  # An escape such as \\ud800, half a surrogate pair, is no text.
            return None
    return parts
