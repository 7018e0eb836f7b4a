"""The fixtures of several tests of plug-ins."""

from __future__ import annotations

import pytest

from tests.builtin.delta_merge.both_ways import BothWays


@pytest.fixture
def ways(monkeypatch) -> BothWays:
    """The compiled merge and the one in Python, of a topic of default settings."""
    return BothWays(monkeypatch)
