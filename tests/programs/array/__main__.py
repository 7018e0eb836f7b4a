"""Runs every row of the covering array with many seeds: `make program NAME=array ARGS="--seeds 20"`."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.programs.array.features import FACTORS
from tests.programs.array.pairs import covering_array, pairs_in
from tests.programs.array.play import play
from tests.programs.array.plug_ins import install


def main() -> int:
    """Run the rows, and print each difference and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="histories of each row")
    parser.add_argument("--turns", type=int, default=20, help="length of a history")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="the first seed")
    parser.add_argument("--row", type=int, help="this row alone")
    arguments = parser.parse_args()
    rows = covering_array(FACTORS)
    print(f"{len({pair for row in rows for pair in pairs_in(row)})} pairs in {len(rows)} rows, seed {arguments.seed}")
    kinds: Counter[str] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        install(Path(place) / "site")
        sys.path.insert(0, str(Path(place) / "site"))
        for number, row in enumerate(rows):
            if arguments.row not in (None, number):
                continue
            for seed in range(arguments.seed, arguments.seed + arguments.seeds):
                problems = play(row, seed, Path(place), arguments.turns)
                if problems:
                    wrong += 1
                    kinds.update(sorted({problem.what for problem in problems}))
                    print(f"row {number}, seed {seed}: {problems[0]}\n    {dict(row)}")
                    break
    print(f"{wrong} rows found wrong: {dict(kinds)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
