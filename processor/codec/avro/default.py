"""The defaults of fields that a record leaves out: the defaults of a schema's fields."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from processor.codec.avro.scalar import logical_of
from processor.codec.avro.schema import PYTHON_TYPES, BadSchema, Node, Schema, classes
from processor.codec.schema_registry.topic_schema import UnusableSchema
from processor.errors import RecordRejected
from processor.record import Value

Complete: TypeAlias = Callable[[Value], None]

_NUMBERS: Final = (int, float)


RECORDS_MAX: Final = 10_000
"""Most records in the default of a field; in each of them, records of further types may be left out."""


def default_of(schema: Schema, field: Any, records: list[None] | None = None) -> Callable[[], Value] | None:
    """A function that makes the default of a field, a new one each time; None if the field needs a value.

    Without a default, a field that may be null is null. `records` has an item for each record that was made.

    Raises:
        BadSchema: the default is none of the type's.
        UnusableSchema: it has more than `RECORDS_MAX` records.
    """
    if "default" not in field:
        word, body = schema.shape(field["type"])
        nullable = word == "null" or (word == "union" and any(schema.shape(branch)[0] == "null" for branch in body))
        return _null if nullable else None
    value = _value(schema, field["type"], field["default"], [] if records is None else records)
    return (lambda: copy.deepcopy(value)) if isinstance(value, dict | list) else lambda: value


def compile_complete(schema: Schema) -> Complete:
    """A function that sets in place the missing fields of a record that have a default, to any depth.

    It raises RecordRejected, `schema_mismatch`, for a field that needs a value.
    """
    complete = _Compiler(schema).node(schema.root)
    assert complete is not None, "a record always can lack something"
    return complete


def _null() -> None:
    return None


def _value(schema: Schema, node: Node, default: Any, records: list[None]) -> Value:
    """The value that a default, written as JSON, stands for.

    Raises:
        BadSchema: it is none of the type's.
    """
    word, body = schema.shape(node)
    if word == "union":
        for branch, kind in zip(body, classes(schema, body), strict=True):
            try:
                value = _value(schema, branch, default, records)
            except BadSchema:
                continue
            return value if type(value) is kind else kind(value)
    elif word == "record" and isinstance(default, dict):
        records.append(None)
        if len(records) > RECORDS_MAX:
            raise UnusableSchema(f"a default of more than {RECORDS_MAX} records")
        record = {}
        for field in body["fields"]:
            if field["name"] in default:
                record[field["name"]] = _value(schema, field["type"], default[field["name"]], records)
            elif (make := default_of(schema, field, records)) is not None:
                record[field["name"]] = make()
            else:
                raise BadSchema(f"a default of {body['name']} lacks {field['name']}")
        return record
    elif word == "array" and isinstance(default, list):
        return [_value(schema, body["items"], item, records) for item in default]
    elif word == "map" and isinstance(default, dict):
        return {name: _value(schema, body["values"], item, records) for name, item in default.items()}
    elif word in {"float", "double"} and type(default) in _NUMBERS:
        return float(default)
    elif word in {"bytes", "fixed"} and isinstance(default, str):
        return _logical(word, body, default.encode("latin-1", errors="replace"))
    elif type(default) is PYTHON_TYPES.get(word):
        return _logical(word, body, default)
    raise BadSchema(f"{default!r:.100} is no default of the type {word}")


def _logical(word: str, body: Any, raw: Any) -> Value:
    logical = logical_of(word, body)
    try:
        return raw if logical is None else logical.read(raw)
    except (ValueError, OverflowError) as error:
        raise BadSchema(f"{raw!r:.100} is no default: {error}") from None


class _Compiler:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._records: dict[str, Complete] = {}

    def node(self, node: Node) -> Complete | None:
        """The completion of a value; None where it never lacks anything. What replaces whole is whole already."""
        word, body = self._schema.shape(node)
        if word == "union":
            # One branch at most merges.
            kinds = zip(body, classes(self._schema, body), strict=True)
            return next((self.node(branch) for branch, kind in kinds if kind is dict), None)
        if word == "map":
            return self._each(self.node(body["values"]))
        return self._record(body) if word == "record" else None

    def _each(self, inner: Complete | None) -> Complete | None:
        if inner is None:
            return None

        def complete(value: Value) -> None:
            if type(value) is dict:
                for member in value.values():
                    inner(member)

        return complete

    def _record(self, body: Any) -> Complete:
        name = body["name"]
        if name in self._records:
            return self._records[name]
        fields = {field["name"]: default_of(self._schema, field) for field in body["fields"]}
        names = fields.keys()
        inner: list[tuple[str, Complete]] = []

        def complete(value: Value) -> None:
            if type(value) is not dict:
                return
            if value.keys() != names:
                for field, make in fields.items():
                    if field not in value:
                        if make is None:
                            raise RecordRejected("schema_mismatch", f"{field} of {name} is missing and has no default")
                        value[field] = make()
            for field, below in inner:
                below(value[field])

        self._records[name] = complete
        below_all = ((field["name"], self.node(field["type"])) for field in body["fields"])
        inner.extend((field, below) for field, below in below_all if below is not None)
        return complete
