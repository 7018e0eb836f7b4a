import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs.benchmarks import guard

NAME = "throughput: sowstream / Kafka Streams, records_per_s"
THEN = [2.0, 2.1, 2.2]


def file_of(directory: Path, ours: list[float], *, is_quick: bool = False) -> Path:
    """A file of the suite with these rounds, against 100 records/s of Kafka Streams."""
    rounds = {"sowstream": ours, "Kafka Streams": [100.0] * len(ours)}
    figures = {name: [{"records_per_s": rate} for rate in rates] for name, rates in rounds.items()}
    file = directory / "figures.json"
    entry = {"is_quick": is_quick, "machine": {"cpu": "a", "cores": 2}, "figures": figures}
    file.write_text(json.dumps({"programs": {"throughput": entry}}))
    return file


def run(monkeypatch: Any, *arguments: object) -> None:
    """Run the command."""
    monkeypatch.setattr(sys, "argv", ["guard", *map(str, arguments)])
    guard.main()


def state(then: list[float], now: list[float]) -> str:
    """The state of one ratio."""
    [change] = guard.compare({NAME: then}, {NAME: now})
    return change.state


def test_a_tenth_lost_in_every_round_is_a_regression():
    """A median that lost more than a tenth, with no round as good as the worst accepted one, is a regression."""
    assert state(THEN, [1.7, 1.8, 1.9]) == "regressed"


def test_one_round_as_good_as_before_is_no_clear_regression():
    """One round as good as before is no clear regression: other processes may have disturbed the other rounds."""
    assert state(THEN, [1.0, 1.1, 2.0]) == "steady"


def test_less_than_a_tenth_is_no_clear_regression():
    """A loss of less than a tenth is no clear regression, even if no round reaches the accepted ones."""
    assert state(THEN, [1.95, 1.96, 1.97]) == "steady"


def test_an_improvement_is_reported():
    """An improvement by as much as a regression needs is reported."""
    assert state(THEN, [2.4, 2.5, 2.6]) == "improved"


@pytest.mark.parametrize(("then", "now"), [(THEN, [1.0, 1.0]), ([2.0, 2.1], [1.0, 1.0, 1.0])])
def test_too_few_rounds_on_either_side_decide_nothing(then: list[float], now: list[float]):
    """Too few rounds on either side are no regression, as their spread is unknown."""
    assert state(then, now) == "too few rounds"


def test_a_ratio_on_one_side_only_is_no_regression():
    """A ratio on one side only is reported without a regression: a program was left out or is new."""
    changes = guard.compare({"old": THEN}, {"new": THEN})
    assert [(change.name, change.state) for change in changes] == [("old", "not measured"), ("new", "new")]


def test_missing_accepted_figures_are_no_failure(tmp_path: Path, monkeypatch: Any, capsys: Any):
    """Without accepted figures the guard asks for them to be reviewed, and does not fail."""
    run(monkeypatch, file_of(tmp_path, [200, 210, 220]), "--accepted", tmp_path / "accepted.json")
    assert "nothing is accepted yet" in capsys.readouterr().out


def test_accepted_figures_are_compared_with_later_ones(tmp_path: Path, monkeypatch: Any, capsys: Any):
    """Accepted figures are compared with later ones: the same are steady, and much worse ones fail by name."""
    accepted = tmp_path / "accepted.json"
    run(monkeypatch, file_of(tmp_path, [200, 210, 220]), "--accepted", accepted, "--accept")
    run(monkeypatch, file_of(tmp_path, [200, 210, 220]), "--accepted", accepted)
    with pytest.raises(SystemExit, match="1 of 1 ratios are clearly worse"):
        run(monkeypatch, file_of(tmp_path, [150, 160, 170]), "--accepted", accepted)
    assert f"regressed      {NAME}" in capsys.readouterr().out


def test_accepting_some_ratios_keeps_the_others():
    """Accepting the ratios of some programs keeps those of the others."""
    then = {"machine": {"cpu": "b"}, "ratios": {"old": THEN, NAME: THEN}}
    kept = guard.accept(then, {NAME: [3.0]}, {"throughput": {"machine": {"cpu": "a"}}})
    assert kept == {"machine": {"cpu": "a"}, "ratios": {"old": THEN, NAME: [3.0]}}


def test_small_sizes_are_not_compared(tmp_path: Path, monkeypatch: Any):
    """Figures of small sizes neither regress nor are accepted."""
    with pytest.raises(SystemExit, match="no ratios measured at full size"):
        run(monkeypatch, file_of(tmp_path, [1, 1, 1], is_quick=True), "--accept", "--accepted", tmp_path / "a.json")
