"""The commands that move and check a merge, as far as they go without Spark: their help, and wrong usage."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from processor.cli.output import data
from spark_integration import cli
from spark_integration.cli import run_command
from tests.waiting import PATIENCE_S, until

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


def test_data_is_utf8_in_any_locale(monkeypatch) -> None:
    """Output in a pipe is UTF-8 in an ASCII locale, as that of `sowstream` is."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(cli, "run_command", lambda: data("größe"))
    with pytest.raises(SystemExit):
        cli.main()
    assert out.buffer.getvalue().decode() == "größe\n"


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is no signal of one process there")
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_spark_starts_is_one_line(command: str, tmp_path) -> None:
    """An interrupt before the session exists ends a command at once: one line, exit code 130, and no trace."""
    (tmp_path / "sowstream.yaml").write_text("topics: {orders: {}}\n")
    (tmp_path / "pipeline.yaml").write_text("spark_log: '-'\n")
    (java := tmp_path / "bin" / "java").parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep 600\n")
    java.chmod(0o755)
    more = ["--from", "archive"] if command == "backfill" else []
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_integration.cli", command, "orders", "-c", f"{tmp_path}/pipeline.yaml", *more],
        env={**os.environ, "JAVA_HOME": str(tmp_path)}, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        until((tmp_path / "begun").exists, "Java is started")
        process.send_signal(signal.SIGINT)
        # Java has the other end of standard error, so that its end is not awaited.
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr is not None
        assert process.stderr.readline() == "Interrupted before Spark had started: nothing has run.\n"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.communicate()[1] == ""
