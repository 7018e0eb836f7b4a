"""The metadata of a record as columns, such as its version: the same for tables and streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's own documentation has it
from pyspark.sql.types import StructField, StructType

from processor.errors import ConfigurationError
from processor.wire import columns as headers

_ABOUT: Final[dict[str, Any]] = {"sowstream": "about"}
_YEAR_9999_MS: Final = 253_402_300_799_999


def described() -> dict[str, Column]:
    """The metadata columns of both tables and streams, by name, in order."""
    return {
        "sow_key": F.col("key").cast("string"),
        # Null in records that no worker wrote.
        "version": header_number(headers.VERSION),
        "timestamp": F.col("timestamp"),
        "expires_at": expires_at(),
        "source": header_text(headers.SOURCE),
        "headers": F.col("headers"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
    }


def expires_at() -> Column:
    """The time at which the record expires; null: never."""
    time_ms = header_number(headers.EXPIRES_AT)
    # No worker writes a time after the year 9999, and Spark would fail at it.
    return F.when(time_ms.between(1, _YEAR_9999_MS), F.timestamp_millis(time_ms))


def header_text(name: str) -> Column:
    """The last value of a header as text, null without the header."""
    named = F.filter(F.col("headers"), lambda header: header["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"].cast("string")


def header_number(name: str) -> Column:
    """The number of a header by the rule of `processor.wire.headers`, null for every other value."""
    text = header_text(name)
    return F.when(text.rlike(headers.NUMBER_PATTERN), text.try_cast("long"))


def header_kind() -> Column:
    """The kind of an update, null for a value that is none."""
    text = header_text(headers.KIND)
    return F.when(text.isin(*headers.KINDS), text)


def refuse_clash(struct: StructType, metadata: Iterable[str]) -> None:
    """Make sure that no field of the records has the name of a metadata column.

    Raises:
        ConfigurationError: a field has such a name.
    """
    taken = {name.lower() for name in metadata}
    if clash := [name for name in struct.names if name.lower() in taken]:
        raise ConfigurationError(
            f"field {clash[0]!r} of the schema has the name of a metadata column; give a schema without it, or, for "
            "JSON, read without a schema and decode column `value` with from_json"
        )


def about(name: str, value: Column) -> Column:
    """Mark a column as metadata: it is left out when all columns of a row are published."""
    return value.alias(name, metadata=_ABOUT)


def is_about(field: StructField) -> bool:
    """Whether `about` marked the column. A renamed column stays marked, a changed value does not."""
    return _ABOUT.items() <= field.metadata.items()
