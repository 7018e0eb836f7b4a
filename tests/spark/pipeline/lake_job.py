"""Writes an archive and a table of versions in Delta or Iceberg, repeats batches, and prints the rows."""

from __future__ import annotations

import json
import sys

from pyspark.sql import functions as F  # noqa: N812

from spark_integration import spark_session
from spark_integration.foundation.settings import topic_settings
from spark_integration.pipeline.jobs.archive import archive_writer
from spark_integration.tables.version_columns import VersionColumns
from spark_integration.tables.versions import add_deltas, read_versions, version_table
from tests.spark.upserting_job import SESSIONS

KAFKA = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, topic string, partition int, "
    "offset bigint, timestamp timestamp, timestampType int"
)


def rows(begin: int, end: int, moved: int = 0) -> list[tuple[object, ...]]:
    """Deltas of three keys over two partitions: inserts, updates, and a delete that is followed by an insert.

    Those that a merge writes again are the same, moved to later offsets.
    """
    from datetime import UTC, datetime, timedelta

    made = []
    for n in range(begin, end):
        key, version = str(n % 3), n // 3 + 1
        kind = {1: "insert", 4: "delete", 5: "insert"}.get(version)
        number = version - 4 if version > 4 else version
        headers = [("version", str(number).encode())] + ([("kind", kind.encode())] if kind else [])
        headers.append(("source", f"orders.publish/{n % 3 % 2}/{n}".encode()))
        body = json.dumps({"id": key, "n": n}).encode()
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=n)
        made.append((key.encode(), body, headers, "orders.delta", n % 3 % 2, n + moved, at, 0))
    return made


def main(table_format: str, directory: str) -> None:
    """Write in a new session."""
    spark = spark_session(
        "lake",
        **SESSIONS.get(table_format, {}),
        **{
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.catalog.lake.warehouse": directory,
            "spark.sql.warehouse.dir": directory,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    archive, history = (
        ("lake.db.archive", "lake.db.history")
        if table_format == "iceberg"
        else (f"{directory}/archive", f"{directory}/history")
    )
    settings = topic_settings("orders", {})
    columns = VersionColumns(None)
    for number, (begin, end) in enumerate([(0, 7), (7, 13), (13, 24)]):
        batch = spark.createDataFrame(rows(begin, end), KAFKA).withColumn("date", F.to_date("timestamp"))
        # The second time as after a death between the write and the commit: in a new run.
        for _ in range(2):
            archive_writer(spark, archive, table_format, "c1").append(batch, number)
            add_deltas(batch, version_table(spark, history, table_format, columns), settings)
    for begin, end, moved in ((6, 24, 100), (0, 24, 200)):
        repeated = spark.createDataFrame(rows(begin, end, moved), KAFKA)
        add_deltas(repeated, version_table(spark, history, table_format, columns), settings)

    def read(place: str):
        if table_format == "iceberg":
            return spark.table(place)
        return spark.read.format(table_format).load(place)

    places = sorted((row["partition"], row["offset"]) for row in read(archive).collect())
    table = read_versions(spark, history) if table_format == "parquet" else read(history)
    versions = table.select(
        "sow_key", "version", "value", F.unix_millis("valid_from").alias("f"), F.unix_millis("valid_to").alias("t")
    )
    print(json.dumps([list(place) for place in places]))
    print(json.dumps(sorted(([*row] for row in versions.collect()), key=str)))
    reached = archive_writer(spark, archive, table_format, "c2").reached(["orders.delta"])
    print(json.dumps(sorted([topic, partition, last] for (topic, partition), last in reached.items())))
    names = [archive]
    if table_format == "delta":
        named = archive_writer(spark, "archive_by_name", table_format, "c1")
        for number, (begin, end) in enumerate([(0, 7), (7, 13), (13, 24)]):
            named.append(
                spark.createDataFrame(rows(begin, end), KAFKA).withColumn("date", F.to_date("timestamp")), number
            )
        names.append("archive_by_name")
    print(json.dumps([archive_writer(spark, name, table_format, "c1").last() for name in names]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
