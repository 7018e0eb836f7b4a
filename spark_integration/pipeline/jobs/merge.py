"""The job `merge`: a topic's records are merged on Spark, in place of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from processor.config.section import Properties
from spark_integration.merge.streaming.merge_stream import merge_stream
from spark_integration.pipeline.job import Job, JobSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class MergeSettings(JobSettings):
    """Settings of the job `merge`."""

    topic: str
    """The topic to merge."""
    initial: Literal["sow"] | None = "sow"
    """The start of a new checkpoint: see `merge_stream`."""
    options: Properties = Field(default_factory=dict)
    """Options of Spark's Kafka source, such as `maxOffsetsPerTrigger`."""


class Merge(Job[MergeSettings]):
    """Merges a topic."""

    settings_type: ClassVar[type[JobSettings]] = MergeSettings

    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """See `Job`."""
        if once:
            # Else a query that has processed all input would begin one more micro-batch for timers, and never end.
            session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        writer = merge_stream(
            session,
            self.settings.topic,
            config=self.context.topics,
            options={**self.context.kafka, **self.settings.options},
            initial=self.settings.initial,
        )
        return self.run(writer, once=once)
