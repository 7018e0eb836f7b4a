"""Queues under load and faults: `make program NAME=queues ARGS="--messages 100000 --seed 7"`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.programs.faults.broker.broker import Broker
from tests.programs.harness import Report, Verdict, play, read_options
from tests.programs.queues.run import Plan, run

if TYPE_CHECKING:
    from pathlib import Path


def run_on_own_broker(plan: Plan, _: str, directory: Path, name: str, report: Report) -> Verdict:
    """Run the plan on a broker that it may kill."""
    with Broker(directory / "broker") as broker:
        return run(plan, broker, directory, name, report)


if __name__ == "__main__":
    options = read_options("queues", __doc__, Plan)
    sys.exit(play("queues", [options.plan], run_on_own_broker, options, has_own_broker=True))
