"""Selects the columns of a DataFrame for the key and the body of a record, and checks them against the schema."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from functools import reduce
from typing import Final, Literal, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.values.pointer import child, names
from spark_integration.foundation.sql import quoted
from spark_integration.read.mask import ColumnPath
from spark_integration.read.metadata_columns import is_about
from spark_integration.read.schemas.schema import refuse_twins

# Spark's to_json spells some control characters in another case than the workers, and one byte makes another key.
# The backslash comes first: the others' escapes begin with it.
_ESCAPES: Final = [(raw, json.dumps(raw)[1:-1]) for raw in ("\\", '"', *map(chr, range(0x20)))]


def key_text(fields: Sequence[Column]) -> Column:
    """The key of one field: its value as text. Of several: the compact JSON array of those texts."""
    texts = [field.cast("string") for field in fields]
    if len(texts) == 1:
        return texts[0]
    return F.concat(F.lit("["), F.concat_ws(",", *(_quoted(text) for text in texts)), F.lit("]"))


def is_key_type(data_type: DataType) -> bool:
    """Return whether Spark and the workers agree on the type's text: strings, whole numbers, booleans."""
    whole = isinstance(data_type, DecimalType) and data_type.scale == 0
    return whole or isinstance(data_type, StringType | IntegralType | BooleanType)


def _quoted(text: Column) -> Column:
    escaped = reduce(lambda column, escape: F.replace(column, F.lit(escape[0]), F.lit(escape[1])), _ESCAPES, text)
    return F.concat(F.lit('"'), escaped, F.lit('"'))


Nulls: TypeAlias = Literal["keep", "skip"]
"""The treatment of a null in a row: published, or left out with its field."""

_WAYS = (
    "columns=[...] (these, their nulls too), mask='column' (an array of names or JSON Pointers in each row) "
    "or nulls='skip' (every column that is not null)"
)


class Body(NamedTuple):
    """The columns of a record's body."""

    fields: list[ColumnPath]
    """The columns without the key."""
    mask: Column | None
    """The fields that a row carries, by name or JSON Pointer; None: all."""
    skip_nulls: bool
    """True if a null is left out."""


def delta_body(
    df: DataFrame, key: Sequence[ColumnPath], columns: Sequence[str] | None, mask: str | None, nulls: Nulls | None
) -> Body:
    """The body of a delta, in the way that the caller has chosen.

    Raises:
        ConfigurationError: no way was chosen or several were, or the columns cannot be used.
    """
    _check_nulls(nulls)
    if columns is not None and mask is not None:
        raise ConfigurationError("columns and mask both say what is in a delta; give one of them")
    if mask is not None:
        if nulls is not None:
            raise ConfigurationError(f"nulls={nulls!r} cannot be given with a mask: what it names is said, null or not")
        carried = text_array(df, "mask", mask)
        return Body(_others(df, key, mask), carried, skip_nulls=False)
    if columns is not None:
        return Body(_listed(df, key, columns), None, nulls == "skip")
    if nulls != "skip":
        raise ConfigurationError(f"nothing says which columns are in a delta, and a null is not a missing one: {_WAYS}")
    return Body(_others(df, key), None, skip_nulls=True)


def record_body(df: DataFrame, key: Sequence[ColumnPath], columns: Sequence[str] | None, nulls: Nulls) -> Body:
    """The body of a full record: the selected columns, or all except metadata columns.

    Raises:
        ConfigurationError: the columns cannot be used.
    """
    _check_nulls(nulls)
    fields = _others(df, key) if columns is None else _listed(df, key, columns)
    return Body(fields, None, nulls == "skip")


def key_places(df: DataFrame, key: Sequence[str], topic: TopicConfig | None) -> list[ColumnPath]:
    """The key columns.

    Args:
        df: the DataFrame with the columns.
        key: their names.
        topic: the topic's settings or None; the names must be those of its key fields.

    Raises:
        ConfigurationError: there are none, a type is not allowed in a key, or they are not the topic's key fields.
    """
    refuse_twins(df.schema, "the DataFrame")
    places = [_place(df, name) for name in listed("key", key)]
    if not places:
        raise ConfigurationError("key names no columns; a record without a key cannot be found again")
    for field in (place.field for place in places):
        if not is_key_type(field.dataType):
            raise ConfigurationError(
                f"key column {field.name!r} is {field.dataType.simpleString()}; "
                "a key is made of strings, whole numbers and booleans: cast it"
            )
    if (
        topic is not None
        and topic.key_fields
        and [names(pointer) for pointer in topic.key_fields] != [(place.field.name,) for place in places]
    ):
        raise ConfigurationError(
            f"key={list(key)!r}, but the topic's settings say {list(topic.key_fields)!r}; "
            "name the same fields in the same order, each a column of its own"
        )
    return places


