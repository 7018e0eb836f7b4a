"""Finds the records that do not fit their columns, so that a query can go on over them and show them as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, get_args

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from processor.errors import ConfigurationError
from spark_integration.read.mask import FROM_JSON, failing
from spark_integration.read.metadata_columns import SOW

OnMisfit: TypeAlias = Literal["fail", "column"]
"""The treatment of a record that does not fit its columns: fail the query, or a row with metadata `misfit`."""

MISFIT: Final = "misfit"
"""The metadata column of such a row; null for all other rows."""

MISFIT_TYPE: Final = StructType(
    [StructField("reason", StringType()), StructField("topic", StringType()), StructField("value", BinaryType())]
)
"""Its type: why the record does not fit, its Kafka topic, and its bytes."""

PLACE: Final = ("partition", "offset", "sow_key")
"""The metadata columns that an error has, so that the record can be looked up."""

_TYPES_MAX: Final = 500
_PERMISSIVE: Final = {**FROM_JSON, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": SOW}


def check_on_misfit(on_misfit: OnMisfit) -> None:
    """Refuse an `on_misfit` argument with another value.

    Raises:
        ConfigurationError: it is neither `fail` nor `column`.
    """
    if on_misfit not in get_args(OnMisfit):
        raise ConfigurationError(
            f"on_misfit={on_misfit!r}: say 'fail' (the query), or 'column' (a row with {SOW}.{MISFIT})"
        )


def parsed(text: Column, struct: StructType) -> Column:
    """Parse JSON; `is_misfit` finds the texts that do not fit.

    Returns:
        The struct, with another field `_sow`, which is null unless the text does not fit.
    """
    return F.from_json(text, _with_mark(struct), _PERMISSIVE)


def is_misfit(text: Column, record: Column) -> Column:
    """Return whether a text does not fit: the result of `parsed` is marked, or there is none, as of an empty text."""
    return text.isNotNull() & (record.isNull() | record[SOW].isNotNull())


def misfit(text: Column, record: Column, struct: StructType, topic: str, value: Column) -> Column:
    """The metadata column `misfit`.

    Args:
        text: the record as JSON.
        record: the result of `parsed`.
        struct: the columns.
        topic: the Kafka topic of the records.
        value: the bytes of the record.
    """
    columns = F.struct(_reason(text, struct).alias("reason"), F.lit(topic).alias("topic"), value.alias("value"))
    return F.when(is_misfit(text, record), columns)


def fitting(
    text: Column, record: Column, struct: StructType, topic: str, place: Sequence[tuple[str, Column]]
) -> Column:
    """The record, where it fits; else the query fails, and the error has the place of the record and its types.

    Args:
        text: the record as JSON.
        record: the result of `parsed`.
        struct: the columns.
        topic: the Kafka topic of the records.
        place: names and values of the columns in `PLACE`.
    """
    where = (part for name, column in place for part in (F.lit(f", {name} "), column))
    remedy = "; publish the record again, give a schema that it fits, or go on over it: on_misfit='column'"
    # Not `_reason`: Java does not compile the long code of a wide schema, which all records would run through.
    types = F.substring(F.schema_of_variant(F.try_parse_json(text)), 1, _TYPES_MAX)
    reason = F.coalesce(F.concat(F.lit("does not fit the schema, as it is "), types), F.lit("not JSON"))
    error = failing(F.lit(topic), *where, F.lit(": "), reason, F.lit(remedy))
    return F.when(is_misfit(text, record), error.cast(_with_mark(struct))).otherwise(record)


def _reason(text: Column, struct: StructType) -> Column:
    """The fields that do not fit. It is evaluated for records that do not fit only: each field is parsed alone."""
    wrong = F.filter(
        F.array(*(F.when(_is_wrong(text, field), F.lit(_shown(field))) for field in struct.fields)).cast(
            "array<string>"
        ),
        lambda name: name.isNotNull(),
    )
    # A name that occurs twice is an error of Spark's variant, not of from_json.
    document = F.try_parse_json(text)
    return (
        F.when(document.isNull(), F.lit("not JSON"))
        .when(~F.startswith(F.schema_of_variant(document), F.lit("OBJECT")), F.lit("not a JSON object"))
        .when(F.size(wrong) > 0, F.concat(F.lit("does not fit the schema: "), F.array_join(wrong, ", ")))
        .otherwise(F.lit("does not fit the schema"))
    )


def _is_wrong(text: Column, field: StructField) -> Column:
    return parsed(text, StructType([field]))[SOW].isNotNull()


def _shown(field: StructField) -> str:
    return f"/{field.name} is not {field.dataType.simpleString():.100}"


def _with_mark(struct: StructType) -> StructType:
    return StructType([*struct.fields, StructField(SOW, StringType())])
