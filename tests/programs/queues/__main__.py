"""Queues under load and faults: `make program NAME=queues ARGS="--messages 100000 --seed 7"`."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.programs.faults.broker.broker import Broker
from tests.programs.queues.plan import Plan
from tests.programs.queues.run import run


def main() -> int:
    """Run the test on a broker of its own; returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.queues", description=__doc__)
    for field, default in Plan(secrets.randbits(32))._asdict().items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=type(default), default=default)
    plan = Plan(**vars(parser.parse_args()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Workers and brokers end with this process.
    with contextlib.ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-queues-")))
        broker = cleanup.enter_context(Broker(directory / "broker"))
        outcome = run(plan, broker, directory, f"q{secrets.token_hex(4)}", print_progress)
    print(f"{plan}: {'FAILED' if outcome.wrong else 'ok'}\n{outcome}", flush=True)
    return 1 if outcome.wrong else 0


def print_progress(text: str) -> None:
    """Print progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
