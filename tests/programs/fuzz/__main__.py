"""Feeds a worker rubbish and accounts for every record: `make program NAME=fuzz ARGS="--records 1000000 --seed 7"`."""

from __future__ import annotations

import sys

from tests.programs.fuzz.run import Plan, run
from tests.programs.harness import main

if __name__ == "__main__":
    sys.exit(main("fuzz", __doc__, Plan, run))
