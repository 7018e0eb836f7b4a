"""Claims by many clients while workers are killed: `make program NAME=claims ARGS="--keys 34000 --kills 6"`."""

from __future__ import annotations

import sys

from tests.programs.claims.run import Plan, run
from tests.programs.harness import main

if __name__ == "__main__":
    sys.exit(main("claims", __doc__, Plan, run))
