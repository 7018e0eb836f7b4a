"""A third-party package on the import path, as if it were installed."""

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosting.packages import EXAMPLE, install


@pytest.fixture
def example_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example plug-in, importable, with the entry points of its own project file."""
    site = tmp_path / "site-packages"
    shutil.copytree(EXAMPLE / "example_plugin", site / "example_plugin")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(site, "example_plugin", project["entry-points"]["sowstream.processors"])
    monkeypatch.syspath_prepend(site)
    yield site
    for module in [name for name in sys.modules if name.partition(".")[0] == "example_plugin"]:
        del sys.modules[module]
