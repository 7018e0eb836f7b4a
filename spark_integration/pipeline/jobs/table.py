"""The job `table`: a topic as a table elsewhere, of its present records or of all their versions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, StructType

from processor.config.section import Properties
from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.topic_family import TopicFamily
from spark_integration.pipeline.ingesting.kafka_source import (
    OFFSETS_PER_TRIGGER,
    has_begun,
    kafka_records,
    partition_counts,
)
from spark_integration.pipeline.job import DataPath, InputMissing, Job, JobContext, JobSettings, Target
from spark_integration.pipeline.monitor import QUARANTINED
from spark_integration.pipeline.quarantine import Quarantine, fitting, misfit_rows, misfits_of
from spark_integration.read.metadata_columns import SOW
from spark_integration.read.misfit import MISFIT
from spark_integration.read.read_topics import NothingToInfer, stream_sow
from spark_integration.read.schemas.schema import INFER, given_schema
from spark_integration.read.table_part import read_latest
from spark_integration.tables.upsert import follow_topic, table_schema, upsert_to
from spark_integration.tables.version_columns import LAST_RECORD, PLACE, VersionColumns
from spark_integration.tables.versions import (
    VersionTable,
    add_deltas,
    begin_with_records,
    version_table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BEGIN: Final = "sowstream-begin.json"
"""The name of the file with the offsets at which a history began, in the directory of the checkpoint."""


class TableSettings(JobSettings):
    """Settings of the job `table`."""

    topic: str
    """The topic to follow."""
    kind: Literal["scd1", "scd2"] = "scd1"
    """`scd1`: the present record of each key, as in the SOW topic. `scd2`: a row for each version of a record, with
    `valid_from` and `valid_to`, as folded from the delta topic.
    """
    to: Target
    """The place of the table."""
    columns: str | None = Field(default=None, alias="schema")
    """The columns of the records, as DDL; none: one column `value` with the JSON text, or those of the topic's Avro
    schema.
    """
    begin: Literal["earliest", "sow"] = "earliest"
    """`scd2`: a new table begins with the oldest delta, or with the present records and the deltas after them, where
    older deltas are gone.
    """
    keep: int = Field(default=3, ge=1)
    """Earlier states of a Parquet table to keep for running readers."""
    prefix: str = ""
    """`scd2`: the beginning of the names of the columns next to the record's, where a field has one of them."""
    on_misfit: Literal["quarantine", "fail"] = "quarantine"
    """The treatment of a record that does not fit `schema`: it is set aside, or the job fails. In the table `scd1`
    keeps the last record of that key that fitted, and `scd2` has a version without fields.
    """
    quarantine: DataPath | None = None
    """The directory of the records that are set aside; none: `quarantine` in that of the checkpoint."""
    options: Properties = Field(default_factory=dict)
    """Options of Spark's Kafka source, such as `maxOffsetsPerTrigger`."""


