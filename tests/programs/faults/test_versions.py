"""An older version and this one share a group and state directories; `--only two-versions` of the suite does more."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.programs.faults.scenario import Stage
from tests.programs.faults.versions import OLD_COMMIT, has_old_commit, in_one_group, install

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not has_old_commit(), reason=f"this checkout has no history with {OLD_COMMIT}"),
]


def test_an_installed_version_is_the_one_that_runs(tmp_path: Path) -> None:
    """A process that starts in the directory of an installed version imports that version."""
    installed = install(OLD_COMMIT, tmp_path)
    program = "import processor.cli.main; print(processor.__file__)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=installed, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(installed / "processor" / "__init__.py")


@pytest.mark.broker
@pytest.mark.timeout(600)
def test_workers_of_two_versions_lose_and_double_nothing(bootstrap: str, tmp_path: Path) -> None:
    """Workers of two versions in one group, one after the other replaced by the other version, lose no record."""
    with Stage(17, tmp_path, print, bootstrap, is_short=True) as stage:
        in_one_group(stage)
        assert stage.records > 1_000
