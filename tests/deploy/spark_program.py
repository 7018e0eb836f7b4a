"""Merges a small history on the executors of a cluster, and runs the examples there, all in one session.

`spark-submit … spark_program.py HISTORY BOOTSTRAP TOPIC DIRECTORY`, where HISTORY is a directory of JSON lines:
DIRECTORY/merged.json has the result of the merge and the place of each executor's Python, results.json the examples'.
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


def main(history: str, bootstrap: str, topic: str, directory: str) -> None:
    """Run on the session that `spark-submit` describes."""
    spark = SparkSession.builder.getOrCreate()
    # Tasks of a barrier run at the same time, so that each of two executors has one.
    executors = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(places).collect()
    with merge_batch(spark, "orders", history=history_of(spark, history, "orders")) as merged:
        records = {row.key.decode(): json.loads(row.value) for row in merged.records.collect()}
    result = {"master": spark.sparkContext.master, "executors": executors, "records": records}
    Path(directory, "merged.json").write_text(json.dumps(result))
    # Its directory is the first one of the path. It ends the session.
    import spark_examples

    spark_examples.main(bootstrap, topic, directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
