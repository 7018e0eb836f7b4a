"""Finds the records that do not fit their columns, so that a query fails at them, or goes on and shows them as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, StructType

from processor.errors import ConfigurationError
from spark_integration.foundation.sql import Sql, literal
from spark_integration.read.mask import FROM_JSON, failure
from spark_integration.read.metadata_columns import SOW
from spark_integration.read.schemas.json_columns import ddl, inexact, is_several, name_of, out_of_range, shown

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

RECORD: Final = "__record"
"""The column of the parsed record."""

INEXACT: Final = "__inexact"
"""The column with the names of its fields that have another value than the text, or none as reading them would take too
long; null or empty: none. The first name is empty where the text is not one object."""

TEXT: Final = "CAST(value AS STRING)"
"""The record as JSON, in SQL."""

_INEXACT_OR_NONE: Final = f"coalesce({INEXACT}, array())"
_TYPES_MAX: Final = 500


def check_on_misfit(on_misfit: OnMisfit) -> None:
    """Refuse an `on_misfit` argument with another value.

    Raises:
        ConfigurationError: it is neither `fail` nor `column`.
    """
    if on_misfit not in get_args(OnMisfit):
        raise ConfigurationError(
            f"on_misfit={on_misfit!r}: say 'fail' (the query), or 'column' (a row with {SOW}.{MISFIT})"
        )


def with_record(
    records: DataFrame,
    struct: StructType,
    text: Sql = TEXT,
    options: Mapping[str, str] = FROM_JSON,
    mark: str = SOW,
) -> DataFrame:
    """Add the columns `RECORD` and `INEXACT`: each text is parsed once, whichever columns and conditions a query has.

    Args:
        records: rows of Spark's Kafka source, or others with a text of JSON.
        struct: the columns.
        text: the text, in SQL.
        options: Spark's options to read JSON.
        mark: the name of another field of `RECORD`, which is null unless the text does not fit.
    """
    # Spark copies what is deterministic into each condition above it, and would parse the text again for each.
    once, is_out_of_range = "IF(spark_partition_id() >= 0, {}, NULL)", f"size({INEXACT}) > 0"
    records = records.withColumn(INEXACT, F.expr(once.format(out_of_range(text, struct, options))))
    readable = F.expr(once.format(f"IF({is_out_of_range}, NULL, {text})"))
    records = records.withColumn(RECORD, F.from_json(readable, _with_mark(struct, mark), _permissive(options, mark)))
    names = f"IF({is_out_of_range}, {INEXACT}, {inexact(text, RECORD, struct, options)})"
    return records.withColumn(INEXACT, F.expr(once.format(names)))


def is_misfit() -> Sql:
    """A condition: a row of `with_record` does not fit, as `from_json` says so, or a column is inexact."""
    is_unread = f"{RECORD} IS NULL OR {RECORD}.{SOW} IS NOT NULL"
    return f"(value IS NOT NULL AND ({is_unread} OR coalesce(size({INEXACT}) > 0, false)))"


def misfit(is_unfit: Sql, struct: StructType, topic: str) -> Sql:
    """The metadata column `misfit`.

    Args:
        is_unfit: the result of `is_misfit`.
        struct: the columns; the rows are those of `with_record`.
        topic: the Kafka topic of the records.
    """
    return f"CASE WHEN {is_unfit} THEN struct({_reason(struct)} AS reason, {literal(topic)} AS topic, value) END"


def fitting(records: DataFrame, struct: StructType, topic: str, place: Sequence[tuple[str, Sql]]) -> DataFrame:
    """The records, where all fit; else the query fails, and the error has the place of the record and its fields.

    It is a condition on the rows, so that no choice of columns removes it.

    Args:
        records: the result of `with_record`.
        struct: the columns.
        topic: the Kafka topic of the records.
        place: names and values of the columns in `PLACE`.
    """
    where = (part for name, column in place for part in (literal(f", {name} "), column))
    remedy = "; publish the record again, give a schema that it fits, or go on over it: on_misfit='column'"
    types = f"substring(schema_of_variant(try_parse_json({TEXT})), 1, {_TYPES_MAX})"
    shown = f"coalesce(concat('; the record is ', {types}), '')"
    error = failure(literal(topic), *where, "': '", _reason(struct), shown, literal(remedy))
    return records.where(f"CASE WHEN {is_misfit()} THEN CAST({error} AS BOOLEAN) ELSE true END")


def _reason(struct: StructType) -> Sql:
    """The fields that do not fit. It is evaluated for records that do not fit only."""
    wrong = ", ".join(f"IF({_is_wrong(field)}, {shown(field)}, NULL)" for field in struct.fields)
    # Without a record no field was read.
    others = f"IF({RECORD} IS NULL, array(), array({wrong or 'NULL'}))"
    names = f"filter(array_union({_INEXACT_OR_NONE}, {others}), name -> name > '')"
    reason = f"concat_ws(': ', 'does not fit the schema', nullif(array_join({names}, ', '), ''))"
    present = f"map_keys(map_filter(from_json({TEXT}, 'map<string, string>'), (name, text) -> text IS NOT NULL))"
    # A function of arrays is not compiled: the code of a wide schema would be too long for Java.
    fields = f"element_at(transform(array({present}), present -> {reason}), 1)"
    # A name that occurs twice is an error of Spark's variant, not of from_json.
    return f"""CASE WHEN try_parse_json({TEXT}) IS NULL THEN 'not JSON'
        WHEN NOT startswith(schema_of_variant(try_parse_json({TEXT})), 'OBJECT') THEN 'not a JSON object'
        WHEN {is_several(TEXT)} THEN 'not one JSON object' ELSE {fields} END"""


def _is_wrong(field: StructField) -> str:
    """Return whether `from_json` finds no value of the type; `present` names the fields that are not null."""
    if isinstance(field.dataType, StructType | ArrayType | MapType):
        # It has the parts that fit.
        return f"{_parsed(StructType([field]))}.{SOW} IS NOT NULL"
    return f"{RECORD}.{name_of(field)} IS NULL AND array_contains(present, {literal(field.name)})"


def _parsed(struct: StructType) -> str:
    options = ", ".join(f"'{name}', '{value}'" for name, value in _permissive(FROM_JSON, SOW).items())
    return f"from_json({TEXT}, {literal(ddl(_with_mark(struct, SOW)))}, map({options}))"


def _permissive(options: Mapping[str, str], mark: str) -> dict[str, str]:
    return {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": mark}


def _with_mark(struct: StructType, mark: str) -> StructType:
    return StructType([*struct.fields, StructField(mark, StringType())])
