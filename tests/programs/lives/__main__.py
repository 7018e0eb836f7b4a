"""Random lives under kills: `make program NAME=lives ARGS="--lives 100000 --kills 6 --engine spark --seed 7"`."""

from __future__ import annotations

import sys

from tests.programs.harness import main
from tests.programs.lives.run import Plan, run

if __name__ == "__main__":
    sys.exit(main("lives", __doc__, Plan, run))
