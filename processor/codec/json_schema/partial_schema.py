"""The JSON Schema of deltas: it accepts each record of a schema with any members left out, at any depth of objects.

Only keywords are kept for which that is certain. `required`, `minProperties`, `dependentRequired`, conditions and
negations are not: they can make a part of a valid record invalid. `oneOf` becomes `anyOf`, since a part may be valid by
several of its schemas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from processor.record import Value

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
    schema = _partial(json.loads(text))
    if references and isinstance(schema, dict):
        place = "$defs" if any(draft in str(schema.get("$schema")) for draft in _DRAFTS_OF_DEFS) else "definitions"
        bundled = {name: _bundled(name, json.loads(content)) for name, content in references.items()}
        schema[place] = {**schema.get(place, {}), **bundled}
    return json.dumps(schema, separators=(",", ":"), sort_keys=True)


def without_nulls(value: Value) -> Value:
    """A delta without the members that are null: the topic's null policy decides on those; arrays stay as they are."""
    if type(value) is not dict:
        return value
    return {name: without_nulls(member) for name, member in value.items() if member is not None}


def _bundled(name: str, schema: Value) -> Value:
    """A schema that is referred to, with the name of the reference as its identity."""
    partial = _partial(schema)
    if not isinstance(partial, dict):
        return partial
    old_draft = "draft-04" in str(schema.get("$schema", "")) or "draft-03" in str(schema.get("$schema", ""))
    return {**partial, ("id" if old_draft else "$id"): name}


def _partial(schema: Value) -> Value:
    if not isinstance(schema, dict):
        return schema  # True or False, or what the check of the schema has refused.
    partial: dict[str, Value] = {}
    for keyword, value in schema.items():
        if keyword in _VALUES:
            partial[keyword] = value
        elif (derive := _DERIVED.get(keyword)) is not None:
            partial.update(derive(keyword, value))
    choices = partial.pop("oneOf", None)
    if choices is not None:
        if "anyOf" in partial:
            partial["allOf"] = [*partial.get("allOf", []), {"anyOf": choices}]
        else:
            partial["anyOf"] = choices
    return partial


def _one(keyword: str, value: Value) -> dict[str, Value]:
    return {keyword: _partial(value)}


def _many(keyword: str, value: Value) -> dict[str, Value]:
    return {keyword: [_partial(item) for item in value]}


def _named(keyword: str, value: Value) -> dict[str, Value]:
    return {keyword: {name: _partial(item) for name, item in value.items()}}


def _items(keyword: str, value: Value) -> dict[str, Value]:
    return _many(keyword, value) if isinstance(value, list) else _one(keyword, value)


def _enum(keyword: str, value: Value) -> dict[str, Value]:
    """Keep a list of allowed values; of allowed objects a delta has parts."""
    return {} if any(isinstance(item, dict) for item in value) else {keyword: value}


def _const(keyword: str, value: Value) -> dict[str, Value]:
    return _enum(keyword, [value]) and {keyword: value}


_DERIVED: Final[Mapping[str, Callable[[str, Value], dict[str, Value]]]] = {
    **dict.fromkeys(_SCHEMAS, _one),
    **dict.fromkeys(_LISTS, _many),
    **dict.fromkeys(_MAPS, _named),
    "items": _items,
    "enum": _enum,
    "const": _const,
}
