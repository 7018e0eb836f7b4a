"""The commands that move and check a merge, as far as they go without Spark: their help, and wrong usage."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from spark_integration.cli import run_command

COMMANDS = ("takeover", "handback", "backfill", "reconcile")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each command names its topic and the pipeline's file."""
    assert run_command([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "TOPIC" in text
    assert "pipeline.yaml" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_is_exit_code_2(command: str, tmp_path, monkeypatch, capsys) -> None:
    """A missing topic and a missing pipeline file end a command with 2 and the remedy, before Spark starts."""
    monkeypatch.chdir(tmp_path)
    assert run_command([command]) == 2
    assert "Missing argument 'TOPIC'" in capsys.readouterr().err
    more = ["--from", "archive"] if command == "backfill" else []
    assert run_command([command, "orders", *more]) == 2
    assert "name the pipeline's file with -c FILE" in capsys.readouterr().err


def test_a_time_without_zone_is_refused(capsys) -> None:
    """`--as-of` needs a zone: a local time could mean several moments."""
    assert run_command(["backfill", "orders", "--from", "a", "--as-of", "2026-11-23T10:00:00"]) == 2
    assert "--as-of" in capsys.readouterr().err
