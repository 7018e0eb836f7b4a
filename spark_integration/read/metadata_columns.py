"""The metadata of a record as columns, such as its version: the same for tables and streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's own documentation has it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from processor.errors import ConfigurationError
from processor.wire import columns as headers
from spark_integration.foundation.sql import Sql, aliased, literal, quoted

Metadata: TypeAlias = Literal["struct", "flat", "none"]
"""The place of the metadata: one struct column `_sow`, columns of their own, or nowhere, for a `show()` that fits the
screen and for tables to insert into.
"""

SOW: Final = "_sow"
"""The struct column with the metadata of a record."""

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""The type of the headers of a record in Spark's Kafka source and sink."""

METADATA: Final = StructType(
    [
        StructField("sow_key", StringType()),
        StructField("version", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("expires_at", TimestampType()),
        StructField("source", StringType()),
        StructField("headers", HEADERS),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
    ]
)
"""The types of `described`."""

_ABOUT: Final[dict[str, Any]] = {"sowstream": "about"}
_YEAR_9999_MS: Final = 253_402_300_799_999


def described() -> dict[str, Sql]:
    """The metadata columns of both tables and streams, by name, in order."""
    return {
        "sow_key": "CAST(key AS STRING)",
        # Null in records that no worker wrote.
        "version": header_number(headers.VERSION),
        "timestamp": "timestamp",
        "expires_at": expires_at(),
        "source": header_text(headers.SOURCE),
        "headers": "headers",
        "partition": "partition",
        "offset": "offset",
    }


def expires_at() -> Sql:
    """The time at which the record expires; null: never."""
    # Spark looks for the header at each use of its number, and most records have none.
    has_time = f"array_contains(headers.key, {literal(headers.EXPIRES_AT)})"
    time_ms = header_number(headers.EXPIRES_AT)
    # No worker writes a time after the year 9999, and Spark would fail at it.
    is_time = f"{has_time} AND {time_ms} BETWEEN 1 AND {_YEAR_9999_MS}"
    return f"CASE WHEN {is_time} THEN timestamp_millis({time_ms}) END"


def is_live(now: Sql = "current_timestamp()") -> Sql:
    """A condition: the record has not expired at a time, also if no worker was running to delete it."""
    return f"coalesce({expires_at()} > {now}, true)"


def header_text(name: str) -> Sql:
    """The last value of a header as text, null without the header."""
    # Not `filter`: Spark compiles no function with a lambda, nor what stands in one step with it.
    from_end = f"nullif(array_position(reverse(headers.key), {literal(name)}), 0)"
    return f"CAST(try_element_at(headers.value, CAST(-{from_end} AS INT)) AS STRING)"


def header_number(name: str) -> Sql:
    """The number of a header by the rule of `processor.wire.headers`, null for every other value."""
    digits = f"regexp_extract({header_text(name)}, {literal(headers.NUMBER_PATTERN)}, 0)"
    return f"try_cast({digits} AS BIGINT)"


def header_kind() -> Sql:
    """The kind of an update, null for a value that is none."""
    text = header_text(headers.KIND)
    return f"CASE WHEN {text} IN ({', '.join(map(literal, headers.KINDS))}) THEN {text} END"


def check_layout(metadata: Metadata) -> None:
    """Refuse a `metadata` argument with another value.

    Raises:
        ConfigurationError: it is none of `struct`, `flat` and `none`.
    """
    if metadata not in get_args(Metadata):
        raise ConfigurationError(
            f"metadata={metadata!r}: say 'struct' (one column {SOW}), 'flat' (sow_key, version, … as columns) or 'none'"
        )


def kind_of_update() -> Sql:
    """The kind of the update that a record is."""
    # The most frequent kinds have no header: a record with a value and without a kind is an update.
    return f"coalesce({header_kind()}, IF(value IS NULL, 'delete', 'update'))"


def refuse_clash(fields: Iterable[str], names: Iterable[str], metadata: Metadata) -> None:
    """Make sure that no field of the records has the name of a metadata column.

    Args:
        fields: the names of the fields.
        names: the names of the metadata.
        metadata: the place of the metadata.

    Raises:
        ConfigurationError: a field has such a name.
    """
    taken = {SOW, *(name.lower() for name in names)} if metadata == "flat" else {SOW}
    if clash := [name for name in fields if name.lower() in taken]:
        remedy = (
            "give a schema without it, or, for JSON, read without a schema and decode column `value` with from_json"
            if metadata != "flat"
            else f"leave metadata='flat' out: in the struct {SOW}, metadata leaves all other names to the fields"
        )
        raise ConfigurationError(f"field {clash[0]!r} of the schema has the name of a metadata column; {remedy}")


def laid_out(columns: Mapping[str, Sql | Column], metadata: Metadata) -> list[Column]:
    """Arrange metadata columns: in the struct `_sow`, as columns of their own, or nowhere."""
    if metadata == "none":
        return []
    if metadata == "flat":
        return [about(name, F.expr(one) if isinstance(one, str) else one) for name, one in columns.items()]
    return [about(SOW, F.struct(*(_named(name, one) for name, one in columns.items())))]


def _named(name: str, column: Sql | Column) -> Column:
    return F.expr(aliased(name, column)) if isinstance(column, str) else column.alias(name)


def about(name: str, value: Column) -> Column:
    """Mark a column as metadata: it is left out when all columns of a row are published."""
    return value.alias(name, metadata=_ABOUT)


def is_about(field: StructField) -> bool:
    """Return whether the column is metadata: `_sow`, or one that `about` marked.

    A renamed column stays marked, a changed value does not.
    """
    return field.name == SOW or _ABOUT.items() <= field.metadata.items()


class MetadataColumns:
    """Finds the metadata columns of rows in either place."""

    def __init__(self, schema: StructType) -> None:
        """Find the place of the metadata in rows of this schema."""
        own = next((field.dataType for field in schema.fields if field.name == SOW), None)
        self._inner = frozenset(own.names) if isinstance(own, StructType) else frozenset[str]()
        self._names = frozenset(schema.names)
        self.is_struct = isinstance(own, StructType)
        """True if the metadata is in the struct `_sow`."""

    def path(self, name: str) -> tuple[str, ...] | None:
        """The path of a column; None where the rows have no such column.

        Args:
            name: a column's name, or that of a metadata column, with or without `_sow.` before it.
        """
        if name in self._names:
            return (name,)
        bare = name.removeprefix(f"{SOW}.")
        if bare in self._inner:
            return (SOW, bare)
        return (bare,) if bare in self._names and not self.is_struct else None

    def column(self, name: str) -> Column:
        """The column at `path`, which must exist."""
        path = self.path(name)
        assert path is not None, f"the rows have no column {name}"
        return F.col(quoted(path))
