"""A DataFrame as delta publishes: each row changes the columns that are named, and no others."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField

from processor.errors import ConfigurationError
from processor.record import Name
from spark_integration.keys import is_key_type, key_text
from spark_integration.options import Options, sink_options

_COMMAND: Final = "delta_publish"


def publish_deltas(
    df: DataFrame,
    topic: str,
    key: Sequence[str],
    columns: Sequence[str],
    options: Options | None = None,
    *,
    nulls: Literal["keep", "skip"] = "keep",
) -> None:
    """Publish one delta per row: the key columns and `columns`, nothing else of the row.

    Spark writes at least once: a task that is tried again publishes its rows again. The rows of one key keep their
    order only within a partition of the DataFrame. For a stream call this from `foreachBatch`.

    Args:
        df: the rows. Where a key column may be null they are computed twice; cache them if that is dear.
        topic: the family's name; `.publish` is added.
        key: the columns that are the topic's key fields, in the topic's order: strings, whole numbers or booleans.
        columns: the columns that change; may be empty, which touches the records.
        options: of Spark's Kafka sink.
        nulls: what a null in a row means, at any depth. `keep` publishes it, and the topic's `null_policy` says what
            it does; `skip` leaves the field out, so that it does not change.

    Raises:
        ConfigurationError: options, topic or columns cannot be used, or a row has no key; nothing was written.
    """
    settings = sink_options(topic, "publish", options)
    if df.isStreaming:
        raise ConfigurationError(
            "publish_deltas got a stream; call it on each batch: "
            "df.writeStream.foreachBatch(lambda batch, _: publish_deltas(batch, ...))"
        )
    if nulls not in ("keep", "skip"):
        raise ConfigurationError(f"nulls={nulls!r}: say 'keep' (publish them) or 'skip' (leave the fields out)")
    key_fields = [_field(df, name) for name in _names("key", key)]
    delta_fields = [_field(df, name) for name in _names("columns", columns)]
    for field in key_fields:
        if not is_key_type(field.dataType):
            raise ConfigurationError(
                f"key column {field.name!r} is {field.dataType.simpleString()}; "
                "a key is made of strings, whole numbers and booleans: cast it"
            )
    _refuse_null_keys(df, key_fields)
    members = {field.name: _column(field).alias(field.name) for field in [*key_fields, *delta_fields]}
    records = df.select(
        key_text([_column(field) for field in key_fields]).cast("binary").alias("key"),
        F.to_json(F.struct(*members.values()), {"ignoreNullFields": str(nulls == "skip").lower()})
        .cast("binary")
        .alias("value"),
        # Said always, though it is the usual default: so it holds for a topic with any other.
        F.array(F.struct(F.lit(Name.COMMAND).alias("key"), F.lit(_COMMAND).cast("binary").alias("value"))).alias(
            "headers"
        ),
    )
    records.write.format("kafka").options(**settings).save()


def _column(field: StructField) -> Column:
    # Quoted: a dot in a plain name would mean a field inside a struct.
    return F.col(f"`{field.name.replace('`', '``')}`")


def _names(argument: str, names: Sequence[str]) -> list[str]:
    if isinstance(names, str):
        raise ConfigurationError(
            f"{argument}={names!r} is one text; give a list of column names: {argument}=[{names!r}]"
        )
    if argument == "key" and not names:
        raise ConfigurationError("key names no columns; a delta without a key has no record to change")
    return list(names)


def _field(df: DataFrame, name: str) -> StructField:
    """The column of this very name."""
    found = [field for field in df.schema.fields if field.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"the DataFrame has {len(found)} columns named {name!r}; rename all but one")
    close = difflib.get_close_matches(name, df.columns, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(df.columns)}"
    raise ConfigurationError(f"the DataFrame has no column {name!r}; {hint}")


def _refuse_null_keys(df: DataFrame, key_fields: Sequence[StructField]) -> None:
    nullable = [_column(field) for field in key_fields if field.nullable]
    if not nullable:
        return
    keyless = df.where(reduce(or_, (column.isNull() for column in nullable)))
    row = keyless.select(*(_column(field) for field in key_fields)).first()
    if row is not None:
        raise ConfigurationError(
            f"a row has no key, {row.asDict()}: nothing was written; "
            "drop such rows first, for example with df.dropna(subset=key)"
        )
