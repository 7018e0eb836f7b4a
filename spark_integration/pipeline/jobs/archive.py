"""The job `archive`: every record of the publish and delta topics once, with Kafka's columns, partitioned by date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from pyspark.sql import functions as F  # noqa: N812

from processor.config.section import Properties
from processor.errors import ConfigurationError
from spark_integration.pipeline.ingesting.kafka_source import (
    OFFSETS_PER_TRIGGER,
    has_begun,
    kafka_records,
    partition_counts,
    starting_offsets,
)
from spark_integration.pipeline.job import Job, JobSettings, Target
from spark_integration.tables.archive_writer import archive_writer
from spark_integration.tables.merge_into import require_package

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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

    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """See `Job`."""
        to, context = self.settings.to, self.context
        if to.format != "parquet":
            require_package(to.format, session.conf.get("spark.sql.extensions", "") or "")
        names = [self._kafka_topic(topic, role) for topic in self.settings.topics for role in self.settings.roles]
        counts = partition_counts(context, names)
        # The date of a record does not depend on the place where Spark runs.
        session.conf.set("spark.sql.session.timeZone", "UTC")
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
