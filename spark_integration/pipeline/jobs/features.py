"""The job `features`: the result of a SQL query over topics, published into another topic, changed rows only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field, ValidationInfo, field_validator
from pyspark.errors import AnalysisException

from processor.config.section import IntervalS
from processor.errors import ConfigurationError
from spark_integration.pipeline.ingesting.kafka_source import kafka_records, partition_counts
from spark_integration.pipeline.job import Job, JobContext, JobSettings
from spark_integration.publish.publish import delta_rows
from spark_integration.publish.sending import WRITERS_MAX, Sending
from spark_integration.read.read_topics import read_sow
from spark_integration.settings import topic_settings
from spark_integration.tables.published_state import DELETED, REMOVED, PublishedState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WRITERS: Final = 4
_INFER: Final = "infer"


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
