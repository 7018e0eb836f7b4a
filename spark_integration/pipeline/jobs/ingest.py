"""The job `ingest`: files, a Kafka topic or a table become deltas, each row once; others go to the quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from processor.record import Command
from processor.wire import columns as names
from spark_integration.foundation.options import REQUEST_SIZE
from spark_integration.foundation.settings import topic_settings
from spark_integration.pipeline.ingesting.kafka_source import partition_counts, publishing_options, refuse_recreated
from spark_integration.pipeline.ingesting.row_check import CHECKED_DDL, NullPolicy, RowCheck
from spark_integration.pipeline.ingesting.sources import IngestSource, SourceRows
from spark_integration.pipeline.job import DataPath, Job, JobContext, JobSettings, SqlKind, SqlScope
from spark_integration.pipeline.quarantine import Quarantine
from spark_integration.publish.batch_sender import recipe, sender
from spark_integration.publish.commands import header
from spark_integration.publish.publish import WRITERS, WRITERS_MAX, publish_options
from spark_integration.publish.sequence import numbered
from spark_integration.read.mask import row_errors
from spark_integration.read.schemas.json_columns import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class IngestSettings(JobSettings):
    """Settings of the job `ingest`."""

    source: IngestSource = Field(alias="from")
    """The input."""
    topic: str
    """The topic to publish to."""
    key: tuple[str, ...] | None = None
    """The key fields; none: those of the topic. With a topic whose key is explicit they make the key."""
    mapping: dict[str, str] = Field(default_factory=dict)
    """The fields to send, each a SQL expression over the columns of the source; none: all columns."""
    command: Command = "delta_publish"
    """The command of each row: `delta_publish`, or `publish` for full records."""
    nulls: NullPolicy | None = None
    """The meaning of a null in a row: `ignore`: its field is left out; `set`: it is stored; `remove`: the field is
    removed from the record. None: that of the topic's `null_policy`.
    """
    quarantine: DataPath | None = None
    """The directory of the rows that do not fit; none: the first one stops the job."""
    writers: int = Field(default=WRITERS, ge=1, le=WRITERS_MAX)
    """The number of tasks that send the rows of files and tables; those of Kafka are sent by one for each partition."""


class Ingest(Job[IngestSettings]):
    """Publishes each row of its input once, over any number of restarts."""

    settings_type: ClassVar[type[JobSettings]] = IngestSettings
    is_stateless: ClassVar[bool] = True

    def __init__(self, context: JobContext, settings: IngestSettings) -> None:
        """Check the settings against those of the topic.

        Raises:
            ConfigurationError: they do not fit.
        """
        super().__init__(context, settings)
        self._topic = topic_settings(settings.topic, context.topics, needs_sow=False)
        if settings.mapping and settings.source.is_raw:
            raise ConfigurationError(
                f"{context.name}: mapping is over columns, and JSON without a schema has none; add from.schema"
            )
        self._key_fields, self._null_policy = self._key(), self._nulls()
        self._rows = SourceRows(settings.source, settings.mapping, self._key_fields)

    @classmethod
    def reads_kafka(cls, settings: Any) -> Sequence[str]:
        """The topic of the source, where that is Kafka."""
        topic = settings.source.topic
        return [] if topic is None else [topic]

    @classmethod
    def publishes(cls, settings: Any) -> Sequence[str]:
        """The topic of the settings."""
        return [settings.topic]

    @classmethod
    def ddl(cls, settings: Any) -> Mapping[tuple[str, ...], str]:
        """The columns of the source."""
        columns = settings.source.columns
        return {} if columns is None else {("from", "schema"): columns}

    @classmethod
    def sql(cls, settings: Any) -> Mapping[tuple[str, ...], tuple[SqlKind, str]]:
        """The fields to send."""
        return {("mapping", name): ("expression", text) for name, text in settings.mapping.items()}

    @classmethod
    def sql_scope(cls, settings: Any) -> SqlScope | None:
        """The columns of the source."""
        return SqlScope({"source": settings.source.columns})

    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """See `Job`."""
        source = self.settings.source.topic
        sources = [] if source is None else [source]
        partition_counts(self.context, [*sources, self._topic.kafka_topic("publish")])
        if sources:
            refuse_recreated(self.context, sources, self.context.files)
        kafka = publishing_options(self.context, self._topic.kafka_topic("publish"))
        options = publish_options(self.settings.topic, kafka, self._topic.names)
        stream = self._rows.stream(session, self.context.kafka)
        # Shows a wrong mapping before the first rows.
        self._rows.texts(session.createDataFrame([], stream.schema))
        check = RowCheck(
            settings=self._topic,
            key=self._key_fields,
            command=self.settings.command,
            nulls=self._null_policy,
            misfit=f"the row does not fit the schema: {self.settings.source.columns}",
            request_bytes_max=int(options[REQUEST_SIZE]),
        )
        source_id = self._source_id()

        def process(batch: DataFrame, batch_id: int) -> Counter[str]:
            texts = self._rows.texts(batch)
            own = f", place {ddl(texts.schema['place'].dataType)}" if "place" in texts.columns else ""
            checked = texts.mapInArrow(check, CHECKED_DDL + own).persist()
            try:
                counts = self._counts(checked)
                self._set_aside(checked, counts, batch_id)
                self._publish(checked.where(F.col("reason").isNull()), source_id, options)
            finally:
                checked.unpersist()
            return counts

        return self.run(stream.writeStream.foreachBatch(self.context.batches.counted(process)), once=once)

    def _key(self) -> tuple[str, ...]:
        """The JSON Pointers of the key fields."""
        topic, own = self._topic.topic, self.settings.key
        pointers = None if own is None else tuple(name if name.startswith("/") else f"/{name}" for name in own)
        if topic.key_format != "text":
            raise ConfigurationError(
                f"{self.context.name}: {self.settings.topic} has key_format {topic.key_format!r}; ingest writes `text`"
            )
        if not topic.key_fields:
            if not pointers:
                raise ConfigurationError(
                    f"{self.context.name}: the key of {self.settings.topic} is explicit; name the fields that make it, "
                    "key: [id]"
                )
            return pointers
        if pointers is not None and pointers != tuple(topic.key_fields):
            raise ConfigurationError(
                f"{self.context.name}: key is {list(pointers)}, and that of the topic is {list(topic.key_fields)}: "
                "leave it out, and name the fields so by a mapping"
            )
        return tuple(topic.key_fields)

    def _nulls(self) -> NullPolicy:
        topic = self._topic.topic.null_policy
        nulls = self.settings.nulls or topic
        if nulls == "set" and topic != "set" and self.settings.command == "delta_publish":
            raise ConfigurationError(
                f"{self.context.name}: nulls: set needs a topic that stores nulls, and {self.settings.topic} has "
                f"null_policy {topic}"
            )
        return nulls

    def _counts(self, checked: DataFrame) -> Counter[str]:
        """The rows to publish, and the others by reason."""
        counts = Counter({"published": 0})
        for row in checked.groupBy("reason").count().collect():
            counts["published" if row["reason"] is None else f"quarantined.{row['reason']}"] += row["count"]
        return counts

    def _set_aside(self, checked: DataFrame, counts: Counter[str], batch_id: int) -> None:
        """Write the rows that do not fit to the quarantine.

        Raises:
            Stop: there are such rows, and no quarantine.
        """
        if counts.keys() <= {"published"}:
            return
        rejected = checked.where(F.col("reason").isNotNull()).select(
            "reason", "detail", "file", "line", F.timestamp_millis("at").alias("at"),
            F.col("raw").cast("string").alias("row"),
        )  # fmt: skip
        quarantine = Quarantine(self.context, self.settings.quarantine)
        if self.settings.quarantine is None:
            raise quarantine.refuse(
                rejected,
                lambda row: f"{row['file']}, line {row['line']}: {row['reason']}: {row['detail']}",
                "rows that do not fit, and no quarantine for them",
            )
        quarantine.write(rejected, batch_id)

    def _source_id(self) -> str | None:
        """The id of the Kafka topic that is read, as a topic of the same name may be created again; None for others."""
        topic = self.settings.source.topic
        if topic is None:
            return None
        from processor.kafka.admin.admin import Admin  # noqa: PLC0415 - only for this source

        return Admin(self.context.admin_kafka).topic_id(topic)

    def _publish(self, rows: DataFrame, source_id: str | None, options: Mapping[str, str]) -> None:
        """Send the rows, each with its identity in the headers `client` and `sequence`.

        Raises:
            ConfigurationError: rows of a key differ, and nothing orders them.
        """
        if self.settings.source.place_kind == "partition":
            # A task sends the records of a partition in order, so that the offset itself is the sequence. The epoch is
            # not in the name: a record that was merged is not merged again under other settings.
            prefix = f"{self.context.topics.group_prefix}.{self.context.name}/{source_id}/"
            client = F.concat(F.lit(prefix), F.col("partition").cast("string"))
            identity = F.array(header(names.CLIENT, client), header(names.SEQUENCE, F.col("line")))
            records = rows.select("key", "value", F.concat("headers", identity).alias("headers"))
            records.write.format("kafka").options(**options).save()
            return
        places = ("at", "file", "line")
        way = recipe(self._key_fields, self.settings.source.order_by or places, self.settings.writers)
        place = F.col("place") if "place" in rows.columns else F.struct(*places).alias("place")
        commands = rows.select("key", "value", "headers", place)
        with row_errors(), sender(rows.sparkSession, self.settings.topic, way, self.context.client, None) as by:
            numbered(commands, by, self.settings.writers).write.format("kafka").options(**options).save()
