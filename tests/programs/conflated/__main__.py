"""Tests conflated topics under a fast feed: `make program NAME=conflated ARGS="--minutes 1 --kill-every 10"`."""

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
from tests.programs.conflated.run import Plan, run


def main() -> int:
    """Run the test undisturbed and then with kills, or as requested; returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.conflated", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the feed runs, each time")
    parser.add_argument("--rate", type=float, default=20_000, help="updates a second")
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument("--interval", type=int, default=500, help="in milliseconds")
    parser.add_argument("--workers", type=int, help="none: 1 undisturbed, 2 with kills")
    parser.add_argument("--kill-every", type=float, help="seconds; 0: undisturbed only; none: both, this one every 10")
    parser.add_argument("--through-merge", action="store_true", help="feed deltas to a merge worker; lateness is told")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="what is random follows from it")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--keep", action="store_true", help="keep directories and logs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Workers and brokers end with this process.
    harms = [None, 10.0] if arguments.kill_every is None else [arguments.kill_every or None]
    plans = [
        Plan(
            seed=arguments.seed,
            seconds=arguments.minutes * 60,
            rate=arguments.rate,
            keys=arguments.keys,
            interval_ms=arguments.interval,
            workers=arguments.workers or (1 if harm is None else 2),
            kill_every_s=harm,
            is_merged=arguments.through_merge,
        )
        for harm in harms
    ]
    directory = Path(tempfile.mkdtemp(prefix="sowstream-conflated-"))
    is_good = True
    with contextlib.ExitStack() as cleanup:
        bootstrap = arguments.bootstrap or cleanup.enter_context(EmbeddedBroker()).bootstrap
        for number, plan in enumerate(plans):
            place = directory / str(number)
            place.mkdir()
            outcome = run(plan, bootstrap, place, f"c{secrets.token_hex(4)}", print_progress)
            print(f"{plan}: {'FAILED' if outcome.wrong else 'ok'}\n{outcome}\n", flush=True)
            is_good = is_good and not outcome.wrong
    if arguments.keep or not is_good:
        print_progress(f"settings, states and logs are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if is_good else 1


def print_progress(text: str) -> None:
    """Print progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