def text_array(df: DataFrame, argument: str, name: str) -> Column:
    """The column with names or JSON Pointers.

    Raises:
        ConfigurationError: the column does not exist, or it is no array of strings.
    """
    place = _inner_place(df, name)
    data_type = place.field.dataType
    if not isinstance(data_type, ArrayType) or not isinstance(data_type.elementType, StringType):
        raise ConfigurationError(f"{argument} column {name!r} is {data_type.simpleString()}; it is an array<string>")
    return place.value


def boolean(df: DataFrame, argument: str, name: str) -> Column:
    """The column with booleans.

    Raises:
        ConfigurationError: the column does not exist, or it is no boolean.
    """
    place = _inner_place(df, name)
    if not isinstance(place.field.dataType, BooleanType):
        raise ConfigurationError(f"{argument} column {name!r} is {place.field.dataType.simpleString()}; cast it")
    return place.value


def order_of(df: DataFrame, order_by: Sequence[str]) -> Column:
    """The column that orders the rows of a key: a struct of these columns, or without any a constant.

    Raises:
        ConfigurationError: the column does not exist, or its values have no order.
    """
    places = [_inner_place(df, name) for name in listed("order_by", order_by)]
    for field in (place.field for place in places):
        if not has_order(field.dataType):
            raise ConfigurationError(f"order_by column {field.name!r} is {field.dataType.simpleString()}: no order")
    return F.struct(*(place.value.alias(f"_{i}") for i, place in enumerate(places))) if places else F.lit(0)


def has_order(kind: DataType) -> bool:
    """Return whether Spark can compare values of a type: not if it has a map or a variant, at any depth."""
    match kind:
        case StructType(fields=fields):
            return all(has_order(field.dataType) for field in fields)
        case ArrayType(elementType=inner):
            return has_order(inner)
        case _:
            return not isinstance(kind, MapType | VariantType)


def listed(argument: str, given: Sequence[str]) -> list[str]:
    """Make a list of names, and refuse a single text, which would be taken letter by letter.

    Raises:
        ConfigurationError: the argument is one text.
    """
    if isinstance(given, str):
        raise ConfigurationError(
            f"{argument}={given!r} is one text; give a list of column names: {argument}=[{given!r}]"
        )
    return list(given)


def _check_nulls(nulls: Nulls | None) -> None:
    if nulls not in ("keep", "skip", None):
        raise ConfigurationError(f"nulls={nulls!r}: say 'keep' (publish them) or 'skip' (leave the fields out)")


def _listed(df: DataFrame, key: Sequence[ColumnPath], columns: Sequence[str]) -> list[ColumnPath]:
    keys = {place.field.name for place in key}
    return [_place(df, name) for name in dict.fromkeys(listed("columns", columns)) if name not in keys]


def _others(df: DataFrame, key: Sequence[ColumnPath], *apart: str) -> list[ColumnPath]:
    """Every column except the key, the metadata columns and those in `apart`."""
    left_out = {*(place.field.name for place in key), *apart}
    fields = [field for field in df.schema.fields if field.name not in left_out]
    return [_place(df, field.name) for field in fields if not is_about(field)]


def _place(df: DataFrame, name: str) -> ColumnPath:
    """The column of this very name."""
    fields = [field for field in df.schema.fields if field.name == name]
    if len(fields) == 1:
        return ColumnPath(fields[0], _column(fields[0]), child("", name))
    if fields:
        raise ConfigurationError(f"the DataFrame has {len(fields)} columns named {name!r}; rename all but one")
    close = difflib.get_close_matches(name, df.columns, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(df.columns)}"
    raise ConfigurationError(f"the DataFrame has no column {name!r}; {hint}")


def _inner_place(df: DataFrame, name: str) -> ColumnPath:
    """The column of this very name, or the field of a struct, `_sow.changed`."""
    outer, dot, inner = name.partition(".")
    if name in df.columns or not dot:
        return _place(df, name)
    place = _place(df, outer)
    while dot:
        outer, dot, inner = inner.partition(".")
        struct = place.field.dataType
        if not isinstance(struct, StructType) or outer not in struct.names:
            raise ConfigurationError(
                f"the DataFrame has no column {name!r}: {place.field.name!r} is {struct.simpleString():.200}"
            )
        place = ColumnPath(struct[outer], place.value.getField(outer), child(place.pointer, outer))
    return place


def _column(field: StructField) -> Column:
    return F.col(quoted([field.name]))
