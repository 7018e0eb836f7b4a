import os
from pathlib import Path

import pytest

from processor.tools.doctor.examine import Finding, check_state


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    """The findings by subject."""
    return {finding.subject: finding for finding in findings}


def test_a_missing_directory_is_well_where_it_can_be_made(tmp_path: Path):
    """A missing directory that a worker can create is fine; the doctor does not create it."""
    found = by_subject(check_state(tmp_path / "a" / "b"))
    assert found["state_dir"].level == "ok"
    assert "made when needed" in found["state_dir"].found
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_way_is_a_failure(tmp_path: Path):
    """A path through a file is a failure, with the flag that names another directory."""
    (tmp_path / "file").touch()
    (finding,) = check_state(tmp_path / "file" / "state")
    assert (finding.level, "--state-dir" in finding.to_do) == ("fail", True)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_directory_of_somebody_else_is_a_failure(tmp_path: Path):
    """A directory without write permission is a failure."""
    tmp_path.chmod(0o500)
    assert by_subject(check_state(tmp_path))["state_dir"].level == "fail"


def test_who_uses_it_is_told(tmp_path: Path):
    """Living worker processes are listed by the process ids in their slots; dead ones are not."""
    slots = tmp_path / "slots"
    slots.mkdir()
    (slots / "0").write_text(str(os.getpid()))
    (slots / "1").write_text("999999999")
    (slots / "2").write_text("")
    assert by_subject(check_state(tmp_path))["state in use"].found == f"by worker processes {os.getpid()}"
