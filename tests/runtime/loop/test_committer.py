"""Tests of the seam between the two guarantees."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[3]
_SETTING = "at_least_once"


def test_few_files_know_which_guarantee_runs():
    """Only the setting, its choice and operators' commands name a guarantee: the loop and the tasks do not ask."""
    files = [file for folder in ("processor", "spark_integration") for file in (_ROOT / folder).rglob("*.py")]
    knowing = {str(file.relative_to(_ROOT)) for file in files if _SETTING in file.read_text()}
    in_runtime = {file for file in knowing if file.startswith(("processor/runtime", "processor/kafka"))}
    assert in_runtime == {"processor/runtime/worker/assembly.py"}
    assert len(knowing) <= 6, knowing
