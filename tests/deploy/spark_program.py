"""Merges a small history on the executors of a cluster; prints its result and the place of each executor's Python.

`spark-submit … spark_program.py HISTORY`, where HISTORY is a directory of JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_integration import history_of, merge_batch


def places(_rows):
    """The process of a task: its directory, its interpreter, and the files of the packages that it imports."""
    import confluent_kafka
    import orjson
    import pyarrow as pa
    import rocksdict

    import processor

    modules = [processor, pa, orjson, rocksdict, confluent_kafka, os]
    yield {
        "directory": str(Path.cwd()),
        "interpreter": os.path.realpath(sys.executable),
        "modules": [os.path.realpath(module.__file__) for module in modules],
    }


def main() -> None:
    """Run on the session that `spark-submit` describes."""
    spark = SparkSession.builder.getOrCreate()
    # Tasks of a barrier run at the same time, so that each of two executors has one.
    executors = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(places).collect()
    with merge_batch(spark, "orders", history=history_of(spark, sys.argv[1], "orders")) as merged:
        records = {row.key.decode(): json.loads(row.value) for row in merged.records.collect()}
    print(json.dumps({"master": spark.sparkContext.master, "executors": executors, "records": records}))
    spark.stop()


if __name__ == "__main__":
    main()
