"""Random lives under kills: `make program NAME=lives ARGS="--lives 100000 --kills 6 --engine spark --seed 7"`."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from processor.trial.broker import EmbeddedBroker
from tests.programs.lives.run import Plan, run


def main() -> int:
    """Run the test; returns 1 if a version came twice."""
    default = Plan(0)
    parser = argparse.ArgumentParser(prog="python -m tests.programs.lives", description=__doc__)
    parser.add_argument("--lives", type=int, default=default.lives)
    parser.add_argument("--keys", type=int, default=default.keys, help="keys that live again and again")
    parser.add_argument("--kills", type=int, default=default.kills)
    parser.add_argument("--engine", choices=["worker", "spark"], default=default.engine)
    parser.add_argument("--guarantee", choices=["exactly_once", "at_least_once"], default=default.guarantee)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="what is random follows from it")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = vars(parser.parse_args())
    given = arguments.pop("bootstrap")
    plan = Plan(**arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Workers and brokers end with this process.
    with contextlib.ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-lives-")))
        bootstrap = given or cleanup.enter_context(EmbeddedBroker()).bootstrap
        outcome = run(plan, bootstrap, directory, f"c{secrets.token_hex(4)}", print_progress)
    print("\n".join([f"{plan}: {'FAILED' if outcome.wrong else 'ok'}", outcome.figures, *outcome.wrong]), flush=True)
    return 1 if outcome.wrong else 0


def print_progress(text: str) -> None:
    """Print progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
