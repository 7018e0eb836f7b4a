"""The job `features`: the result of a SQL query over topics, published into another topic, changed rows only."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pydantic import Field, ValidationInfo, field_validator
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.config.section import IntervalS
from processor.errors import ConfigurationError
from spark_integration.foundation.settings import topic_settings
from spark_integration.foundation.small_files import small_files
from spark_integration.pipeline.ingesting.kafka_source import kafka_records, partition_counts
from spark_integration.pipeline.job import Job, JobContext, JobSettings
from spark_integration.publish.publish import WRITERS_MAX, Sending, delta_rows
from spark_integration.read.metadata_columns import quoted
from spark_integration.read.read_topics import read_sow
from spark_integration.tables.snapshots import Snapshot, Snapshots

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


_WRITERS: Final = 4
_INFER: Final = "infer"

_FILE: Final = "_sowstream/prepared.json"

DELETED: Final = "_deleted"
"""The column of changes that is true where a row is gone."""

REMOVED: Final = "_removed"
"""The column of changes with the names of the columns that are null."""


class FeaturesSettings(JobSettings):
    """Settings of the job `features`."""

    sources: tuple[str, ...] = Field(alias="from", min_length=1)
    """The topics that the query reads, each a view of its name: the present record of every key."""
    sql: str
    """The query, in Spark's SQL."""
    topic: str
    """The topic to publish to."""
    key: tuple[str, ...] = Field(min_length=1)
    """The columns of the result that are the key fields of that topic."""
    every: IntervalS = Field(default=10.0, ge=0)
    """Time between two results; without new records there is none."""
    schemas: dict[str, str] = Field(default_factory=dict)
    """The columns of a source, as DDL, by topic; without them those of its Avro schema, or inferred from its records
    at each start.
    """
    writers: int = Field(default=_WRITERS, ge=1, le=WRITERS_MAX)
    """The number of tasks that send the changes."""

    @field_validator("schemas")
    @classmethod
    def _are_sources(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        others = [name for name in value if name not in info.data.get("sources", value)]
        if others:
            raise ValueError(f"{others[0]!r} is not in `from`")
        return value


class Features(Job[FeaturesSettings]):
    """Publishes the changes of a result."""

    settings_type: ClassVar[type[JobSettings]] = FeaturesSettings
    is_stateless: ClassVar[bool] = True

    def __init__(self, context: JobContext, settings: FeaturesSettings) -> None:
        """Check the settings against those of the topics.

        Raises:
            ConfigurationError: they do not fit.
        """
        super().__init__(context, settings)
        self._sources = {name: topic_settings(name, context.topics) for name in settings.sources}
        topic_settings(settings.topic, context.topics, needs_sow=False)

    @classmethod
    def reads(cls, settings: Any) -> Sequence[str]:
        """The sources of the query."""
        return list(settings.sources)

    @classmethod
    def publishes(cls, settings: Any) -> Sequence[str]:
        """The topic of the settings."""
        return [settings.topic]

    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """See `Job`."""
        settings, context = self.settings, self.context
        names = [source.kafka_topic("sow") for source in self._sources.values()]
        partition_counts(context, names)
        state = PublishedState(session, f"{context.checkpoint}/published", settings.key)
        # The stream is the clock: its records are never read, only its offsets.
        clock = kafka_records(session, names, context.kafka, {})

        def process(batch: DataFrame, batch_id: int) -> Counter[str]:  # noqa: ARG001 - results have their own numbers
            prepared = state.prepare(self._result(session))
            changes = state.changes(prepared).persist()
            try:
                count = changes.count()
                if count:
                    self._publish(changes, prepared.time_ms)
            finally:
                changes.unpersist()
            state.switch(prepared)
            return Counter(published=count)

        return self.run(clock.writeStream.foreachBatch(context.batches.counted(process)), once=once)

    def _result(self, session: SparkSession) -> DataFrame:
        """The result of the query over the present records.

        Raises:
            ConfigurationError: the query cannot be run, or its result lacks a key column.
        """
        for name in self._sources:
            records = read_sow(
                session, name, self._schema(name), options=self.context.kafka, config=self.context.topics
            )
            records.createOrReplaceTempView(name)
        try:
            rows = session.sql(self.settings.sql)
        except AnalysisException as error:
            inferred = [name for name in self._sources if self._schema(name) == _INFER]
            advice = (
                f" The columns of {inferred[0]} are those of its present records; name the others in `schemas`."
                if inferred and error.getCondition() == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
                else ""
            )
            raise ConfigurationError(f"{self.context.name}: sql: {error.getMessage() or error}{advice}") from None
        if missing := [name for name in self.settings.key if name not in rows.columns]:
            raise ConfigurationError(
                f"{self.context.name}: the result of the query has no key column {missing[0]!r}; it has: "
                f"{', '.join(rows.columns)}"
            )
        return rows

    def _schema(self, name: str) -> str | None:
        if name in self.settings.schemas:
            return self.settings.schemas[name]
        return _INFER if self._sources[name].topic.message_type == "json" else None

    def _publish(self, changes: DataFrame, time_ms: int) -> None:
        settings, context = self.settings, self.context
        values = [name for name in changes.columns if name not in (*settings.key, DELETED, REMOVED)]
        sending = Sending.of(
            changes, settings.topic, settings.key, context.kafka, (), context.client, None, settings.writers,
            context.topics,
        )  # fmt: skip
        sending.write(changes, delta_rows(sending, changes, values, None, "skip", REMOVED, DELETED), time_ms)


class Prepared(NamedTuple):
    """A result that is written, and perhaps not published yet."""

    snapshot: Snapshot
    """Its rows."""
    time_ms: int
    """The time when it was prepared, in Unix milliseconds, later than that of the one before."""


class PublishedState:
    """The rows that a job has published last, so that the next time only changes are.

    A result is prepared before its changes are published, and becomes the published one afterwards. A run that dies in
    between finds the prepared result, and publishes the same changes under the same number: workers drop the repeats.

        <path>/data, <path>/_snapshots      see `Snapshots`: the published results
        <path>/_sowstream/prepared.json     the last prepared one: its number, its directory, and its time

    The changes are numbered by that time, not by the number: a checkpoint that was set back to a copy gives the same
    numbers to other results, and workers would drop their changes.
    """

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
