"""Fails a query at a row that cannot be used, and turns the failure into an error for the caller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, MapType, StringType, StructField, StructType

from processor.errors import ConfigurationError
from processor.values.pointer import child

_MARK: Final = "sowstream: "
# Spark appends a place in its own code.
_SENTENCE: Final = re.compile(rf"\[USER_RAISED_EXCEPTION\] {_MARK}(.*?) SQLSTATE: P0001", re.DOTALL)


def failing(*sentence: Column) -> Column:
    """A column that fails the query with a sentence; null parts become `null`."""
    parts = (F.coalesce(part.cast("string"), F.lit("null")) for part in sentence)
    return F.raise_error(F.concat(F.lit(_MARK), *parts))


def failure(*sentence: str) -> str:
    """`failing` in SQL: the parts of the sentence are expressions."""
    parts = ", ".join(f"coalesce(CAST({part} AS STRING), 'null')" for part in sentence)
    return f"raise_error(concat('{_MARK}', {parts}))"


@contextmanager
def row_errors() -> Iterator[None]:
    """Raise the sentence of `failing` as an error.

    Raises:
        ConfigurationError: `failing` has failed the query; with its sentence.
    """
    try:
        yield
    except Exception as error:
        # The class of the error depends on its way to the driver.
        match = _SENTENCE.search(str(error))
        if match is None:
            raise
        raise ConfigurationError(match[1]) from None


TO_JSON: Final = {
    "ignoreNullFields": "false",
    # Spark's default formats cut timestamps to milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    # One instant is one text, whatever the session's zone; offsets before 1900 have seconds, which no text has.
    "timeZone": "UTC",
}
"""Spark's options for JSON: nulls are written, and timestamps have microseconds and are in UTC."""

FROM_JSON: Final = {"timeZone": "UTC"}
"""Spark's options to read JSON: a timestamp without a zone is in UTC, as for filters."""


class ColumnPath(NamedTuple):
    """A column, or a field inside one, with its JSON Pointer."""

    field: StructField
    value: Column
    pointer: str
    """Its JSON Pointer (RFC 6901)."""


def text_of(fields: Sequence[Column], *, skip_nulls: bool) -> Column:
    """Write columns as one JSON object, under their names."""
    return F.to_json(F.struct(*fields), {**TO_JSON, "ignoreNullFields": str(skip_nulls).lower()})


def pointers(mask: Column) -> Column:
    """Convert column names in a mask, such as `price`, to JSON Pointers; pointers stay unchanged."""
    return F.transform(mask, lambda name: F.when(name.startswith("/"), name).otherwise(_below("", name)))


def masked_text(key: Sequence[ColumnPath], places: Sequence[ColumnPath], mask: Column) -> Column:
    """Write one JSON object: the key, and the fields that the mask names.

    A pointer to a struct or a map selects all of it, nulls included; a pointer into one selects that field only.

    Args:
        key: the key columns, which are in every delta, also if the mask does not name them.
        places: all other columns.
        mask: the result of `pointers`.

    Returns:
        JSON text; the query fails at a row whose mask is null or names an unknown field.
    """
    known_pointers = [pointer for place in (*key, *places) for pointer in _static(place.field.dataType, place.pointer)]
    unknown = F.array_except(mask, F.array(*map(F.lit, known_pointers)).cast("array<string>"))
    for keys in (keys for place in places for keys in _keys(place)):
        unknown = F.array_except(unknown, keys)
    always = text_of([place.value.alias(place.field.name) for place in key], skip_nulls=False)
    named = _object([always, *(_member(place, mask) for place in places)])
    return (
        F.when(mask.isNull(), failing(F.lit("the mask of a row is null; give it an empty array where nothing changes")))
        .when(
            F.size(unknown) > 0,
            failing(
                F.lit("the mask of a row names what the DataFrame has no column for: "),
                F.to_json(unknown),
                F.lit("; add the columns, or take those names out of the mask, for example with array_intersect"),
            ),
        )
        .otherwise(named)
    )


def _member(place: ColumnPath, mask: Column) -> Column:
    """`{"name":value}` with the fields that the mask names; null where it names none."""
    name = place.field.name
    whole = F.to_json(F.struct(place.value.alias(name)), TO_JSON)
    member = F.when(F.array_contains(mask, place.pointer), whole)
    inner = _inner(place, mask)
    if inner is None:
        return member
    is_entered = F.exists(mask, lambda pointer: pointer.startswith(f"{place.pointer}/"))
    return member.when(is_entered, F.concat(F.lit(f"{{{json.dumps(name, ensure_ascii=False)}:"), inner, F.lit("}")))


def _inner(place: ColumnPath, mask: Column) -> Column | None:
    """The fields of a struct or a map that the mask names, as a JSON object; None for other types."""
    if isinstance(place.field.dataType, StructType):
        return _object([_member(inner, mask) for inner in _fields(place)])
    if _is_map(place.field.dataType):
        named = F.map_filter(place.value, lambda key, _: F.array_contains(mask, _below(place.pointer, key)))
        return F.to_json(named, TO_JSON)
    return None


def _object(members: Sequence[Column]) -> Column:
    """Join JSON objects to one; nulls are left out."""
    texts = F.filter(F.array(*members), lambda text: text.isNotNull())
    bare = F.transform(texts, lambda text: F.substr(text, F.lit(2), F.length(text) - 2))
    return F.concat(F.lit("{"), F.array_join(bare, ","), F.lit("}"))


def _static(data_type: DataType, pointer: str) -> Iterator[str]:
    """The pointers that exist in every row."""
    yield pointer
    if isinstance(data_type, StructType):
        for field in data_type.fields:
            yield from _static(field.dataType, child(pointer, field.name))


def _keys(place: ColumnPath) -> Iterator[Column]:
    """The pointers into the maps of a row."""
    if isinstance(place.field.dataType, StructType):
        for inner in _fields(place):
            yield from _keys(inner)
    elif _is_map(place.field.dataType):
        keys = F.transform(F.map_keys(place.value), lambda key: _below(place.pointer, key))
        yield F.coalesce(keys, F.array().cast("array<string>"))


def _fields(place: ColumnPath) -> Iterator[ColumnPath]:
    assert isinstance(place.field.dataType, StructType), "only structs have fields"
    for field in place.field.dataType.fields:
        yield ColumnPath(field, place.value.getField(field.name), child(place.pointer, field.name))


def _is_map(data_type: DataType) -> bool:
    return isinstance(data_type, MapType) and isinstance(data_type.keyType, StringType)


def _below(pointer: str, name: Column) -> Column:
    escaped = F.replace(F.replace(name, F.lit("~"), F.lit("~0")), F.lit("/"), F.lit("~1"))
    return F.concat(F.lit(f"{pointer}/"), escaped)
