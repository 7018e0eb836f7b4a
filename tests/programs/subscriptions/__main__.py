"""Subscribers that join while updates come: `make program NAME=subscriptions ARGS="--records 100000 --seconds 20"`."""

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
from tests.programs.subscriptions.run import Plan, run


def main() -> int:
    """Run the test; returns 1 if a subscriber holds a wrong record."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.subscriptions", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=20_000, help="updates a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the feed runs")
    parser.add_argument("--subscribers", type=int, default=20, help="at most 20")
    parser.add_argument("--processes", type=int, default=1, help="among which they are divided")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="what is random follows from it")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Programs and brokers end with this process.
    plan = Plan(
        seed=arguments.seed,
        records=arguments.records,
        rate=arguments.rate,
        seconds=arguments.seconds,
        subscribers=arguments.subscribers,
        processes=arguments.processes,
    )
    with contextlib.ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-subscriptions-")))
        bootstrap = arguments.bootstrap or cleanup.enter_context(EmbeddedBroker()).bootstrap
        outcome = run(plan, bootstrap, directory, f"s{secrets.token_hex(4)}", print_progress)
    print(f"{plan}: {'FAILED' if outcome.wrong else 'ok'}\n{outcome}", flush=True)
    return 1 if outcome.wrong else 0


def print_progress(text: str) -> None:
    """Print progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
