"""The rows that a job has published last, so that the next time only changes are.

A result is prepared before its changes are published, and becomes the published one afterwards. A run that dies in
between finds the prepared result, and publishes the same changes under the same number: workers drop the repeats.

    <path>/data, <path>/_snapshots      see `Snapshots`: the published results
    <path>/_sowstream/prepared.json     the last prepared one: its number, its directory, and its time

The changes are numbered by that time, not by the number: a checkpoint that was set back to a copy gives the same
numbers to other results, and workers would drop their changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from spark_integration.read.metadata_columns import quoted
from spark_integration.small_files import small_files
from spark_integration.tables.snapshots import Snapshot, Snapshots

_FILE: Final = "_sowstream/prepared.json"

DELETED: Final = "_deleted"
"""The column of changes that is true where a row is gone."""

REMOVED: Final = "_removed"
"""The column of changes with the names of the columns that are null."""


class Prepared(NamedTuple):
    """A result that is written, and perhaps not published yet."""

    snapshot: Snapshot
    """Its rows."""
    time_ms: int
    """The time when it was prepared, in Unix milliseconds, later than that of the one before."""


class PublishedState:
    """The published rows of one job."""

    def __init__(self, session: SparkSession, path: str, key: Sequence[str]) -> None:
        """Open the state at a directory, which may be missing.

        Args:
            session: the session.
            path: the directory.
            key: the columns that identify a row.
        """
        files = small_files(path, session)
        assert files is not None, "with a session, every file system can be reached"
        self._files, self._snapshots, self._key = files, Snapshots(session, path), list(key)

    def prepare(self, rows: DataFrame) -> Prepared:
        """Write a result aside; if one is prepared already, that one is returned and `rows` are not computed.

        Raises:
            ConfigurationError: two rows have the same key.
        """
        latest = self._snapshots.latest()
        number = 1 if latest is None else latest.number + 1
        last = json.loads(self._files.read(_FILE) or "{}")
        if last.get("number") == number:
            return Prepared(Snapshot(number, last["directory"], {}), last["time_ms"])
        snapshot = self._snapshots.write(rows, {})
        self._refuse_doubles(self._snapshots.rows(snapshot))
        time_ms = max(int(time.time() * 1000), last.get("time_ms", 0) + 1)
        content = {"number": number, "directory": snapshot.directory, "time_ms": time_ms}
        self._files.write(_FILE, json.dumps(content))
        return Prepared(snapshot, time_ms)

    def changes(self, prepared: Prepared) -> DataFrame:
        """The rows that differ from the published ones.

        Returns:
            The columns of the result, `_deleted` and `_removed`; a row that is gone has its key alone.
        """
        after, latest = self._snapshots.rows(prepared.snapshot), self._snapshots.latest()
        values = [name for name in after.columns if name not in self._key]
        if latest is None:
            return _with_removed(after.withColumn(DELETED, F.lit(False)), values)
        before = self._snapshots.rows(latest)
        if _types(before) != _types(after):
            return self._all(after, before, values)
        fresh, old = _content(after, self._key, "_after"), _content(before, self._key, "_before")
        joined = fresh.join(old, self._key, "full_outer")
        changed = joined.where(~F.col("_after").eqNullSafe(F.col("_before")))
        rows = changed.select(
            *map(_named, self._key),
            *(F.col("_after").getField("row").getField(name).alias(name) for name in values),
            F.col("_after").isNull().alias(DELETED),
        )
        return _with_removed(rows, values)

    def _all(self, after: DataFrame, before: DataFrame, values: list[str]) -> DataFrame:
        """All rows, and those that are gone: the columns have changed, and with them every row."""
        former = [name for name in before.columns if name not in after.columns]
        gone = before.select(*map(_named, self._key)).join(after, self._key, "left_anti")
        rows = after.withColumn(DELETED, F.lit(False)).unionByName(
            gone.withColumn(DELETED, F.lit(True)), allowMissingColumns=True
        )
        removed = F.concat(REMOVED, F.array(*map(F.lit, former)).cast("array<string>"))
        return _with_removed(rows, values).withColumn(REMOVED, removed)

    def switch(self, prepared: Prepared) -> None:
        """Make a prepared result the published one: all its changes were sent.

        Raises:
            Stop: another job has published meanwhile.
        """
        self._snapshots.switch(prepared.snapshot)
        self._snapshots.clean(1)

    def _refuse_doubles(self, rows: DataFrame) -> None:
        double = rows.groupBy(*map(_named, self._key)).count().where("count > 1").first()
        if double is not None:
            shown = ", ".join(f"{name}={double[name]!r}" for name in self._key)
            raise ConfigurationError(
                f"the result has {double['count']} rows with {shown}; the key {self._key} must identify a row"
            )


def _content(rows: DataFrame, key: list[str], name: str) -> DataFrame:
    """The key, and all other columns as one; not null also where there are none."""
    values = [_named(column) for column in rows.columns if column not in key]
    row = F.struct(*values) if values else F.lit(True)
    return rows.select(*map(_named, key), F.struct(row.alias("row")).alias(name))


def _types(rows: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in rows.schema.fields}


def _with_removed(rows: DataFrame, values: list[str]) -> DataFrame:
    absent = [F.when(_named(name).isNull(), F.lit(name)) for name in values]
    names = F.array_compact(F.array(*absent)) if absent else F.array().cast("array<string>")
    return rows.withColumn(REMOVED, names.cast("array<string>"))


def _named(name: str) -> Column:
    return F.col(quoted([name]))
