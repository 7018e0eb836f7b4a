"""Compares two states of the world: the records of a SOW topic with those that should be there."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from processor.wire import columns as names
from spark_integration.reading.metadata_columns import header_number

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"
SAME: Final = "same"


class Difference(NamedTuple):
    """A record that differs between two states of the world."""

    kind: str
    """The kind of the difference, from a closed list of the check that reports it."""
    partition: int
    """The partition of the key."""
    key: bytes
    """The key."""
    there: bytes | None
    """The value on the SOW topic; None: there is no record."""
    wanted: bytes | None
    """The value that it is compared with; None: there is no record."""
    there_version: int | None = None
    """The version on the SOW topic."""
    wanted_version: int | None = None
    """The version that it is compared with."""

    def __str__(self) -> str:
        """One line, with values of at most 200 characters."""
        key = self.key.decode(errors="replace")
        there, wanted = (_shown(*each) for each in (
            (self.there, self.there_version), (self.wanted, self.wanted_version)))  # fmt: skip
        return f"{self.kind}: key {key!r:.100} (partition {self.partition}): {there} -> {wanted}"


def _shown(value: bytes | None, version: int | None) -> str:
    number = "" if version is None else f"version {version} "
    return number + ("no record" if value is None else value.decode(errors="replace")[:200])


def compared(there: DataFrame, wanted: DataFrame) -> DataFrame:
    """Compare records by value and end of life; versions are not compared.

    Args:
        there: the last record of each key of the SOW topic: `partition`, `key`, `value`, `headers`.
        wanted: the records that should be there, in the same columns; rows without a value count as no record.

    Returns:
        A row for each key: `kind` (`insert`, `update`, `delete`, `same`), and the fields of `Difference`.
    """
    sides = [_side(rows.where("value IS NOT NULL"), name) for rows, name in ((there, "there"), (wanted, "wanted"))]
    both = sides[0].join(sides[1], ["partition", "key"], "full_outer")
    is_same = F.col("there").eqNullSafe(F.col("wanted")) & F.col("there_end").eqNullSafe(F.col("wanted_end"))
    kind = (
        F.when(F.col("there").isNull(), INSERT)
        .when(F.col("wanted").isNull(), DELETE)
        .otherwise(F.when(is_same, SAME).otherwise(UPDATE))
    )
    return both.select(kind.alias("kind"), "partition", "key", "there", "wanted", "there_version", "wanted_version")


def _side(rows: DataFrame, name: str) -> DataFrame:
    return rows.select(
        "partition",
        "key",
        F.col("value").alias(name),
        _or_zero(header_number(names.EXPIRES_AT)).alias(f"{name}_end"),
        header_number(names.VERSION).alias(f"{name}_version"),
    )


def _or_zero(number: Column) -> Column:
    return F.coalesce(number, F.lit(0))


def counts_by_kind(rows: DataFrame) -> dict[str, int]:
    """The number of rows of each kind."""
    return {row["kind"]: row["count"] for row in rows.groupBy("kind").count().collect()}


def first_rows(rows: DataFrame, limit: int) -> list[Difference]:
    """The first differences, by partition and key."""
    return [
        Difference(
            row["kind"],
            row["partition"],
            bytes(row["key"]),
            None if row["there"] is None else bytes(row["there"]),
            None if row["wanted"] is None else bytes(row["wanted"]),
            row["there_version"],
            row["wanted_version"],
        )
        for row in rows.orderBy("partition", "key").limit(limit).collect()
    ]
