"""Runs three engines on one history: `make program NAME=engines ARGS="--commands 100000"`."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from processor.trial.broker import EmbeddedBroker
from spark_integration import spark_session
from tests.programs.engines.run import Plan, run


def main() -> int:
    """Run the comparison; returns 1 if the engines differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.engines", description=__doc__)
    parser.add_argument("--commands", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=25_000, help="of each of the five topics")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="what is random follows from it")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--keep", action="store_true", help="keep directories and logs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Started processes end with this one.
    plan = Plan(arguments.seed, arguments.commands, arguments.keys)
    directory = Path(tempfile.mkdtemp(prefix="sowstream-engines-"))
    with contextlib.ExitStack() as cleanup:
        bootstrap = arguments.bootstrap or cleanup.enter_context(EmbeddedBroker()).bootstrap
        spark = spark_session("engines", **SPARK)
        cleanup.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        wrong = run(plan, spark, bootstrap, directory, f"e{secrets.token_hex(3)}", print_progress)
    print("\n".join([f"{plan}: {'the engines DIFFER' if wrong else 'three engines, one result'}", *wrong]), flush=True)
    if arguments.keep or wrong:
        print_progress(f"settings, states and logs are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if wrong else 0


SPARK = {
    "spark.master": "local[2]",
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A stream starts a Python process for each in every micro-batch, and four streams share two cores.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def print_progress(text: str) -> None:
    """Print progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
