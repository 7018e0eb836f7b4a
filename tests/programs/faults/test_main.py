"""What the fault suite makes of its command line."""

from __future__ import annotations

import sys

import pytest

from tests.programs.faults.__main__ import choose, main
from tests.programs.faults.registry import SCENARIOS


@pytest.mark.parametrize(
    "words", [["--only", "kil-all"], ["--only", "kill", "--only", "stats"], ["--readme", "--short"]]
)
def test_a_run_that_would_say_nothing_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A word in no scenario's name, where nothing would run and end well; the short form put down for the whole."""
    monkeypatch.setattr(sys, "argv", ["faults", *words, "--list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_a_scenario_that_takes_an_hour_runs_only_where_it_is_named() -> None:
    """`make faults` leaves it out; its name, or a part of it, brings it in; `--list` shows it."""
    assert "forty-kills" not in {one.name for one in choose([])}
    assert [one.name for one in choose(["forty"])] == ["forty-kills"]
    assert choose([], with_extra=True) == SCENARIOS
