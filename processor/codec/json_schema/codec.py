"""JSON that a JSON Schema checks: when it comes in, and when it is written.

With a schema registry a message names its schema as Avro's do: by Confluent's frame, or by header `__value_schema_id`.
A publish is checked by the schema that it names, a delta by the same without what only a full record fulfils
(`partial_schema_text`). The merged record is checked by the topic's schema. Without a registry there are no frames.

The schema of deltas accepts each record of a schema with any members left out, at any depth of objects. Only keywords
are kept for which that is certain. `required`, `minProperties`, `dependentRequired`, conditions and negations are not:
they can make a part of a valid record invalid. `oneOf` becomes `anyOf`, since a part may be valid by several of its
schemas. A schema that is referred to and not in what is kept, such as `#/components/schemas/T`, is in the definitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, TypeAlias
from urllib.parse import quote, unquote

from processor.codec.contract import Codec, CodecOptions
from processor.codec.frame import SCHEMA_ID_HEADER, id_frame, without_frame
from processor.codec.json import JsonCodec
from processor.codec.schema_registry.schemas import SchemaText
from processor.codec.schema_registry.topic_schema import (
    FramedSchemas,
    UnusableSchema,
    header_frame,
    message_frame,
    open_topic_schema,
)
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Headers, Value
from processor.values.kinds import FieldType
from processor.values.pointer import child

_VALUES: Final = frozenset(
    (
        *("$schema", "$id", "id", "$ref", "$anchor", "$comment", "title", "description", "type", "format"),
        *("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"),
        *("maxLength", "minLength", "pattern", "contentEncoding", "contentMediaType"),
        *("maxItems", "minItems", "uniqueItems", "maxProperties"),
    )
)
"""Keywords that stay as they are."""
_SCHEMAS: Final = frozenset(("additionalProperties", "additionalItems", "propertyNames"))
"""Keywords with one schema."""
_LISTS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
"""Keywords with an array of schemas."""
_MAPS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keywords with an object of schemas."""
_DRAFTS_OF_DEFS: Final = ("2019-09", "2020-12")
"""The drafts in which `$defs` took the place of `definitions`."""


def partial_schema_text(text: str, references: Mapping[str, str]) -> str:
    """Derive the schema of deltas from the schema of records, as text.

    Args:
        text: the schema of records.
        references: the schemas that it refers to, by name; the derived schema contains them.

    Raises:
        ValueError: a text is not JSON.
    """
    schema = _resource(json.loads(text))
    if references and isinstance(schema, dict):
        bundled = {name: _bundled(name, json.loads(content)) for name, content in references.items()}
        schema.setdefault(_place(schema), {}).update(bundled)
    return json.dumps(schema, separators=(",", ":"), sort_keys=True)


def without_nulls(value: Value) -> Value:
    """A delta without the members that are null: the topic's null policy decides on those; arrays stay as they are."""
    if type(value) is not dict:
        return value
    return {name: without_nulls(member) for name, member in value.items() if member is not None}


def _bundled(name: str, schema: Value) -> Value:
    """A schema that is referred to, with the name of the reference as its identity."""
    partial = _resource(schema)
    if not isinstance(partial, dict):
        return partial
    old_draft = "draft-04" in str(schema.get("$schema", "")) or "draft-03" in str(schema.get("$schema", ""))
    return {**partial, ("id" if old_draft else "$id"): name}


def _place(schema: Value) -> str:
    """The keyword of definitions."""
    return "$defs" if any(draft in str(schema.get("$schema")) for draft in _DRAFTS_OF_DEFS) else "definitions"


_Referring: TypeAlias = "list[dict[str, Value]]"
"""The derived schemas that refer to others."""


