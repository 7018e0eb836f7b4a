"""Subscribers that join while updates come: `make program NAME=subscriptions ARGS="--records 100000 --seconds 20"`."""

from __future__ import annotations

import sys

from tests.programs.harness import main
from tests.programs.subscriptions.run import Plan, run

if __name__ == "__main__":
    sys.exit(main("subscriptions", __doc__, Plan, run))
