"""Runs three engines on one history: `make program NAME=engines ARGS="--commands 100000"`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from spark_integration import spark_session
from tests.programs.engines.run import Plan, run
from tests.programs.harness import Report, Verdict, main

if TYPE_CHECKING:
    from pathlib import Path

_SPARK = {
    "spark.master": "local[2]",
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A stream starts a Python process for each in every micro-batch, and four streams share two cores.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    # On a busy machine, a process that stands still is not dead.
    "spark.network.timeout": "900s",
    "spark.executor.heartbeatInterval": "60s",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def run_on_spark(plan: Plan, bootstrap: str, directory: Path, name: str, report: Report) -> Verdict:
    """Run the comparison in a session of its own."""
    spark = spark_session("engines", **_SPARK)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        wrong = run(plan, spark, bootstrap, directory, name, report)
    finally:
        spark.stop()
    return Verdict(wrong, ["the engines DIFFER" if wrong else "three engines, one result"])


if __name__ == "__main__":
    sys.exit(main("engines", __doc__, Plan, run_on_spark))
