"""The job `archive`: every record of the publish and delta topics once, with Kafka's columns, partitioned by date."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import structlog
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pydantic import Field
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.config.section import Properties
from processor.errors import ConfigurationError
from spark_integration.foundation.pyspark_private import move_aside
from spark_integration.foundation.small_files import small_files
from spark_integration.pipeline.ingesting.kafka_source import (
    OFFSETS_PER_TRIGGER,
    has_begun,
    kafka_records,
    partition_counts,
    refuse_recreated,
    starting_offsets,
)
from spark_integration.pipeline.job import Job, JobSettings, Target
from spark_integration.tables.upsert import create_sql, is_missing, reason_of, require_package, target

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_integration.foundation.small_files import SmallFiles

log = structlog.stdlib.get_logger("sowstream.spark")

_OWN: Final = "_sowstream"
_PARTS: Final = ("topic", "date")


class ArchiveSettings(JobSettings):
    """Settings of the job `archive`."""

    topics: tuple[str, ...] = Field(min_length=1)
    """The topics to keep."""
    roles: tuple[Literal["publish", "delta", "sow"], ...] = ("publish", "delta")
    """The Kafka topics of each, by role."""
    to: Target
    """The place of the archive."""
    options: Properties = Field(default_factory=dict)
    """Options of Spark's Kafka source, such as `maxOffsetsPerTrigger`."""


class Archive(Job[ArchiveSettings]):
    """Appends the records of Kafka topics to an archive, each offset once."""

    settings_type: ClassVar[type[JobSettings]] = ArchiveSettings
    is_stateless: ClassVar[bool] = True

    @classmethod
    def reads(cls, settings: Any) -> Sequence[str]:
        """The topics of the settings."""
        return list(settings.topics)

    @classmethod
    def source_roles(cls, settings: Any) -> Sequence[str]:
        """The roles of the settings."""
        return list(settings.roles)

    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """See `Job`."""
        to, context = self.settings.to, self.context
        if to.format != "parquet":
            require_package(to.format, session.conf.get("spark.sql.extensions", "") or "")
        names = [self._kafka_topic(topic, role) for topic in self.settings.topics for role in self.settings.roles]
        counts = partition_counts(context, names)
        # The date of a record does not depend on the place where Spark runs.
        session.conf.set("spark.sql.session.timeZone", "UTC")
        own = None if to.path is None else small_files(f"{to.path}/{_OWN}", session)
        refuse_recreated(context, names, context.files if own is None else own)
        writer = archive_writer(session, to.place, to.format, context.identity.id)
        options = {"maxOffsetsPerTrigger": OFFSETS_PER_TRIGGER, **self.settings.options}
        if has_begun(context.files):
            writer.refuse_older(context.files.names("offsets"))
        else:
            # A new checkpoint goes on behind the records of an older one.
            options = {"startingOffsets": starting_offsets(counts, writer.reached(names)), **options}
        stream = kafka_records(session, names, context.kafka, options).select(
            "key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestampType",
            F.to_date("timestamp").alias("date"),
        )  # fmt: skip

        def process(batch: DataFrame, batch_id: int) -> Counter[str]:
            return Counter(written=writer.append(batch, batch_id))

        return self.run(stream.writeStream.foreachBatch(context.batches.counted(process)), once=once)

    def _kafka_topic(self, topic: str, role: str) -> str:
        topics = self.context.topics
        if role == "sow" and not topics.topic(topics.root(topic)).sow:
            raise ConfigurationError(f"{self.context.name}: {topic} keeps no records (sow: false); leave out role sow")
        return topics.kafka_names.topic(topic, role)


