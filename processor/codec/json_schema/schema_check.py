"""Checks values by a JSON Schema, with jsonschema; no reference is fetched, and messages hold no data of a record."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from urllib.parse import urljoin

import referencing
from jsonschema import Draft7Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from processor.codec.schema_registry.topic_schema import UnusableSchema
from processor.codec.value_checks import step_to
from processor.record import Value

DIGITS_MAX: Final = 4000
"""Most digits, and largest power of ten, for which `multipleOf` is computed: in quadratic time. A double has 308."""
_SHOWN_CHARACTERS: Final = 200
_OF_NAMES: Final = frozenset(("required", "additionalProperties", "dependentRequired", "propertyNames"))
"""Keywords whose messages by jsonschema hold names of members, and no values."""


class SchemaCheck:
    """One schema, ready to check values; its draft is that of `$schema`, or else 7, as with Confluent's serializers."""

    __slots__ = ("_validator",)

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """Parse a schema.

        Args:
            text: the schema, JSON.
            references: the schemas that it refers to, by the names in its `$ref`.

        Raises:
            UnusableSchema: one of them is no JSON Schema.
        """
        schema = _parsed(text, "the schema")
        kind = validators.validator_for(schema, default=Draft7Validator)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise UnusableSchema(f"not a JSON Schema: {error.json_path}: {error.message:.200}") from None
        base = schema.get("$id", "") if isinstance(schema, dict) else ""
        known: referencing.Registry[Any] = referencing.Registry()
        for name, content in references.items():
            resource = referencing.Resource.from_contents(
                _parsed(content, f"the schema {name}, which it refers to"), default_specification=DRAFT7
            )
            known = known.with_resources([(name, resource), (urljoin(base, name), resource)])
        self._validator = _exact(kind)(schema, registry=known)

    def violation(self, value: Value) -> str | None:
        """The first part of a value that the schema does not allow, in words; None if it allows the value.

        Raises:
            RecursionError: the value, or a schema that refers to itself, is nested too deep.
        """
        try:
            error = next(self._validator.iter_errors(value), None)
        except Unresolvable as missing:
            return f"the schema refers to {missing.ref!r:.100}, which it does not contain"
        return None if error is None else _words(error)


def _parsed(text: str, what: str) -> Value:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableSchema(f"{what} is not JSON: {error}") from None


def _words(error: ValidationError) -> str:
    place = "".join(map(step_to, error.absolute_path)) or "the message"
    if error.validator in _OF_NAMES:
        return f"{place}: {error.message:.{_SHOWN_CHARACTERS}}"
    if error.schema is False:
        return f"{place}: the schema allows no value here"
    expected = json.dumps(error.validator_value, default=str)
    return f"{place} does not fit its schema: {error.validator} is {expected:.{_SHOWN_CHARACTERS}}"


def _exact(kind: Any) -> Any:
    """A class of jsonschema with our decimals as numbers, an exact `multipleOf`, and a `uniqueItems` in linear time."""
    types = kind.TYPE_CHECKER.redefine("integer", _is_integer)
    return validators.extend(kind, {"multipleOf": _multiple_of, "uniqueItems": _unique_items}, type_checker=types)  # type: ignore[no-untyped-call]


def _is_integer(_checker: Any, value: Value) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, Decimal):
        return value.is_finite() and value == value.to_integral_value()
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _multiple_of(validator: Any, divisor: Value, value: Value, _schema: Value) -> Iterator[ValidationError]:
    if not validator.is_type(value, "number"):
        return
    number = Decimal(str(value))
    is_long = abs(number.adjusted()) > DIGITS_MAX or len(number.as_tuple().digits) > DIGITS_MAX
    if is_long or (Fraction(number) / Fraction(str(divisor))).denominator != 1:
        yield ValidationError("not a multiple")


def _unique_items(_validator: Any, is_set: Value, value: Value, _schema: Value) -> Iterator[ValidationError]:
    if is_set and isinstance(value, list) and len(set(map(_identity, value))) != len(value):
        yield ValidationError("an item occurs twice")


def _identity(value: Value) -> Hashable:
    """A hashable value, equal for equal values of JSON; true is not 1."""
    if isinstance(value, dict):
        return "object", frozenset((name, _identity(member)) for name, member in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_identity, value))
    return isinstance(value, bool), value