def _resource(schema: Value) -> Value:
    """A schema with an identity of its own, to which pointers in it are relative: it contains all that they lead to."""
    if not isinstance(schema, dict):
        return schema  # True or False, or what the check of the schema has refused.
    referring: _Referring = []
    partial, place, moved = _members(schema, referring), _place(schema), dict[str, str]()
    for each in referring:  # It grows: a schema that is moved may refer to others.
        pointer = each["$ref"]
        if not pointer.startswith("#/") or _target(partial, pointer) is not None:
            continue
        if pointer not in moved and isinstance(target := _target(schema, pointer), dict | bool):
            name = unquote(pointer[1:])
            partial.setdefault(place, {})[name] = _partial(target, referring)
            moved[pointer] = f"#/{place}{quote(child('', name))}"
        each["$ref"] = moved.get(pointer, pointer)
    return partial


def _target(schema: Value, pointer: str) -> Value:
    """The schema at a pointer; None if there is none."""
    for step in pointer.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            schema = schema.get(name) if isinstance(schema, dict) else None
    return schema


def _partial(schema: Value, referring: _Referring) -> Value:
    """A part of a schema."""
    if not isinstance(schema, dict) or not schema.get("$id", "#").startswith("#"):
        return _resource(schema)
    return _members(schema, referring)


def _members(schema: dict[str, Value], referring: _Referring) -> dict[str, Value]:
    partial: dict[str, Value] = {}
    for keyword, value in schema.items():
        if keyword in _VALUES:
            partial[keyword] = value
        elif (derive := _DERIVED.get(keyword)) is not None:
            partial.update(derive(keyword, value, referring))
    if "$ref" in partial:
        referring.append(partial)
    choices = partial.pop("oneOf", None)
    if choices is not None:
        if "anyOf" in partial:
            partial["allOf"] = [*partial.get("allOf", []), {"anyOf": choices}]
        else:
            partial["anyOf"] = choices
    return partial


def _one(keyword: str, value: Value, referring: _Referring) -> dict[str, Value]:
    return {keyword: _partial(value, referring)}


def _many(keyword: str, value: Value, referring: _Referring) -> dict[str, Value]:
    return {keyword: [_partial(item, referring) for item in value]}


def _named(keyword: str, value: Value, referring: _Referring) -> dict[str, Value]:
    return {keyword: {name: _partial(item, referring) for name, item in value.items()}}


def _items(keyword: str, value: Value, referring: _Referring) -> dict[str, Value]:
    return (_many if isinstance(value, list) else _one)(keyword, value, referring)


def _enum(keyword: str, value: Value, _referring: _Referring) -> dict[str, Value]:
    """Keep a list of allowed values; of allowed objects a delta has parts."""
    return {} if any(isinstance(item, dict) for item in value) else {keyword: value}


def _const(keyword: str, value: Value, referring: _Referring) -> dict[str, Value]:
    return _enum(keyword, [value], referring) and {keyword: value}


_DERIVED: Final[Mapping[str, Callable[[str, Value, _Referring], dict[str, Value]]]] = {
    **dict.fromkeys(_SCHEMAS, _one),
    **dict.fromkeys(_LISTS, _many),
    **dict.fromkeys(_MAPS, _named),
    "items": _items,
    "enum": _enum,
    "const": _const,
}

try:
    from processor.codec.json_schema.schema_check import SchemaCheck
except ImportError as error:
    raise ConfigurationError(
        f"message type json-schema needs a package that is not installed ({error.name}): "
        "pip install 'sowstream[json-schema]'"
    ) from None


class _Checks:
    """The checks of the messages of one schema."""

    __slots__ = ("delta_text", "partial", "record")

    def __init__(self, schema: SchemaText) -> None:
        """Prepare them.

        Raises:
            UnusableSchema: it is no JSON Schema.
        """
        references = dict(zip(schema.reference_names, schema.references, strict=True))
        self.record = SchemaCheck(schema.text, references)
        try:
            self.delta_text = partial_schema_text(schema.text, references)
        except (AttributeError, TypeError, RecursionError):
            raise UnusableSchema("a schema in it that it refers to is no JSON Schema") from None
        self.partial = SchemaCheck(self.delta_text, {})

    def check(self, value: Value, *, is_delta: bool) -> str | None:
        """The violation of a record or a delta; None if there is none.

        Raises:
            RecordRejected: `too_deep`.
        """
        try:
            return self.partial.violation(without_nulls(value)) if is_delta else self.record.violation(value)
        except RecursionError:
            raise RecordRejected("too_deep", "nested deeper than its schema can be checked") from None


