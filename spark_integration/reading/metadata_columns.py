"""What the headers of a record say, as columns: the same for tables and streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's own documentation has it
from pyspark.sql.types import StructField, StructType

from processor.errors import ConfigurationError
from processor.wire import columns as headers
from processor.wire.headers import NUMBER_PATTERN

_ABOUT: Final[dict[str, Any]] = {"sowstream": "about"}
_YEAR_9999_MS: Final = 253_402_300_799_999


def described() -> dict[str, Column]:
    """What tables and streams both say of a record, by name, in order."""
    return {
        "sow_key": F.col("key").cast("string"),
        # Null where somebody else than a worker wrote the record.
        "version": header_number(headers.VERSION),
        "timestamp": F.col("timestamp"),
        "expires_at": expires_at(),
        "source": header_text(headers.SOURCE),
        "headers": F.col("headers"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
    }


def expires_at() -> Column:
    """When the record expires; null: never."""
    time_ms = header_number(headers.EXPIRES_AT)
    # What no calendar has, somebody else wrote; Spark would fail over it.
    return F.when(time_ms.between(1, _YEAR_9999_MS), F.timestamp_millis(time_ms))


def header_text(name: str) -> Column:
    """The last value of a header as text, null where there is none."""
    named = F.filter(F.col("headers"), lambda header: header["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"].cast("string")


def header_number(name: str) -> Column:
    """The number of a header by the rule of `processor.wire.headers`, null for every other value."""
    text = header_text(name)
    return F.when(text.rlike(NUMBER_PATTERN), text.try_cast("long"))


def header_kind() -> Column:
    """The kind of an update, null for a value that is none."""
    text = header_text(headers.KIND)
    return F.when(text.isin(*headers.KINDS), text)


def refuse_clash(struct: StructType, metadata: Iterable[str]) -> None:
    """Make sure that no field of the records has the name of a metadata column.

    Raises:
        ConfigurationError: one has.
    """
    taken = {name.lower() for name in metadata}
    if clash := [name for name in struct.names if name.lower() in taken]:
        raise ConfigurationError(
            f"field {clash[0]!r} of the schema has the name of a metadata column; give a schema without it, or, for "
            "JSON, read without a schema and decode column `value` with from_json"
        )


def about(name: str, value: Column) -> Column:
    """A column that is no field of the record: where all of a row is published, it is not."""
    return value.alias(name, metadata=_ABOUT)


def is_about(field: StructField) -> bool:
    """Whether `about` made it. It stays so under other names, as long as its value is unchanged."""
    return _ABOUT.items() <= field.metadata.items()
