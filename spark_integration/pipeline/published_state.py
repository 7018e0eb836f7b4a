"""The result that a job `features` has published last, so that the next time only its changes are published.

A result is prepared before its changes are published, and becomes the published one afterwards. A run that dies in
between finds the prepared result, and publishes the same changes under the same numbers: workers drop the repeats.

    <path>/data, <path>/_snapshots      see `Snapshots`: the published results
    <path>/_sowstream/prepared.json     the last prepared one: its number, directory and time, and by which settings
    <path>/_sowstream/keyless.json      the rows without a key that went to the quarantine last: a digest

The changes are numbered by that time, not by the number: a checkpoint that was set back to a copy gives the same
numbers to other results, and workers would drop their changes.

A result that other settings have prepared is never published: it is computed again. As some of its rows may have been
sent, all rows are sent then, and deletes of the keys that only such a result had.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructType

from processor.errors import ConfigurationError
from processor.values.pointer import child
from spark_integration.foundation.small_files import small_files
from spark_integration.foundation.sql import quoted
from spark_integration.tables.snapshots import Snapshot, Snapshots

if TYPE_CHECKING:
    from spark_integration.pipeline.job import JobIdentity

_FILE: Final = "_sowstream/prepared.json"
_KEYLESS: Final = "_sowstream/keyless.json"

DELETED: Final = "_deleted"
"""The column of changes that is true where a row is gone."""

REMOVED: Final = "_removed"
"""The column of changes with the JSON Pointers of the fields that are null, at any depth of structs."""

_IS_FIRST: Final = "__is_first"

log = structlog.stdlib.get_logger("sowstream.spark")


class Prepared(NamedTuple):
    """A result that is written, and perhaps not published yet."""

    snapshot: Snapshot
    """Its rows."""
    time_ms: int
    """The time when it was prepared, in Unix milliseconds, later than that of the one before."""
    abandoned: Sequence[str] = ()
    """The directories of results that other settings have prepared, of which some rows may have been sent."""


class PublishedState:
    """The rows that a job has published last."""

    def __init__(self, session: SparkSession, path: str, key: Sequence[str], identity: JobIdentity) -> None:
        """Open the state at a directory, which may be missing.

        Args:
            session: the session.
            path: the directory.
            key: the columns that identify a row.
            identity: the identity of the job, whose epoch grows with each change of its settings.
        """
        files = small_files(path, session)
        assert files is not None, "with a session, every file system can be reached"
        self._files, self._snapshots, self._key = files, Snapshots(session, path), list(key)
        self._settings = f"{identity.id}.{identity.epoch}"

    def prepare(self, rows: DataFrame) -> Prepared:
        """Write a result aside; if these settings have prepared one already, that is returned, and `rows` are not used.

        Raises:
            ConfigurationError: two rows have the same key.
        """
        latest = self._snapshots.latest()
        number = 1 if latest is None else latest.number + 1
        last = json.loads(self._files.read(_FILE) or "{}")
        abandoned: list[str] = []
        if last.get("number") == number:
            abandoned = last.get("abandoned", [])
            if last.get("settings") == self._settings:
                return Prepared(Snapshot(number, last["directory"], {}), last["time_ms"], abandoned)
            abandoned = [*abandoned, last["directory"]]
            log.warning("other settings have prepared changes: they are computed again", directory=last["directory"])
        snapshot = self._snapshots.write(rows, {})
        self._refuse_doubles(self._keyed(self._snapshots.rows(snapshot)))
        time_ms = max(int(time.time() * 1000), last.get("time_ms", 0) + 1)
        content = {"number": number, "directory": snapshot.directory, "time_ms": time_ms, "settings": self._settings,
                   "abandoned": abandoned}  # fmt: skip
        self._files.write(_FILE, json.dumps(content))
        return Prepared(snapshot, time_ms, abandoned)

    def changes(self, prepared: Prepared) -> DataFrame:
        """The rows that differ from the published ones; rows without a key are not among them.

        Returns:
            The columns of the result, `_deleted` and `_removed`; a row that is gone has its key alone.
        """
        after, latest = self._keyed(self._snapshots.rows(prepared.snapshot)), self._snapshots.latest()
        values = [name for name in after.columns if name not in self._key]
        before = None if latest is None else self._keyed(self._snapshots.rows(latest))
        sent = [self._snapshots.rows(Snapshot(0, directory, {})) for directory in prepared.abandoned]
        if sent or (before is not None and _types(before) != _types(after)):
            return self._all(after, [*sent, *([] if before is None else [before])], values)
        if before is None:
            return _with_removed(after.withColumn(DELETED, F.lit(False)), values)
        fresh, old = _content(after, self._key, "_after"), _content(before, self._key, "_before")
        joined = fresh.join(old, self._key, "full_outer")
        changed = joined.where(~F.col("_after").eqNullSafe(F.col("_before")))
        rows = changed.select(
            *map(_named, self._key),
            *(F.col("_after").getField("row").getField(name).alias(name) for name in values),
            F.col("_after").isNull().alias(DELETED),
        )
        return _with_removed(rows, values)

    def keyless(self, prepared: Prepared, batch_id: int) -> DataFrame | None:
        """The rows without a key, each time that they have changed.

        Args:
            prepared: the result.
            batch_id: the number of the micro-batch, which a repeated one has again.

        Returns:
            The columns of the result; None if there are no such rows, or the same ones as the last time.
        """
        everything = self._snapshots.rows(prepared.snapshot)
        rows = everything.where(self._lacks_key())
        row = F.struct(*map(_named, everything.columns))
        [found] = rows.agg(
            F.count("*").alias("count"), F.sum(F.xxhash64(F.to_json(row)) % (1 << 40)).alias("sum")
        ).collect()
        digest = f"{found['count']}/{found['sum']}"
        last = json.loads(self._files.read(_KEYLESS) or "{}")
        if last.get("digest", "0/None") == digest and last.get("batch") != batch_id:
            return None
        self._files.write(_KEYLESS, json.dumps({"batch": batch_id, "digest": digest}))
        return rows if found["count"] else None

    def _lacks_key(self) -> Column:
        return reduce(or_, [_named(name).isNull() for name in self._key])

    def _keyed(self, rows: DataFrame) -> DataFrame:
        return rows.where(~self._lacks_key())

    def _all(self, after: DataFrame, sent: Sequence[DataFrame], values: list[str]) -> DataFrame:
        """All rows, and deletes of those that were sent and are gone; for where each row may have changed.

        Args:
            after: the rows.
            sent: results of which rows were sent; one with other key columns names no key of today.
            values: the columns besides the key.
        """
        known = [rows for rows in sent if {*self._key} <= {*rows.columns}]
        former = [_struct_of(rows, [name for name in rows.columns if name not in self._key]) for rows in known]
        kinds = {field.name: field.dataType for field in after.schema.fields}
        rows = after.withColumn(DELETED, F.lit(False))
        if known:
            keys = (self._keyed(one).select(*(_named(name).cast(kinds[name]).alias(name) for name in self._key))
                    for one in known)  # fmt: skip
            gone = reduce(DataFrame.union, keys).distinct().join(after, self._key, "left_anti")
            rows = rows.unionByName(gone.withColumn(DELETED, F.lit(True)), allowMissingColumns=True)
        return _with_removed(rows, values, former)

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


def with_text_for_null(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Give a NULL in a key column the empty text, which is the key of that group in views too.

    A row whose key another one has by its own texts keeps its NULL, as SQL has a group of each.

    Raises:
        ConfigurationError: a key column is no text.
    """
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    for name in key:
        if not isinstance(kinds[name], StringType):
            raise ConfigurationError(
                f"null_keys: group gives a NULL the empty text, and key column {name!r} is "
                f"{kinds[name].simpleString()}; write CAST({name} AS STRING) AS {name} in the query"
            )
    texts = {name: F.coalesce(_named(name), F.lit("")) for name in key}
    first = F.rank().over(Window.partitionBy(*texts.values()).orderBy(*(_named(name).isNull() for name in key))) == 1
    keys = {name: F.when(F.col(_IS_FIRST), text).otherwise(_named(name)) for name, text in texts.items()}
    return rows.withColumn(_IS_FIRST, first).withColumns(keys).drop(_IS_FIRST)


