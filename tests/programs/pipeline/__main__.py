"""Runs the whole pipeline on Spark under kills and audits it: `make program NAME=pipeline ARGS="--kills 3"`."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from processor.errors import ConfigurationError
from processor.trial.broker import EmbeddedBroker
from spark_integration.session import require_java
from tests.programs.pipeline.run import Plan, run

_SECONDS_MAX = 600  # The audit holds everything in memory, and compaction begins after ten minutes.


def main() -> int:
    """Run the pipeline and print the table; returns 1 if a promise was broken, 2 for wrong usage."""
    default = Plan(0)
    parser = argparse.ArgumentParser(prog="python -m tests.programs.pipeline", description=__doc__)
    parser.add_argument("--seconds", type=float, default=default.seconds, help="how long the feed has its full rate")
    parser.add_argument("--rate", type=float, default=default.rate, help="rows a second")
    parser.add_argument("--keys", type=int, default=default.keys)
    parser.add_argument("--kills", type=int, default=default.kills, help="of jobs: driver, JVM or both")
    parser.add_argument("--worker-kills", type=int, default=default.worker_kills)
    parser.add_argument("--moves", type=int, default=default.moves, help="of the merge to Spark and back")
    parser.add_argument("--together", action="store_true", help="all jobs in one session, for a small machine")
    parser.add_argument("--patience", type=float, default=default.patience, help="seconds, for any one event")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="what is random follows from it")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--keep", action="store_true", help="keep directories and logs")
    arguments = parser.parse_args()
    if not 0 < arguments.seconds <= _SECONDS_MAX:
        parser.error(f"--seconds {arguments.seconds:g}: give 1 to {_SECONDS_MAX}")
    try:
        require_java()
    except ConfigurationError as error:
        parser.error(str(error))
    plan = Plan(**{name: getattr(arguments, name) for name in Plan._fields})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Jobs, workers and brokers end with this process.
    directory, is_good = Path(tempfile.mkdtemp(prefix="sowstream-pipeline-")), False
    try:
        with contextlib.ExitStack() as cleanup:
            bootstrap = (
                arguments.bootstrap
                or cleanup.enter_context(EmbeddedBroker(start_timeout_s=arguments.patience)).bootstrap
            )
            suffix = f"_{secrets.token_hex(3)}" if arguments.bootstrap else ""
            outcome = run(plan, bootstrap, directory, suffix, print_progress)
        is_good = outcome.is_good
        print(f"{plan}: {'ok' if is_good else 'FAILED'}\n{outcome}", flush=True)
    except AssertionError:
        traceback.print_exc()
        print(f"{plan}: FAILED", flush=True)
    finally:
        if arguments.keep or not is_good:
            print_progress(f"settings, logs, checkpoints and tables are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if is_good else 1


def print_progress(text: str) -> None:
    """Print progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