class Table(Job[TableSettings]):
    """Keeps a table."""

    settings_type: ClassVar[type[JobSettings]] = TableSettings
    is_stateless: ClassVar[bool] = True

    def __init__(self, context: JobContext, settings: TableSettings) -> None:
        """Check the settings against those of the topic.

        Raises:
            ConfigurationError: they do not fit.
        """
        super().__init__(context, settings)
        self._topic = topic_settings(settings.topic, context.topics)
        for name in ("prefix", "begin"):
            if name in settings.model_fields_set and settings.kind == "scd1":
                raise ConfigurationError(f"{context.name}: {name} is for kind scd2; leave it out")

    @classmethod
    def reads(cls, settings: Any) -> Sequence[str]:
        """The topic of the settings."""
        return [settings.topic]

    @classmethod
    def source_roles(cls, settings: Any) -> Sequence[str]:
        """The SOW topic, or the delta topic for versions."""
        return ("sow" if settings.kind == "scd1" else "delta",)

    @classmethod
    def ddl(cls, settings: Any) -> Mapping[tuple[str, ...], str]:
        """The columns of the records."""
        columns = settings.columns
        return {} if columns is None or columns.strip().lower() == INFER else {("schema",): columns}

    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """See `Job`."""
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": OFFSETS_PER_TRIGGER, **self.settings.options}
        is_scd1 = self.settings.kind == "scd1"
        topic = self._topic.kafka_topic("sow" if is_scd1 else "delta")
        partition_counts(self.context, [topic])
        topic_id, to = Admin(self.context.admin_kafka).topic_id(topic), self.settings.to
        self._follow = partial(follow_topic, session, to.place, to.format, topic, topic_id)
        self._follows = self._follow()
        if self._follows and self.ddl(self.settings):
            self._refuse_other_columns(session)
        start = self._start_scd1 if is_scd1 else self._start_scd2
        return start(session, options, once=once)

    def _refuse_other_columns(self, session: SparkSession) -> None:
        """Make sure that the table has the columns of `schema`: rows of keys that do not change are not written again.

        Raises:
            ConfigurationError: it has others.
        """
        settings, to = self.settings, self.settings.to
        wanted = given_schema(str(settings.columns))
        present = table_schema(session, to.place, to.format)
        if settings.kind == "scd2":
            own = VersionColumns(wanted, settings.prefix).added
            present = StructType([field for field in present if field.name not in (*own, LAST_RECORD, *PLACE)])
        before, now = _paths(present), _paths(wanted)
        if before != now:
            differ = [*(f"{path} is new" for path in now - before), *(f"{path} is gone" for path in before - now)]
            raise ConfigurationError(
                f"{self.context.name}: the columns of {to.place} are not those of `schema`: "
                f"{', '.join(sorted(differ))}. Rows that do not change would stay as they are: give a new checkpoint "
                "and another table, or remove these"
            )

    def _start_scd1(self, session: SparkSession, options: dict[str, str], *, once: bool) -> StreamingQuery:
        settings, context = self.settings, self.context
        # Any JSON text is a row where there are no columns.
        can_misfit = settings.columns is not None or self._topic.topic.message_type != "json"
        try:
            rows = stream_sow(
                session, settings.topic, settings.columns, {**context.kafka, **options}, config=context.topics,
                on_misfit="column" if can_misfit else "fail",
            )  # fmt: skip
        except NothingToInfer as error:
            raise InputMissing(str(error), is_empty=True) from None
        upsert = upsert_to(settings.to.place, format=settings.to.format, keep=settings.keep)

        def process(batch: DataFrame, batch_id: int) -> Counter[str]:
            rows = batch.persist()
            try:
                if not can_misfit:
                    upsert(rows, batch_id)
                    return Counter(written=rows.count())
                seen = rows.agg(F.count("*").alias("all"), F.count(f"{SOW}.{MISFIT}").alias("misfits")).head()
                assert seen is not None, "without a group there is one row"
                counts = self._set_aside(misfits_of(rows), batch_id) if seen["misfits"] else Counter()
                upsert(fitting(rows), batch_id)
                counts["written"] = seen["all"] - seen["misfits"]
                return counts
            finally:
                rows.unpersist()

        return self._run(rows, process, once=once)

    def _start_scd2(self, session: SparkSession, options: dict[str, str], *, once: bool) -> StreamingQuery:
        settings, context = self.settings, self.context
        record = None if settings.columns is None else given_schema(settings.columns)
        columns = VersionColumns(record, settings.prefix)
        table = version_table(session, settings.to.place, settings.to.format, columns, settings.keep)
        begin = self._begin(session, table) if settings.begin == "sow" else None
        if begin is not None:
            options |= {"startingOffsets": json.dumps({self._topic.kafka_topic("delta"): begin["from"]})}
        overlap = {} if begin is None else {int(number): end for number, end in begin["overlap"].items()}
        records = kafka_records(session, [self._topic.kafka_topic("delta")], context.kafka, options)

        def process(batch: DataFrame, batch_id: int) -> Counter[str]:
            counts: Counter[str] = Counter()
            written = add_deltas(
                batch, table, self._topic, overlap, lambda misfits: counts.update(self._set_aside(misfits, batch_id))
            )
            counts["written"] = written
            return counts

        return self._run(records, process, once=once)

    def _run(self, rows: DataFrame, process: Callable[[DataFrame, int], Counter[str]], *, once: bool) -> StreamingQuery:
        def followed(batch: DataFrame, batch_id: int) -> Counter[str]:
            counts = process(batch, batch_id)
            # The first one with rows creates the table.
            self._follows = self._follows or self._follow()
            return counts

        return self.run(rows.writeStream.foreachBatch(self.context.batches.counted(followed)), once=once)

    def _set_aside(self, misfits: DataFrame, batch_id: int | None) -> Counter[str]:
        """Write records that do not fit to the quarantine, and count them.

        Args:
            misfits: columns `reason`, `partition`, `offset`, `key`, `at` and `row`.
            batch_id: the number of the micro-batch; None: before the first one.

        Raises:
            Stop: there are some, and the job has `on_misfit: fail`.
        """
        rows = misfits.persist()
        try:
            count = rows.count()
            if not count:
                return Counter()
            topic = self._topic.kafka_topic("sow" if self.settings.kind == "scd1" else "delta")
            shown = misfit_rows(rows, topic)
            quarantine = Quarantine(self.context, self.settings.quarantine)
            if self.settings.on_misfit == "fail":
                raise quarantine.refuse(
                    shown,
                    lambda row: (
                        f"{row['topic']}, partition {row['partition']}, offset {row['offset']}, key {row['key']}: "
                        f"{row['detail']}"
                    ),
                    "records that do not fit `schema`; change it, with a new table, or set `on_misfit: quarantine`",
                )
            quarantine.write(shown, batch_id)
            return Counter({f"{QUARANTINED}{MISFIT}": count})
        finally:
            rows.unpersist()

    def _begin(self, session: SparkSession, table: VersionTable) -> dict[str, dict[str, int]]:
        """Begin a new table with the records of the SOW topic.

        Returns:
            `from`, the first delta to read, and `overlap`, the end of those that may be older than a record; both by
            partition, as text.
        """
        files, kafka = self.context.files, self.context.kafka
        text = files.read(_BEGIN)
        # The records were added at once: a table with some has all, although the run may have died then.
        if text is not None and (has_begun(files) or _has_rows(table)):
            content: dict[str, dict[str, int]] = json.loads(text)
            return content
        if text is None and (has_begun(files) or _has_rows(table)):
            raise ConfigurationError(
                f"{self.context.name}: begin: sow is for a new table and a new checkpoint, and one of them has rows"
            )
        with TopicFamily(self._topic, self.context.admin_kafka) as family:
            partitions = family.partitions("delta")
            content = {"from": _texts(family.bounds("delta", partitions).ends), "overlap": {}}
            files.write(_BEGIN, json.dumps(content))
            latest = read_latest(session, self._topic, kafka).persist()
            try:
                latest.count()
                content["overlap"] = _texts(family.bounds("delta", partitions).ends)
                files.write(_BEGIN, json.dumps(content))
                begin_with_records(latest, table, self._topic, lambda misfits: self._set_aside(misfits, None))
            finally:
                latest.unpersist()
        return content


def _has_rows(table: VersionTable) -> bool:
    rows = table.state_rows()
    return rows is not None and (bool(table.applied()) or not rows.isEmpty())


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in offsets.items()}


def _paths(columns: StructType) -> set[str]:
    """The names of all columns and fields, as Spark compares them, without the metadata."""

    def below(path: str, kind: DataType) -> Iterator[str]:
        yield path
        if isinstance(kind, ArrayType):
            kind = kind.elementType
        if isinstance(kind, StructType):
            for field in kind:
                yield from below(f"{path}.{field.name.lower()}", field.dataType)

    return {path for field in columns if field.name != SOW for path in below(field.name.lower(), field.dataType)}
