"""The options, verdict and directory of a program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.programs.harness import Report, Verdict, main, read_options


class Plan(NamedTuple):
    """A plan with a field of each kind."""

    seed: int
    keys: int = 5
    """How many keys."""
    lease_s: float = 2.5
    engine: Literal["worker", "spark"] = "worker"
    is_merged: bool = False


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Give the program these arguments."""
    monkeypatch.setattr(sys, "argv", ["program", *words])


def test_the_fields_of_a_plan_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field has an option of its type; without one it has its default, and the seed is random."""
    called(monkeypatch, "--seed", "7", "--lease-s", "1", "--engine", "spark", "--is-merged", "--bootstrap", "h:1")
    assert read_options("x", None, Plan) == (Plan(7, 5, 1.0, "spark", is_merged=True), "h:1", False)
    called(monkeypatch)
    assert read_options("x", None, Plan).plan[1:] == Plan(0)[1:]


def test_the_text_below_a_field_explains_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--help` shows the text, and a value that is none of a field's is refused."""
    called(monkeypatch, "--help")
    with pytest.raises(SystemExit, match="0"):
        read_options("x", None, Plan)
    assert "How many keys." in capsys.readouterr().out
    called(monkeypatch, "--engine", "other")
    with pytest.raises(SystemExit, match="2"):
        read_options("x", None, Plan)


@pytest.mark.parametrize("fault", ["", "wrong", "error"])
def test_the_directory_of_a_run_that_failed_is_kept(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken promise and a failed assertion end with 1 and keep the directory; a good run ends with 0 without it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    called(monkeypatch, "--bootstrap", "h:1")

    def run(plan: Plan, bootstrap: str, directory: Path, name: str, report: Report) -> Verdict:
        (directory / "log").write_text(f"{bootstrap} {name}")
        assert fault != "error"
        return Verdict(["a promise"] * (fault == "wrong"), [f"{plan.keys} keys"])

    assert main("x", None, Plan, run) == int(bool(fault))
    assert len(list(tmp_path.glob("sowstream-x-*/0/log"))) == int(bool(fault))
    output = capsys.readouterr().out
    assert ("FAILED" if fault else ": ok\n5 keys") in output
    assert ("a promise" in output) == (fault == "wrong")
