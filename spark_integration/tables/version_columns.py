"""The columns of a table of versions, and the rows of a fold as its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from spark_integration.foundation.arrow_records import HEADERS_DDL
from spark_integration.read.misfit import RECORD, is_misfit, misfit, with_record

LAST_RECORD: Final = "_record"
"""The column of an open version's full record, to which the next delta applies."""
# Iceberg reserves `_partition` and a few more names.
PLACE: Final = ("_topic_partition", "_offset", "_end_offset", "_source", "_gone")
"""The columns that identify a version, and say what ended it."""
MARKS: Final = ("was_open", "is_state")
"""The columns of a fold that the table does not have."""
MISFIT: Final = "misfit"
"""The column of a version that does not fit, which the table does not have: the reason and the text."""


@dataclass(frozen=True, slots=True)
class VersionColumns:
    """The columns of a table of versions: those of the record, then `sow_key`, `version`, `valid_from`, `valid_to`."""

    record: StructType | None
    """The columns of the record; None: one column `value` with its JSON text."""
    prefix: str = ""
    """The beginning of the names of the other columns, where a field of the record has one of them."""

    def __post_init__(self) -> None:
        """Refuse a field with the name of another column.

        Raises:
            ConfigurationError: there is one.
        """
        taken = {name.lower() for name in self.added} | {LAST_RECORD, *PLACE}
        fields = ["value"] if self.record is None else self.record.names
        if clash := [name for name in fields if name.lower() in taken]:
            raise ConfigurationError(
                f"field {clash[0]!r} of the schema has the name of a column of the table; give those a prefix, such as "
                "`prefix: sow_`"
            )

    @property
    def added(self) -> list[str]:
        """The names of the columns next to the record's."""
        return [f"{self.prefix}{name}" for name in ("sow_key", "version", "valid_from", "valid_to")]

    @property
    def shown(self) -> list[str]:
        """The names of all columns that readers see."""
        return [*(["value"] if self.record is None else self.record.names), *self.added]

    def of(self, versions: DataFrame) -> DataFrame:
        """Convert the rows of a fold to those of the table, with `was_open` and `is_state`.

        The version of a record that does not fit has nulls in place of fields, and `MISFIT`.
        """
        key, version, valid_from, valid_to = self.added
        text, marks = F.col("value"), [F.col(name) for name in MARKS]
        if self.record is None:
            fields = [text.alias("value")]
        else:
            versions = with_record(versions, self.record)
            record = F.expr(f"IF({is_misfit()}, NULL, {RECORD})")
            marks.append(F.expr(misfit(is_misfit(), self.record, "")).alias(MISFIT))
            fields = [record.getField(name).alias(name) for name in self.record.names]
        return versions.select(
            *fields,
            F.col("key").alias(key),
            F.col("version").alias(version),
            F.timestamp_micros("from_us").alias(valid_from),
            F.timestamp_micros("to_us").alias(valid_to),
            F.col("partition").alias("_topic_partition"),
            F.col("offset").alias("_offset"),
            F.col("end_offset").alias("_end_offset"),
            F.col("source").alias("_source"),
            F.struct(*(F.col(f"gone_{name}").alias(name) for name in ("version", "source", "offset"))).alias("_gone"),
            # The full record of an open version, to which the next delta applies; ended ones need it no more.
            F.when(F.col("to_us").isNull(), text).alias(LAST_RECORD),
            *marks,
        )

    def misfits(self, versions: DataFrame) -> DataFrame | None:
        """The rows for `OnMisfits` of those that `of` gives; None where no version can be one."""
        if MISFIT not in versions.columns:
            return None
        key, _, valid_from, _ = self.added
        # An earlier version comes again with its end.
        return versions.where(F.col(MISFIT).isNotNull() & ~F.col("was_open")).select(
            F.col(f"{MISFIT}.reason").alias("reason"),
            F.col("_topic_partition").alias("partition"),
            F.col("_offset").alias("offset"),
            F.col(key).alias("key"),
            F.col(valid_from).alias("at"),
            F.col(f"{MISFIT}.value").cast("string").alias("row"),
        )

    def as_state(self, rows: DataFrame) -> DataFrame:
        """Convert rows of the table, open versions and those that a delete has ended, to those a fold begins with."""
        key, version, valid_from, _ = self.added
        return rows.select(
            F.col(key).alias("key"),
            F.lit(False).alias("is_delta"),
            F.col("_topic_partition").alias("partition"),
            F.col("_offset").alias("offset"),
            F.unix_micros(valid_from).alias("at_us"),
            F.col(LAST_RECORD).cast("binary").alias("value"),
            F.lit(None).cast(HEADERS_DDL).alias("headers"),
            F.col(version).alias("version"),
            F.col("_source").alias("source"),
            *(F.col(f"_gone.{name}").alias(f"gone_{name}") for name in ("version", "source", "offset")),
        )
