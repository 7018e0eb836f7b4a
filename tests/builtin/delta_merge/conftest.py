"""The fixtures of several tests of plug-ins."""

from __future__ import annotations

import pytest

from tests.builtin.delta_merge.both_ways import BothWays


@pytest.fixture
def ways() -> BothWays:
    """The compiled fold and the merge in parts, of a topic of default settings."""
    return BothWays()
