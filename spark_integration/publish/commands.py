"""Builds commands from rows: the key, the message and the headers of one record a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from processor.record import Command
from processor.wire import columns as names
from spark_integration.publish.columns import Body, key_text
from spark_integration.read.mask import ColumnPath, failing, masked_text, pointers, text_of

MASK: Final = "__mask"
"""The column with the mask of a row as JSON Pointers: computed once for all fields."""


def with_mask(df: DataFrame, body: Body) -> DataFrame:
    """Add column `MASK` to rows with a mask."""
    return df if body.mask is None else df.withColumn(MASK, pointers(body.mask))


def key_of(places: Sequence[ColumnPath]) -> Column:
    """The record key as text; a row without a key fails the query."""
    columns = [place.value for place in places]
    text = key_text(columns)
    nullable = [place.value.isNull() for place in places if place.field.nullable]
    if not nullable:
        return text
    shown = text_of([place.value.alias(place.field.name) for place in places], skip_nulls=False)
    keyless = failing(
        F.lit("a row has no key, "),
        shown,
        F.lit(": nothing was written; drop such rows first, for example with df.dropna(subset=key)"),
    )
    return F.when(reduce(or_, nullable), keyless).otherwise(text)


def text_of_body(key: Sequence[ColumnPath], body: Body) -> Column:
    """The message as JSON: the key fields, then the body."""
    if body.mask is not None:
        return masked_text(key, body.fields, F.col(MASK))
    members = [place.value.alias(place.field.name) for place in (*key, *body.fields)]
    return text_of(members, skip_nulls=body.skip_nulls)


def headers_of(command: Command, deleted: Column | None = None, removed: Column | None = None) -> Column:
    """The headers of each row.

    Args:
        command: the command of the record. The header is always written, as topics may have another default.
        deleted: true where a row deletes its record instead.
        removed: names or JSON Pointers of the fields to remove.
    """
    row_command = F.lit(command) if deleted is None else F.when(deleted, "sow_delete").otherwise(command)
    headers = [header(names.COMMAND, row_command)]
    if removed is not None:
        gone = pointers(removed)
        stays = F.size(gone) == 0 if deleted is None else (F.size(gone) == 0) | F.coalesce(deleted, F.lit(False))
        # A null list removes nothing: its size is below 0, or null.
        empty = F.coalesce(stays | gone.isNull(), F.lit(True))
        headers.append(F.when(~empty, header(names.REMOVE, F.to_json(gone))))
    return F.filter(F.array(*headers), lambda one: one.isNotNull())


def header(name: str, value: Column) -> Column:
    """Build a header."""
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
