"""The rows of the covering array, and the plug-ins that they use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.array.features import FACTORS
from tests.programs.array.pairs import Row, covering_array
from tests.programs.array.plug_ins import install


@pytest.fixture(scope="session")
def array_rows() -> list[Row]:
    """The rows."""
    return covering_array(FACTORS)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the plug-ins installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path
