"""What the bytes and headers of a record say, as typed columns: the same for tables and streams."""

from __future__ import annotations

from pyspark.errors import ParseException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's own documentation has it
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError


def record_columns(schema: StructType | str | None, metadata: dict[str, Column]) -> list[Column]:
    """The record's own columns, then the metadata.

    Without a schema the record is one column `value`, the text as it is on the topic. With one, each field is a column
    of its name, null where the record has no such field, and a record that does not fit the schema fails the query:
    Spark's other way, a null in its place, could not be told from a null or a missing field.

    Args:
        schema: the fields wanted: a `StructType`, or DDL such as `id LONG, name STRING`.
        metadata: the columns that follow, by name.

    Raises:
        ConfigurationError: the schema is not one, or a field has the name of a metadata column.
    """
    text = F.col("value").cast("string")
    described = [column.alias(name) for name, column in metadata.items()]
    if schema is None:
        return [text.alias("value"), *described]
    struct = _struct(schema)
    taken = {name.lower() for name in metadata}
    if clash := [name for name in struct.names if name.lower() in taken]:
        raise ConfigurationError(
            f"field {clash[0]!r} of the schema has the name of a metadata column; "
            "read without a schema and decode column `value` with from_json"
        )
    record = F.from_json(text, struct, {"mode": "FAILFAST"})
    return [*(record.getField(name).alias(name) for name in struct.names), *described]


def header_text(name: str) -> Column:
    """The last value of a header as text, null where there is none."""
    named = F.filter(F.col("headers"), lambda header: header["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"].cast("string")


def sow_key() -> Column:
    """The key as text."""
    return F.col("key").cast("string")


def version() -> Column:
    """The record's version; null where somebody else than a worker wrote the record."""
    return header_text("version").try_cast("long")


def _struct(schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if not isinstance(schema, str):
        raise ConfigurationError(f"schema is a {type(schema).__name__}; give a StructType or DDL text")
    try:
        parsed = StructType.fromDDL(schema)
    except ParseException as error:
        raise ConfigurationError(f"schema {schema!r} is not DDL such as 'id LONG, name STRING': {error}") from None
    if not isinstance(parsed, StructType):
        raise ConfigurationError(f"schema {schema!r} names no fields; give DDL such as 'id LONG, name STRING'")
    return parsed