class JsonSchemaCodec(Codec):
    """The message type `json-schema`; values are those of `json`."""

    uses_headers: ClassVar[bool] = True
    header_names: ClassVar[frozenset[str]] = frozenset((SCHEMA_ID_HEADER,))

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Find the schema of the records; with a registry, have it registered with that of the deltas, to write by.

        Raises:
            ConfigurationError: there is no schema, or one that cannot be used.
            Stop: the registry does not answer.
        """
        options = options or CodecOptions()
        self._json = JsonCodec(options)
        topic = open_topic_schema(options, "json-schema", "a JSON Schema", "JSON")
        self._registry = topic.registry
        try:
            self._own = _Checks(topic.schema)
        except UnusableSchema as error:
            raise ConfigurationError(f"the schema of topic {options.topic!r}, {topic.place}: {error}") from None
        ids = topic.register(options, self._own.delta_text)
        self._record_frame, self._delta_frame = (b"" if each is None else id_frame(each) for each in ids)
        if self._registry is not None:
            own = dict.fromkeys((self._record_frame, self._delta_frame), self._own)
            self._framed = FramedSchemas(self._registry, _Checks, own)

    def decode(self, data: bytes) -> Value:
        """Parse and check a full message.

        Raises:
            RecordRejected: `undecodable`, `too_deep`, `schema_not_found` or `schema_mismatch`.
            PartitionHeld, Stop: the registry does not answer, with the option `registry_wait_s` or without.
        """
        return self.decode_command(data, [], is_delta=False)

    def decode_own(self, data: bytes) -> Value:
        """Parse a stored record: it was checked when it was written."""
        return self._json.decode_own(without_frame(data))

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Value:
        """Parse and check a message by its frame or header `__value_schema_id`.

        Raises:
            RecordRejected: as `decode`; `bad_header`.
            PartitionHeld, Stop: as `decode`.
        """
        checks, body = self._own, data
        if self._registry is not None:
            in_header = next((value for name, value in headers if name == SCHEMA_ID_HEADER), None)
            if in_header is not None:
                checks = self._framed.of_frame(header_frame(in_header))
            else:
                size = message_frame(data)
                checks, body = self._framed.of_frame(data[:size]), data[size:]
        value = self._json.decode(body)
        if (violation := checks.check(value, is_delta=is_delta)) is not None:
            raise RecordRejected("schema_mismatch", violation)
        return value

    def encode(self, value: Value) -> bytes:
        """Write a full record, framed.

        Raises:
            TypeError: JSON does not have a part of it, or the topic's schema does not allow it.
        """
        data = self._json.encode(value)
        self._check_writable(value, is_delta=False)
        return self._record_frame + data

    def encode_decoded(self, value: Value) -> bytes:
        """Write a full record of values that `decode` returned, framed; errors as `encode`."""
        data = self._json.encode_decoded(value)
        self._check_writable(value, is_delta=False)
        return self._record_frame + data

    def encode_delta(self, delta: Value) -> tuple[bytes, Headers]:
        """Write a part of a record, framed by the schema of deltas.

        Raises:
            TypeError: as `encode`.
        """
        data = self._json.encode(delta)
        self._check_writable(delta, is_delta=True)
        return self._delta_frame + data, []

    def field_type(self, path: tuple[str, ...]) -> FieldType:
        """Any value, as in JSON."""
        return self._json.field_type(path)

    def _check_writable(self, value: Value, *, is_delta: bool) -> None:
        try:
            violation = self._own.check(value, is_delta=is_delta)
        except RecordRejected as error:
            raise TypeError(error.detail) from None
        if violation is not None:
            raise TypeError(violation)