class ArchiveWriter(ABC):
    """Appends the micro-batches of one checkpoint to an archive, each once, although one may be repeated.

    As Parquet:

        <path>/topic=<topic>/date=<date>/batch=<checkpoint>-<number>/…parquet   the rows of one micro-batch
        <path>/_sowstream/<checkpoint>.json                                     the number of the last one
        <path>/_sowstream/sowstream.topics                                      the ids of the Kafka topics
        <path>/_sowstream/incomplete/…                                          parts of a batch whose writer died

    A table of Delta Lake has the number of the last micro-batch, too, in `_sowstream` of its directory.

    A repeated batch replaces its own directories: they are written aside and renamed, so that readers see complete
    ones. Any reader of Parquet sees each record once; `topic`, `date` and `batch` are columns. A batch of several dates
    has several directories, and a writer may die between two renames. Its checkpoint repeats the batch; another
    checkpoint, which begins behind the archive, sets the directories of such a batch aside first, as it cannot know
    what they lack.
    """

    @abstractmethod
    def append(self, batch: DataFrame, number: int) -> int:
        """Write the rows of a micro-batch, which replace those of a repeated one; returns how many rows those are."""

    @abstractmethod
    def rows(self) -> DataFrame | None:
        """The rows of other checkpoints; None if there is no archive yet."""

    def last(self) -> int | None:
        """The number of the last micro-batch of this checkpoint, for formats that know a repeated one by its number."""
        return None

    def refuse_older(self, planned: Sequence[str]) -> None:
        """Make sure that the checkpoint is not older than the archive, as after a restore.

        Args:
            planned: the numbers of the micro-batches in the checkpoint.

        Raises:
            ConfigurationError: the archive has later micro-batches of this checkpoint.
        """
        last, newest = self.last(), max((int(name) for name in planned if name.isdigit()), default=-1)
        if last is not None and last > newest:
            raise ConfigurationError(
                f"the archive has batch {last} of this checkpoint, which itself ends with {newest}: it is an older "
                "copy, and the same numbers would stand for other records. Remove the checkpoint: a new one begins "
                "behind the archive"
            )

    def reached(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """The last offset of each topic and partition in the archive; costs a scan of these columns.

        Args:
            topics: the Kafka topics of this checkpoint: no other one writes them now.
        """
        rows = self.rows()
        if rows is None:
            return {}
        ends = (
            rows.where(F.col("topic").isin(*topics))
            .groupBy("topic", "partition")
            .agg(F.max("offset").alias("last"))
            .collect()
        )
        return {(row["topic"], row["partition"]): row["last"] for row in ends}


def archive_writer(session: SparkSession, place: str, table_format: str, checkpoint: str) -> ArchiveWriter:
    """Create the writer of a format.

    Args:
        session: the job's session, whose settings are changed.
        place: the directory, or the name of the table.
        table_format: `parquet`, `delta` or `iceberg`.
        checkpoint: the id of the checkpoint.
    """
    if table_format == "parquet":
        return _ParquetWriter(session, place, checkpoint)
    if table_format == "delta":
        return _DeltaWriter(session, place, checkpoint)
    return _IcebergWriter(session, place)


class _ParquetWriter(ArchiveWriter):
    def __init__(self, session: SparkSession, path: str, checkpoint: str) -> None:
        self._session, self._path, self._checkpoint = session, path, checkpoint
        files = small_files(f"{path}/{_OWN}", session)
        assert files is not None, "with a session, every file system can be reached"
        self._files = files
        # Without a limit of open files each task would sort its rows by topic and date.
        session.conf.set("spark.sql.maxConcurrentOutputFileWriters", "32")

    def append(self, batch: DataFrame, number: int) -> int:
        seen = Observation()
        name = f"{self._checkpoint}-{number:010d}"
        rows = batch.observe(seen, F.count(F.lit(1)).alias("rows")).withColumn("batch", F.lit(name))
        # In capitals: Spark makes them by the rules of the host's language, and in Turkish not of every letter.
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "DYNAMIC")
        writer.partitionBy(*_PARTS, "batch").parquet(self._path)
        self._files.write(f"{self._checkpoint}.json", json.dumps({"batch": number}))
        return int(seen.get["rows"])

    def rows(self) -> DataFrame | None:
        try:
            rows = self._session.read.parquet(self._path)
        except AnalysisException as error:
            if error.getCondition() in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
                return None
            raise
        return rows.where(~F.col("batch").startswith(f"{self._checkpoint}-"))

    def last(self) -> int | None:
        return _last_of(self._files, self._checkpoint)

    def reached(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        self._set_incomplete_aside(topics)
        return super().reached(topics)

    def _set_incomplete_aside(self, topics: Sequence[str]) -> None:
        """Move the directories of micro-batches of other checkpoints that were not completed out of readers' sight."""
        rows = self.rows()
        if rows is None:
            return
        directory = F.regexp_extract(F.input_file_name(), "^(.*)/[^/]*$", 1)
        for name, place in rows.where(F.col("topic").isin(*topics)).select("batch", directory).distinct().collect():
            checkpoint, _, number = name.rpartition("-")
            last = _last_of(self._files, checkpoint)
            if last is None or int(number) > last:
                aside = move_aside(self._session, place, self._path, f"{_OWN}/incomplete")
                log.warning("incomplete batch of a former checkpoint set aside", directory=aside)


class _DeltaWriter(ArchiveWriter):
    def __init__(self, session: SparkSession, place: str, checkpoint: str) -> None:
        self._session, self._place, self._checkpoint = session, place, checkpoint
        self._may_repeat = True
        self._files: SmallFiles | None = None

    def append(self, batch: DataFrame, number: int) -> int:
        if self._may_repeat:
            # Only the first micro-batch of a run can be a repeated one. Delta skips that without reading it, so that
            # an observation would wait for ever.
            rows = batch.persist()
            try:
                self._write(rows, number)
                self._may_repeat = False
                return rows.count()
            finally:
                rows.unpersist()
        seen = Observation()
        self._write(batch.observe(seen, F.count(F.lit(1)).alias("rows")), number)
        return int(seen.get["rows"])

    def _write(self, rows: DataFrame, number: int) -> None:
        if (files := self._own_files()) is not None:
            # Before the rows: Delta would skip those that another batch of this number has more.
            files.write(f"{self._checkpoint}.json", json.dumps({"batch": number}))
        # Delta skips a write whose number it has seen of this application.
        options = {"txnAppId": f"sowstream-{self._checkpoint}", "txnVersion": str(number)}
        writer = rows.write.format("delta").mode("append").options(**options).partitionBy(*_PARTS)
        writer.save(self._place) if _is_path(self._place) else writer.saveAsTable(self._place)

    def last(self) -> int | None:
        files = self._own_files()
        return None if files is None else _last_of(files, self._checkpoint)

    def _own_files(self) -> SmallFiles | None:
        """The directory of numbers; None before there is a table, or where its catalog hides its files."""
        if self._files is None:
            try:
                place = self._place if _is_path(self._place) else self._location()
                files = small_files(f"{place}/{_OWN}", self._session)
                assert files is not None, "with a session, every file system can be reached"
                files.names("")
                self._files = files
            except (AnalysisException, Py4JJavaError) as error:
                if is_missing(error):
                    return None
                if _is_path(self._place):
                    raise
                log.warning("an older checkpoint cannot be refused", table=self._place, error=reason_of(error))
                return None
        return self._files

    def _location(self) -> str:
        """The directory of a table with a name."""
        row = self._session.sql(f"DESCRIBE DETAIL {target(self._place, 'delta')}").select("location").head()
        assert row is not None, "Delta describes a table in one row"
        return str(row[0])

    def rows(self) -> DataFrame | None:
        try:
            reader = self._session.read.format("delta")
            return reader.load(self._place) if _is_path(self._place) else self._session.table(self._place)
        except AnalysisException as error:
            if is_missing(error):
                return None
            raise


class _IcebergWriter(ArchiveWriter):
    def __init__(self, session: SparkSession, table: str) -> None:
        self._session, self._table = session, table

    def append(self, batch: DataFrame, number: int) -> int:  # noqa: ARG002 - offsets identify the rows
        rows = batch.persist()
        view = f"archive_{uuid.uuid4().hex}"
        try:
            create = create_sql(self._table, "iceberg", rows.schema.fields)
            self._session.sql(f"{create} PARTITIONED BY ({', '.join(_PARTS)})")
            rows.createTempView(view)
            same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in (*_PARTS, "partition", "offset"))
            names = ", ".join(f"`{name}`" for name in rows.columns)
            values = ", ".join(f"s.`{name}`" for name in rows.columns)
            rows.sparkSession.sql(
                f"MERGE INTO {target(self._table, 'iceberg')} AS t USING `{view}` AS s ON {same}\n"  # noqa: S608
                f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
            )
            return rows.count()
        finally:
            rows.sparkSession.catalog.dropTempView(view)
            rows.unpersist()

    def rows(self) -> DataFrame | None:
        return self._session.table(self._table) if self._session.catalog.tableExists(self._table) else None


def _last_of(files: SmallFiles, checkpoint: str) -> int | None:
    text = files.read(f"{checkpoint}.json")
    return None if text is None else int(json.loads(text)["batch"])


def _is_path(place: str) -> bool:
    return "/" in place
