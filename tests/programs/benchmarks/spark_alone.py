"""The side of `spark_topics` that uses only Spark's own sources and functions."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL: Final = (
    "id LONG, status STRING, symbol STRING, qty LONG, price DOUBLE, notes STRING, "
    "customer STRUCT<name: STRING, tier: LONG, address: STRUCT<zip: LONG>>, tags ARRAY<STRING>, ts LONG"
)
"""The columns of the input's records."""
VERSION_COLUMNS: Final = ("sow_key", "version", "valid_to IS NULL AS is_present", "id", "status", "price", "ts")
"""The columns by which two tables of versions are compared, without times: an update has one in each topic."""
FILTER: Final = "/qty > 900"
"""A filter for about a tenth of the records."""
KEYS: Final = range(10)
"""The keys of a read of some."""
ROWS_OF_A_KEY: Final = 10
OFFSETS_PER_TRIGGER: Final = "1000000"


class Places(NamedTuple):
    """The topics and files of one family."""

    bootstrap: str
    name: str
    """The family's name."""
    settings: Path
    """Its `sowstream.yaml`."""
    directory: Path
    """The directory of all results."""
    records: int
    """The number of records in the publish topic."""

    @property
    def options(self) -> dict[str, str]:
        """The options of Spark's Kafka source."""
        return {"kafka.bootstrap.servers": self.bootstrap}

    def path(self, name: str) -> str:
        """A file or a directory of the family that is kept."""
        return str(self.directory / f"{self.name}.{name}")

    def new_path(self, name: str) -> str:
        """Another directory each time."""
        return self.path(f"{name}-{uuid.uuid4().hex[:8]}")


def prepare(spark: SparkSession, places: Places) -> None:
    """Write the rows to publish, and the archive of the SOW topic."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = max(places.records // ROWS_OF_A_KEY, 1)
    rows = spark.range(0, places.records, 1, 4).select(
        F.pmod(F.xxhash64("id"), F.lit(keys)).alias("id"), (F.col("id") * 1.25).alias("price"), F.col("id").alias("ts")
    )
    rows.write.parquet(places.path("rows"))
    _scan(spark, places, "sow").write.parquet(places.path("sow"))


def read_sow_topic(spark: SparkSession, places: Places, condition: str = "true") -> None:
    """Read the last record of each key that fulfils a condition in SQL, without its metadata."""
    from pyspark.sql import functions as F  # noqa: N812

    last = F.max_by("value", "offset").cast("string")
    rows = _scan(spark, places, "sow").groupBy("key").agg(last.alias("value")).where("value IS NOT NULL")
    discard(rows.select(F.from_json("value", DDL).alias("record")).select("record.*").where(condition))


def read_sow_metadata(spark: SparkSession, places: Places) -> None:
    """Read the last record of each key, with its metadata."""
    from pyspark.sql import functions as F  # noqa: N812

    last = F.max_by(F.struct("value", "headers", "timestamp", "partition", "offset"), "offset").alias("last")
    rows = _scan(spark, places, "sow").groupBy("key").agg(last).select("key", "last.*").where("value IS NOT NULL")
    version = F.element_at(F.map_from_entries("headers"), "version").cast("string").cast("long").alias("version")
    record = F.from_json(F.col("value").cast("string"), DDL).alias("record")
    key = F.col("key").cast("string").alias("sow_key")
    rows = rows.select(record, key, version, "timestamp", "headers", "partition", "offset")
    discard(rows.select("record.*", "sow_key", "version", "timestamp", "headers", "partition", "offset"))


def read_sow_filtered(spark: SparkSession, places: Places) -> None:
    """Read the records that `FILTER` selects."""
    read_sow_topic(spark, places, "qty > 900")


def read_sow_keys(spark: SparkSession, places: Places) -> None:
    """Read the records of `KEYS`."""
    read_sow_topic(spark, places, f"id IN ({', '.join(map(str, KEYS))})")


def stream_delta_topic(spark: SparkSession, places: Places) -> None:
    """Stream every record of the delta topic, without its paths."""
    run_stream(_typed(_stream(spark, places, "delta")).writeStream.format("noop"), places)


def publish_rows(spark: SparkSession, places: Places) -> None:
    """Write the rows to a topic; neither in the order of a key, nor so that a repeated task can be recognised."""
    from pyspark.sql import functions as F  # noqa: N812

    header = lambda name, value: F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))  # noqa: E731
    sequence = F.col("ts").cast("string")
    spark.read.parquet(places.path("rows")).select(
        F.col("id").cast("string").alias("key"),
        F.to_json(F.struct("id", "price", "ts")).alias("value"),
        F.array(header("client", F.lit("spark-0")), header("sequence", sequence)).alias("headers"),
    ).write.format("kafka").options(**places.options, topic=f"{places.name}.alone", includeHeaders="true").save()


def archive_topic(spark: SparkSession, places: Places) -> str:
    """Write every record of the publish topic to Parquet by date; returns the directory."""
    from pyspark.sql import functions as F  # noqa: N812

    path = places.new_path("archive")
    rows = _stream(spark, places, "publish").withColumn("date", F.to_date("timestamp"))
    run_stream(rows.writeStream.format("parquet").partitionBy("date").option("path", path), places)
    return path


def write_versions(spark: SparkSession, places: Places) -> str:
    """Write the times of each version, of an archive whose records are whole; returns the directory."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    path = places.new_path("versions")
    next_one = F.lead("timestamp").over(Window.partitionBy("key").orderBy("offset"))
    version = F.element_at(F.map_from_entries("headers"), "version").cast("string").cast("long")
    rows = spark.read.parquet(places.path("sow")).select(
        F.from_json(F.col("value").cast("string"), DDL).alias("record"),
        F.col("key").cast("string").alias("sow_key"),
        version.alias("version"),
        F.col("timestamp").alias("valid_from"),
        next_one.alias("valid_to"),
    )
    rows.select("record.*", "sow_key", "version", "valid_from", "valid_to").write.parquet(path)
    return path


def run_stream(writer: Any, places: Places) -> None:
    """Process the input that exists now."""
    query = writer.option("checkpointLocation", places.new_path("checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def _source(reader: Any, places: Places, role: str) -> Any:
    options = {"includeHeaders": "true", "kafka.isolation.level": "read_committed", "startingOffsets": "earliest"}
    return reader.format("kafka").options(**places.options, **options, subscribe=f"{places.name}.{role}")


def _scan(spark: SparkSession, places: Places, role: str) -> DataFrame:
    return _source(spark.read, places, role).load()


def _stream(spark: SparkSession, places: Places, role: str) -> DataFrame:
    return _source(spark.readStream, places, role).option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER).load()


def _typed(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    record = F.from_json(F.col("value").cast("string"), DDL)
    return rows.select(record.alias("record"), "key", "headers", "timestamp", "partition", "offset").select(
        "record.*", "key", "headers", "timestamp", "partition", "offset"
    )


def discard(rows: DataFrame) -> None:
    """Compute rows, and write them nowhere."""
    rows.write.format("noop").mode("overwrite").save()
