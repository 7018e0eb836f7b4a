"""Compares ratios with the last accepted ones, and fails only where one has clearly become worse.

Ratios are compared because both sides of one were measured in turn on the same machine. A regression is clear if the
median has lost more than a tenth and no round is as good as the worst accepted one: rounds of one run differ by about
as much on an idle machine, and other processes affect some rounds, hardly all.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.programs.benchmarks.figures import SUITE_FILE
from tests.programs.benchmarks.goals import PAIRS, Programs, of_rounds

ACCEPTED = Path(__file__).with_name("accepted.json")
LOSS = 0.10
"""Loss of a median beyond which a regression may be clear."""
ROUNDS_LEAST = 3
"""Least number of rounds: the spread of fewer rounds is unknown."""


class Change(NamedTuple):
    """The earlier and the current rounds of a ratio."""

    name: str
    state: Literal["regressed", "steady", "improved", "too few rounds", "not measured", "new"]
    then: list[float]
    now: list[float]

    def __str__(self) -> str:
        return f"{self.state:15}{self.name:58} then {_spread(self.then)}, now {_spread(self.now)}"


def main() -> None:
    """Compare the ratios, or accept them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, nargs="?", default=SUITE_FILE, help="what the suite wrote")
    parser.add_argument("--accept", action="store_true", help="these are to be compared with from now on")
    parser.add_argument("--accepted", type=Path, default=ACCEPTED, help="where what was accepted is kept")
    arguments = parser.parse_args()
    if not arguments.figures.exists():
        raise SystemExit(f"{arguments.figures} is not there: run python -m tests.programs.benchmarks")
    programs = full_sizes(json.loads(arguments.figures.read_text(encoding="utf-8"))["programs"])
    now = {pair.name: rounds for pair in PAIRS if (rounds := of_rounds(programs, pair))}
    then = json.loads(arguments.accepted.read_text(encoding="utf-8")) if arguments.accepted.exists() else {}
    if not now:
        raise SystemExit(
            f"{arguments.figures} has no ratios measured at full size: run python -m tests.programs.benchmarks"
        )
    if arguments.accept:
        accepted = accept(then, now, programs)
        arguments.accepted.write_text(json.dumps(accepted, indent=1) + "\n", encoding="utf-8")
        print(f"accepted {len(now)} ratios in {arguments.accepted}")
        return
    if not then:
        print(f"nothing is accepted yet: look at the figures, and run this again with --accept ({arguments.accepted})")
        return
    changes = compare(then["ratios"], now)
    print(*changes, sep="\n")
    if others := machines(programs) - machines({"accepted": then}):
        print(f"measured on {', '.join(sorted(others))}, which is not where the accepted ones are from")
    if regressed := [change for change in changes if change.state == "regressed"]:
        raise SystemExit(
            f"{len(regressed)} of {len(changes)} ratios are clearly worse: mend what made them so, or run with --accept"
        )


def full_sizes(programs: Programs) -> Programs:
    """The programs measured at full size: small sizes only show that the programs work."""
    return {name: entry for name, entry in programs.items() if not entry.get("is_quick")}


def compare(then: dict[str, list[float]], now: dict[str, list[float]]) -> list[Change]:
    """Compare all ratios of both sides."""
    return [_compared(name, then.get(name, []), now.get(name, [])) for name in {**then, **now}]


def accept(then: dict[str, Any], now: dict[str, list[float]], programs: Programs) -> dict[str, Any]:
    """The ratios to store: new ones replace old ones, and those without new figures are kept."""
    measured_on = next((entry["machine"] for entry in programs.values() if "machine" in entry), {})
    return {"machine": measured_on or then.get("machine", {}), "ratios": {**then.get("ratios", {}), **now}}


def machines(programs: Programs) -> set[str]:
    """The machines of the figures."""
    machine_entries = [entry["machine"] for entry in programs.values() if entry.get("machine")]
    return {f"{machine.get('cores')} cores of {machine.get('cpu')}" for machine in machine_entries}


def _compared(name: str, then: list[float], now: list[float]) -> Change:
    if not now:
        return Change(name, "not measured", then, now)
    if not then:
        return Change(name, "new", then, now)
    if min(len(then), len(now)) < ROUNDS_LEAST:
        return Change(name, "too few rounds", then, now)
    gain = statistics.median(now) / statistics.median(then) - 1
    if gain < -LOSS and max(now) < min(then):
        return Change(name, "regressed", then, now)
    if gain > LOSS and min(now) > max(then):
        return Change(name, "improved", then, now)
    return Change(name, "steady", then, now)


def _spread(rounds: list[float]) -> str:
    """The median, and the range of the rounds."""
    if not rounds:
        return "-"
    return f"{statistics.median(rounds):.2f} ({min(rounds):.2f} to {max(rounds):.2f} in {len(rounds)} rounds)"


if __name__ == "__main__":
    main()
