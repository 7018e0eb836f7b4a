"""Infers the columns of a JSON topic from some of its records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from spark_integration.pyspark_private import infer_json
from spark_integration.reading.topic_facts import TopicFacts
from spark_integration.source.facts import LogFacts

SAMPLE_OFFSETS: Final = 10_000
"""Number of offsets to read at the end of each partition."""


def inferred(
    spark: SparkSession, facts: TopicFacts | LogFacts, options: Mapping[str, str], ends: Mapping[int, int] | None = None
) -> StructType:
    """Infer the columns from a topic's last committed records; equal records give equal columns.

    It runs a Spark job, which reads the last 10,000 offsets of each partition, or the complete topic if those hold no
    record. A field that only earlier records have gets no column; a value that does not fit its column fails the query.

    Args:
        spark: the session.
        facts: the offsets of the topic.
        options: options of Spark's Kafka source, for this topic.
        ends: the end of the read; None: everything committed now.

    Raises:
        ConfigurationError: the topic has no record, or one that is no JSON.
    """
    begins = facts.begins()
    ends = facts.committed_ends() if ends is None else ends
    late = {partition: max(begins[partition], end - SAMPLE_OFFSETS) for partition, end in ends.items()}
    for starts in (late, begins) if late != begins else (begins,):
        ranges = {"startingOffsets": _offsets(facts.topic, starts), "endingOffsets": _offsets(facts.topic, ends)}
        try:
            struct = _struct(spark, {**options, **ranges})
        except (Py4JJavaError, PySparkException) as error:
            if "MALFORMED_RECORD" not in str(error):
                raise
            raise ConfigurationError(
                f"schema='infer': {facts.topic} has a record that is no JSON object; give a schema, or the config that "
                "says its message type"
            ) from None
        if struct.fields:
            return struct
    raise ConfigurationError(
        f"schema='infer': {facts.topic} has no record with fields to look at; give a schema such as "
        "'id LONG, name STRING'"
    )


def _struct(spark: SparkSession, options: Mapping[str, str]) -> StructType:
    values = spark.read.format("kafka").options(**options).load().where("value IS NOT NULL")
    return infer_json(spark, values.select(F.col("value").cast("string")))


def _offsets(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
