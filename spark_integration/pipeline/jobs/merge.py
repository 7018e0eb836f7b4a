"""The job `merge`: a topic's records are merged on Spark, in place of its workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pydantic import Field

from processor.config.section import Properties
from spark_integration.merge.moves.merge_query import ONCE, refuse_failed
from spark_integration.merge.streaming.merge_stream import merge_stream
from spark_integration.pipeline.ingesting.kafka_source import has_begun
from spark_integration.pipeline.job import Job, JobSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LIMIT: Final = "maxoffsetspertrigger"
_LOOK_S: Final = 0.1


class MergeSettings(JobSettings):
    """Settings of the job `merge`."""

    topic: str
    """The topic to merge."""
    initial: Literal["sow"] | None = "sow"
    """The start of a new checkpoint: see `merge_stream`."""
    options: Properties = Field(default_factory=dict)
    """Options of Spark's Kafka source, such as `maxOffsetsPerTrigger`."""
    retries: int = Field(default=0, ge=0, le=1_000_000)
    """None by default: before a merge goes on, its command makes sure that no worker merges the topic meanwhile."""


class Merge(Job[MergeSettings]):
    """Merges a topic."""

    settings_type: ClassVar[type[JobSettings]] = MergeSettings

    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """See `Job`."""
        if once:
            if self.settings.initial is not None and not has_begun(self.context.files):
                self._begin(session)
            # Else a query that has processed all input would begin one more micro-batch for timers, and never end.
            session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        return self.run(self._writer(session, self.settings.options, once=once), once=once)

    def _begin(self, session: SparkSession) -> None:
        """Load the records of the topics by a micro-batch without input.

        The first micro-batch of a checkpoint leaves its input to the second one, and with `once` there may be none.

        Raises:
            Stop: the query failed.
        """
        options = {name: text for name, text in self.settings.options.items() if name.lower() != _LIMIT}
        writer = self._writer(session, {**options, "maxOffsetsPerTrigger": "0"}, once=True)
        named = writer.queryName(self.context.name).option("checkpointLocation", self.context.checkpoint)
        query = named.trigger(processingTime=ONCE).start()
        try:
            while "0" not in self.context.files.names("commits"):
                refuse_failed(query, self.settings.topic)
                time.sleep(_LOOK_S)
        finally:
            query.stop()

    def _writer(self, session: SparkSession, options: Mapping[str, str], *, once: bool) -> DataStreamWriter:
        return merge_stream(
            session,
            self.settings.topic,
            config=self.context.topics,
            options={**self.context.kafka, **options},
            initial=self.settings.initial,
            once=once,
        )