def _content(rows: DataFrame, key: list[str], name: str) -> DataFrame:
    """The key, and all other columns as one; not null also where there are none."""
    values = [_named(column) for column in rows.columns if column not in key]
    row = F.struct(*values) if values else F.lit(True)
    return rows.select(*map(_named, key), F.struct(row.alias("row")).alias(name))


def _types(rows: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in rows.schema.fields}


def _struct_of(rows: DataFrame, names: list[str]) -> StructType:
    return StructType([field for field in rows.schema.fields if field.name in names])


def _with_removed(rows: DataFrame, values: list[str], former: Sequence[StructType] = ()) -> DataFrame:
    absent = [*_absent(_struct_of(rows, values), _named, "", former)]
    names = F.array_compact(F.array(*absent)) if absent else F.array()
    return rows.withColumn(REMOVED, names.cast("array<string>"))


def _absent(
    struct: StructType, value_of: Callable[[str], Column], pointer: str, former: Sequence[StructType]
) -> Iterator[Column]:
    """The JSON Pointers of the fields that the record of a row must not have; each is null where it may have its field.

    Args:
        struct: the type of the values at a pointer.
        value_of: gives the value of a field.
        pointer: their place in the record.
        former: the types of earlier values there, whose fields the record may have.
    """
    for field in struct.fields:
        value, place = value_of(field.name), child(pointer, field.name)
        yield F.when(value.isNull(), F.lit(place))
        if isinstance(field.dataType, StructType):
            kinds = [one[field.name].dataType for one in former if field.name in one.names]
            inner = [kind for kind in kinds if isinstance(kind, StructType)]
            # Below a value that is no object nothing can be removed.
            for absent in _absent(field.dataType, value.getField, place, inner):
                yield F.when(value.isNotNull(), absent)
    for name in dict.fromkeys(name for one in former for name in one.names if name not in struct.names):
        yield F.lit(child(pointer, name))


def _named(name: str) -> Column:
    return F.col(quoted([name]))
