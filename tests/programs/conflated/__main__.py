"""Tests conflated topics under a fast feed: `make program NAME=conflated ARGS="--minutes 1 --kill-every 10"`."""

from __future__ import annotations

import sys

from tests.programs.conflated.run import Plan, run
from tests.programs.harness import Options, parser_of, play


def main() -> int:
    """Run the test undisturbed and then with kills, or as requested; returns 1 if a promise was broken."""
    parser = parser_of("conflated", __doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the feed runs, each time")
    parser.add_argument("--rate", type=float, default=20_000, help="updates a second")
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument("--interval", type=int, default=500, help="in milliseconds")
    parser.add_argument("--workers", type=int, help="none: 1 undisturbed, 2 with kills")
    parser.add_argument("--kill-every", type=float, help="seconds; 0: undisturbed only; none: both, this one every 10")
    parser.add_argument("--through-merge", action="store_true", help="feed deltas to a merge worker; lateness is told")
    arguments = parser.parse_args()
    plans = [
        Plan(
            seed=arguments.seed,
            seconds=arguments.minutes * 60,
            rate=arguments.rate,
            keys=arguments.keys,
            interval_ms=arguments.interval,
            workers=arguments.workers or (1 if kill_every_s is None else 2),
            kill_every_s=kill_every_s,
            is_merged=arguments.through_merge,
        )
        for kill_every_s in ([None, 10.0] if arguments.kill_every is None else [arguments.kill_every or None])
    ]
    return play("conflated", plans, run, Options((), arguments.bootstrap, arguments.keep))


if __name__ == "__main__":
    sys.exit(main())
