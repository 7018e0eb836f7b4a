"""Fixtures for the subscription tests: an installed distribution with a third party's filter functions."""

import sys

import pytest

MODULE = """
class Clock:
    now = 0

def picky(value):
    if value == 13:
        raise OSError("unlucky")
    return value

def tick():
    return Clock.now

tick.moves_by_itself = True
"""


@pytest.fixture
def functions(monkeypatch, tmp_path):
    """Install PICKY(value), which raises for 13 or else returns the value, and TICK(), which returns `Clock.now`."""
    info = tmp_path / "picky-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: picky\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sowstream.functions]\npicky = picky_functions:picky\ntick = picky_functions:tick\n"
    )
    (tmp_path / "picky_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import picky_functions

    yield picky_functions
    sys.modules.pop("picky_functions", None)
