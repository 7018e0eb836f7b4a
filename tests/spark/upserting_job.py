"""Merges random batches, some of them twice, into a table of a format with MERGE, and prints its rows."""

from __future__ import annotations

import json
import random
import sys

from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from spark_integration import spark_session
from spark_integration.tables.upsert import follow_topic, upsert_to

COLUMNS = "id LONG, qty LONG, sow_key STRING, kind STRING, version LONG, partition INT, offset LONG"

SESSIONS = {
    "delta": {
        "spark.jars.packages": "io.delta:delta-spark_2.13:4.0.0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
    },
}

Row = tuple[int | None, int | None, str, str, int, int, int]


def batches(seed: int) -> list[list[Row]]:
    """Batches as from a stream of a SOW topic: inserts, updates, deletes, expiries, and keys inserted again."""
    rng = random.Random(seed)
    versions: dict[str, int] = {}
    offset, made = 0, []
    for _ in range(8):
        batch: list[Row] = []
        for _ in range(40):
            key = str(rng.randrange(15))
            version = versions.get(key, 0) + 1
            if version > 1 and rng.random() < 0.25:
                batch.append((None, None, key, rng.choice(["delete", "expire"]), version, int(key) % 3, offset))
                del versions[key]
            else:
                kind = "insert" if version == 1 else "update"
                batch.append((int(key), rng.randrange(100), key, kind, version, int(key) % 3, offset))
                versions[key] = version
            offset += 1
        made.append(batch)
    return made


def main(table_format: str, directory: str, seed: str) -> None:
    """Merge the batches in a new session."""
    spark = spark_session(
        "upserting",
        **SESSIONS[table_format],
        **{
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.catalog.lake.warehouse": directory,
            "spark.sql.warehouse.dir": directory,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    table = f"{directory}/orders" if table_format == "delta" else "lake.db.orders"
    upsert = upsert_to(table, format=table_format)  # type: ignore[arg-type]
    for number, batch in enumerate(batches(int(seed))):
        metadata = F.struct("sow_key", "kind", "version", "partition", "offset").alias("_sow")
        rows = spark.createDataFrame(batch, COLUMNS).select("id", "qty", metadata)
        upsert(rows, number)
        if number % 3 == 0:
            upsert(rows, number)
    found = spark.read.format("delta").load(table) if table_format == "delta" else spark.table(table)
    rows = found.select("id", "qty", "_sow.*").collect()
    print(json.dumps({row["sow_key"]: [row["id"], row["qty"], row["version"]] for row in rows}))
    print(json.dumps(found.columns))
    follows: list[object] = []
    for place, topic in ((table + "_other", "orders"), (table, "orders"), (table, "orders"), (table, "orders_12")):
        try:
            follows.append(follow_topic(spark, place, table_format, f"{topic}.sow", topic))
        except ConfigurationError as error:
            follows.append(str(error))
    print(json.dumps(follows))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
