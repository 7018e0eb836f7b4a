"""Claims by many clients while workers are killed: `make program NAME=claims ARGS="--keys 34000 --kills 6"`."""

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
from tests.programs.claims.plan import Plan
from tests.programs.claims.run import run


def main() -> int:
    """Run the test; returns 1 if a promise was broken."""
    default = Plan(0)
    parser = argparse.ArgumentParser(prog="python -m tests.programs.claims", description=__doc__)
    parser.add_argument("--clients", type=int, default=default.clients)
    parser.add_argument("--processes", type=int, default=default.processes, help="among which they are divided")
    parser.add_argument("--keys", type=int, default=default.keys, help="records to be claimed")
    parser.add_argument("--rivals", type=int, default=default.rivals, help="clients that claim each record")
    parser.add_argument("--workers", type=int, default=default.workers)
    parser.add_argument("--kills", type=int, default=default.kills, help="workers that are killed meanwhile")
    parser.add_argument("--window", type=int, default=default.window, help="claims of a client under way")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="what is random follows from it")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = vars(parser.parse_args())
    given = arguments.pop("bootstrap")
    plan = Plan(**arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Workers and brokers end with this process.
    with contextlib.ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-claims-")))
        bootstrap = given or cleanup.enter_context(EmbeddedBroker()).bootstrap
        outcome = run(plan, bootstrap, directory, f"c{secrets.token_hex(4)}", print_progress)
    print(f"{plan}: {'FAILED' if outcome.wrong else 'ok'}\n{outcome}", flush=True)
    return 1 if outcome.wrong else 0


def print_progress(text: str) -> None:
    """Print progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
