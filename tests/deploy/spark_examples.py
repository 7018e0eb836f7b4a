"""Runs the examples in one session on the executors of a cluster; writes their results, and who did the tasks.

`spark-submit … spark_examples.py BOOTSTRAP TOPIC DIRECTORY`: the results are in DIRECTORY/results.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from spark_integration import spark_session, stream_deltas
from spark_integration.examples import change_rate, dashboard, late_joiner, latest_order_book, mirror
from spark_integration.tables.upsert import read_snapshot


def rows(frame: Any) -> list[list[str]]:
    """All rows as texts."""
    return [[str(value) for value in row] for row in frame.collect()]


def tasks_of(spark: Any) -> dict[str, int]:
    """The number of tasks that each executor, or the driver, has completed."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    found = [executors.apply(number) for number in range(executors.size())]
    return {executor.id(): executor.completedTasks() for executor in found}


def main(bootstrap: str, topic: str, directory: str) -> None:
    """Run on the session that `spark-submit` describes."""
    with spark_session("examples") as spark:
        before, options = tasks_of(spark), {"kafka.bootstrap.servers": bootstrap}
        streamed = options | {"startingOffsets": "earliest"}
        results: dict[str, Any] = {"master": spark.sparkContext.master}
        results["latest_order_book"] = rows(latest_order_book.order_book(spark, topic, options))
        results["late_joiner"] = sorted(late_joiner.snapshot(spark, topic, options))
        table, checkpoint = f"{directory}/table", f"{directory}/table-state"
        dashboard.follow(spark, topic, options, table, checkpoint)
        results["dashboard"] = rows(dashboard.figures(read_snapshot(spark, table)).drop("updated"))
        rates = change_rate.change_rate(stream_deltas(spark, topic, options=streamed), every="1 day")
        writer = rates.writeStream.outputMode("complete").format("memory").queryName("rates")
        writer.trigger(availableNow=True).start().awaitTermination()
        results["change_rate"] = rows(spark.table("rates").groupBy("sow_key").sum("changes").orderBy("sow_key"))
        deltas = stream_deltas(spark, topic, latest_order_book.ORDER + ", customer STRING, balance DOUBLE", streamed)
        writer = mirror.mirror(deltas, f"{topic}_copy", options).option("checkpointLocation", f"{directory}/state")
        writer.trigger(availableNow=True).start().awaitTermination()
        results["tasks"] = {name: count - before.get(name, 0) for name, count in tasks_of(spark).items()}
        text = json.dumps(results)
        print(text, flush=True)
        Path(directory, "results.json").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
