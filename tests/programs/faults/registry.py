"""All scenarios of the fault suite, and the table of them in the README."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.programs.faults import bugs, input_gone, kills, pauses, rebalances, state_damage, versions, volume
from tests.programs.faults.broker import away, bounces, network, roles
from tests.programs.faults.clocks import jumps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.programs.faults.scenario import Scenario


SCENARIOS = [
    *bugs.SCENARIOS,
    *kills.SCENARIOS,
    *pauses.SCENARIOS,
    *rebalances.SCENARIOS,
    *state_damage.SCENARIOS,
    *input_gone.SCENARIOS,
    *volume.SCENARIOS,
    *versions.SCENARIOS,
    *bounces.SCENARIOS,
    *network.SCENARIOS,
    *roles.SCENARIOS,
    *away.SCENARIOS,
    *jumps.SCENARIOS,
]

README: Final = Path(__file__).with_name("README.md")
_BEGIN, _END = "<!-- written by make program NAME=faults ARGS=--readme -->\n\n", "\n\n<!-- end -->"
_HEAD: Final = ["| scenario | what happens | runs | records | result | time |", "|---|---|--:|--:|---|--:|"]
_NOT_YET: Final = "| | | not run yet | |"


class Outcome(NamedTuple):
    """The outcome of a scenario: a row of the table."""

    scenario: Scenario
    runs: int
    records: int
    failure: str | None
    seconds: float
    spoiled: int = 0
    """Number of earlier tries in which the broker itself violated its guarantees."""

    @property
    def cells(self) -> str:
        """The cells after the scenario's own."""
        result = "ok" if self.failure is None else "FAILED"
        if self.spoiled:
            result += f", at try {self.spoiled + 1}: KAFKA-20734"
        return f"| {self.runs} | {self.records:,} | {result} | {self.seconds:.0f} s |"


def table(outcomes: Iterable[Outcome]) -> str:
    """The outcomes as a table, in order."""
    return "\n".join([*_HEAD, *(f"{_begin(outcome.scenario)} {outcome.cells}" for outcome in outcomes)])


def write(scenarios: Iterable[Scenario], outcomes: Iterable[Outcome]) -> None:
    """Write the outcomes into the README; a scenario that did not run keeps its row if its description is unchanged."""
    text = README.read_text()
    before, rest = text.split(_BEGIN)
    old, after = rest.split(_END)
    new = {outcome.scenario.name: outcome.cells for outcome in outcomes}
    lines = list(_HEAD)
    for scenario in scenarios:
        begin = _begin(scenario)
        old_line = next((line for line in old.splitlines() if line.startswith(begin)), f"{begin} {_NOT_YET}")
        lines.append(f"{begin} {new[scenario.name]}" if scenario.name in new else old_line)
    README.write_text(before + _BEGIN + "\n".join(lines) + _END + after)


def missing(scenarios: Iterable[Scenario]) -> list[str]:
    """The scenarios without a row in the README."""
    lines = README.read_text().splitlines()
    return [one.name for one in scenarios if not any(line.startswith(_begin(one)) for line in lines)]


def _begin(scenario: Scenario) -> str:
    return f"| `{scenario.name}` | {scenario.what}"
