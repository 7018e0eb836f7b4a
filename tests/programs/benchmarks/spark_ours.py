"""The side of `spark_topics` that uses `spark_integration`; as a program, the first queries of a session of its own."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from operator import sub
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import yaml

from tests.programs.benchmarks import spark_alone
from tests.programs.benchmarks.spark_alone import (
    DDL,
    FILTER,
    KEYS,
    OFFSETS_PER_TRIGGER,
    VERSION_COLUMNS,
    Places,
    run_stream,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession


def session(directory: Path, cores: int) -> SparkSession:
    """A session whose scratch files are in `directory`."""
    from spark_integration import spark_session

    return spark_session(
        "sowstream-bench",
        **{
            "spark.master": f"local[{cores}]",
            "spark.driver.memory": "2g",
            "spark.local.dir": str(directory),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.session.timeZone": "UTC",
            # On a busy machine, a process that stands still is not dead.
            "spark.network.timeout": "900s",
            "spark.executor.heartbeatInterval": "60s",
        },
    )


def read_sow_topic(spark: SparkSession, places: Places) -> None:
    """Read the last record of each key, without its metadata."""
    spark_alone.discard(_sow(spark, places, metadata="none"))


def read_sow_metadata(spark: SparkSession, places: Places) -> None:
    """Read the last record of each key, with its metadata."""
    spark_alone.discard(_sow(spark, places))


def read_sow_filtered(spark: SparkSession, places: Places) -> None:
    """Read the records that a filter selects."""
    spark_alone.discard(_sow(spark, places, metadata="none", filter=FILTER))


def read_sow_keys(spark: SparkSession, places: Places) -> None:
    """Read the records of some keys."""
    spark_alone.discard(_sow(spark, places, metadata="none", keys=[*KEYS]))


def load_sow_format(spark: SparkSession, places: Places) -> None:
    """Read the last record of each key by the data source."""
    spark_alone.discard(_format(spark, places).load())


def load_sow_filtered(spark: SparkSession, places: Places) -> None:
    """Read the records that a filter selects by the data source."""
    spark_alone.discard(_format(spark, places).option("filter", FILTER).load())


def _sow(spark: SparkSession, places: Places, **arguments: Any) -> DataFrame:
    from spark_integration import read_sow

    return read_sow(spark, places.name, DDL, options=places.options, **arguments)


def _format(spark: SparkSession, places: Places) -> DataFrameReader:
    options = places.options | {"topic": places.name, "schema": DDL, "metadata": "none"}
    return spark.read.format("sow").options(**options)


def publish_whole(spark: SparkSession, places: Places) -> None:
    """Publish the rows, those of a key in order, as whole records."""
    from spark_integration import publish_records

    rows = spark.read.parquet(places.path("rows"))
    publish_records(rows, f"{places.name}pub", key=["id"], options=places.options, order_by=["ts"])


def stream_delta_topic(spark: SparkSession, places: Places) -> None:
    """Stream every delta, with the paths that it carries."""
    from spark_integration import stream_deltas

    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": OFFSETS_PER_TRIGGER}
    rows = stream_deltas(spark, places.name, DDL, options=places.options | options)
    run_stream(rows.writeStream.format("noop"), places)


def publish_rows(spark: SparkSession, places: Places) -> None:
    """Publish the rows, those of a key in order, as deltas that are merged once."""
    from spark_integration import publish_deltas

    rows = spark.read.parquet(places.path("rows"))
    publish_deltas(
        rows, f"{places.name}pub", key=["id"], columns=["price", "ts"], options=places.options, order_by=["ts"]
    )


def archive_topic(spark: SparkSession, places: Places) -> str:
    """Run the job `archive` of the publish topic; returns the directory."""
    path = places.new_path("archive")
    _run_job(spark, places, {"job": "archive", "topics": [places.name], "roles": ["publish"], "to": {"path": path}})
    return path


def write_versions(spark: SparkSession, places: Places) -> str:
    """Run the job `table` of `kind: scd2`; returns the directory."""
    path = places.new_path("versions")
    _run_job(spark, places, {"job": "table", "topic": places.name, "kind": "scd2", "to": {"path": path}, "schema": DDL})
    return path


def check_versions(spark: SparkSession, places: Places) -> None:
    """Compare the table of versions with the one that Spark alone writes.

    Raises:
        SystemExit: they have other rows.
    """
    from spark_integration.tables.versions import read_versions

    ours = read_versions(spark, write_versions(spark, places)).selectExpr(*VERSION_COLUMNS)
    alone = spark.read.parquet(spark_alone.write_versions(spark, places)).selectExpr(*VERSION_COLUMNS)
    count = ours.count()
    differences = ours.exceptAll(alone).count() + alone.exceptAll(ours).count()
    if differences or count != places.records:
        raise SystemExit(f"of {count:,} versions {differences:,} rows differ")


def merge_archive(spark: SparkSession, places: Places, archive: str) -> None:
    """Merge an archive, and keep the result on Spark."""
    from spark_integration import merge_batch

    history = spark.read.parquet(archive).drop("topic", "date", "timestampType")
    merged = merge_batch(spark, places.name, config=str(places.settings), options=places.options, history=history)
    assert merged.counts["records"] == places.records, merged.counts
    merged.unpersist()


def backfill_archive(spark: SparkSession, places: Places, archive: str) -> None:
    """Merge an archive into a family without records."""
    from spark_integration import backfill

    report = backfill(spark, places.name, config=str(places.settings), archive=archive, options=places.options)
    assert report.is_new, report
    assert report.merged["records"] == places.records, report


def _run_job(spark: SparkSession, places: Places, job: dict[str, Any]) -> None:
    """Run one job, which has never run before, over the input that exists now."""
    from spark_integration.pipeline.pipeline_settings import PipelineSettings
    from spark_integration.pipeline.runner import run_jobs

    home = Path(places.new_path("pipeline"))
    home.mkdir()
    file = home / "pipeline.yaml"
    file.write_text(yaml.safe_dump({"settings": str(places.settings), "jobs": {"measured": job}}), encoding="utf-8")
    pipeline = PipelineSettings.load(file)
    run_jobs(pipeline, pipeline.chosen([]), spark, once=True, stop=Event())


def main() -> None:
    """Print the seconds of a session's start, its first query, and the same again, as JSON.

    The arguments are MODULE FUNCTION CORES PLACES.
    """
    module, function, cores, bootstrap, family, settings, directory, records = sys.argv[1:]
    query = getattr(import_module(module), function)
    places = Places(bootstrap, family, Path(settings), Path(directory), int(records))
    times_s = [time.monotonic()]
    spark = session(places.directory, int(cores))
    times_s.append(time.monotonic())
    for _ in range(2):
        query(spark, places)
        times_s.append(time.monotonic())
    spark.stop()
    print(json.dumps(dict(zip(("session_s", "first_s", "again_s"), map(sub, times_s[1:], times_s), strict=True))))


if __name__ == "__main__":
    main()
