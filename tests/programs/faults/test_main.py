"""The command line of the fault suite selects scenarios, and refuses runs without meaning."""

from __future__ import annotations

import sys

import pytest

from tests.programs.faults.__main__ import choose, main
from tests.programs.faults.registry import SCENARIOS


@pytest.mark.parametrize(
    "words", [["--only", "kil-all"], ["--only", "kill", "--only", "stats"], ["--readme", "--short"]]
)
def test_a_run_that_would_prove_nothing_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that matches no scenario is refused, and so is writing a short run's outcome into the README."""
    monkeypatch.setattr(sys, "argv", ["faults", *words, "--list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_a_scenario_that_takes_an_hour_runs_only_where_it_is_named() -> None:
    """The fault suite omits the scenario that takes an hour; its name or a part of it selects it; `--list` shows it."""
    assert "forty-kills" not in {one.name for one in choose([])}
    assert [one.name for one in choose(["forty"])] == ["forty-kills"]
    assert choose([], with_extra=True) == SCENARIOS
