"""The sources of a query: each topic as a view of its name, with its present records and its columns.

    <checkpoint>/sowstream-columns.json   the columns that were inferred last, by topic
    <checkpoint>/sowstream-misfits.json   the end of the records that were set aside, by topic and partition

A record that does not fit the columns fails a query. Only then are such records looked for, which costs a second read
of the topics, and left out; as long as there are some, before each result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from spark_integration.foundation.sql import quoted
from spark_integration.pipeline.quarantine import fitting, misfit_rows, misfits_of
from spark_integration.read.read_topics import NothingToInfer, infer_from_records, read_sow

if TYPE_CHECKING:
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.pipeline.job import JobContext
    from spark_integration.pipeline.quarantine import Quarantine

_COLUMNS: Final = "sowstream-columns.json"
_MISFITS: Final = "sowstream-misfits.json"


class NoColumns(Exception):
    """A source has no record yet from which its columns could be inferred."""


class QuerySources:
    """The sources of one job."""

    def __init__(self, context: JobContext, topics: Mapping[str, TopicSettings], schemas: Mapping[str, str]) -> None:
        """Set up; nothing is read.

        Args:
            context: the surroundings of the job.
            topics: the settings of the topics, by name.
            schemas: columns as DDL, by topic; those of others are inferred, or of their Avro schema.
        """
        self._context, self._topics, self._schemas = context, topics, schemas
        self.leaves_misfits_out = False
        """True once a record did not fit; False again when there is none."""

    def create_views(self, session: SparkSession) -> None:
        """Create or replace a view for each topic.

        Raises:
            NoColumns: the columns of a topic are not known yet.
        """
        for name in self._topics:
            records = self._read(session, name, shows_misfits=self.leaves_misfits_out)
            view = fitting(records) if self.leaves_misfits_out else records
            view.createOrReplaceTempView(quoted([name]))

    def is_inferred(self, name: str) -> bool:
        """Return whether the columns of a topic are inferred from its records."""
        return name not in self._schemas and self._topics[name].topic.message_type == "json"

    def set_aside(self, session: SparkSession, quarantine: Quarantine, batch_id: int) -> int:
        """Write the records that do not fit to the quarantine, each once, and leave them out from now on.

        Args:
            session: the session.
            quarantine: the quarantine of the job.
            batch_id: the number of the micro-batch; a repeated one writes the same records again.

        Returns:
            The number of records that were written.
        """
        files = self._context.files
        last = json.loads(files.read(_MISFITS) or "{}")
        before = last.get("before", {}) if last.get("batch") == batch_id else last.get("ends", {})
        families = {topic.kafka_topic("sow"): name for name, topic in self._topics.items()}
        of_topics = [misfit_rows(misfits_of(self._read(session, name, shows_misfits=True)), topic)
                     for topic, name in families.items()]  # fmt: skip
        found = reduce(DataFrame.unionByName, of_topics).persist()
        try:
            tops = found.groupBy("topic", "partition").agg(F.max("offset").alias("last")).collect()
            self.leaves_misfits_out = bool(tops)
            ends = {name: dict(before.get(name, {})) for name in self._topics}
            is_new = F.lit(False)
            for topic, partition, top in tops:
                of_topic, number = ends[families[topic]], str(partition)
                # Up to the top: records that arrived since then belong to the next call.
                are_new = F.col("offset").between(of_topic.get(number, 0), top)
                is_new |= (F.col("topic") == topic) & (F.col("partition") == partition) & are_new
                of_topic[number] = max(of_topic.get(number, 0), top + 1)
            new = found.where(is_new)
            count = new.count()
            if count:
                quarantine.write(new, batch_id)
            files.write(_MISFITS, json.dumps({"batch": batch_id, "before": before, "ends": ends}))
            return count
        finally:
            found.unpersist()

    def _read(self, session: SparkSession, name: str, *, shows_misfits: bool) -> DataFrame:
        context = self._context
        return read_sow(
            session, name, self._columns(session, name), options=context.kafka, config=context.topics,
            on_misfit="column" if shows_misfits else "fail",
        )  # fmt: skip

    def _columns(self, session: SparkSession, name: str) -> StructType | str | None:
        """The columns of a source: named, inferred now, or inferred when it last had records."""
        if not self.is_inferred(name):
            return self._schemas.get(name)
        files, context = self._context.files, self._context
        known = json.loads(files.read(_COLUMNS) or "{}")
        try:
            columns = infer_from_records(session, self._topics[name], context.kafka)
        except NothingToInfer:
            if name in known:
                return StructType.fromJson(known[name])
            raise NoColumns(
                f"{name} has no record yet from which its columns could be inferred; with its columns in `schemas` the "
                "job need not wait"
            ) from None
        content = json.loads(columns.json())
        if known.get(name) != content:
            files.write(_COLUMNS, json.dumps({**known, name: content}))
        return columns
