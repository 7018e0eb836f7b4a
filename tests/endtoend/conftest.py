"""Gives each test a world of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create a family of topics, on which the test starts workers."""
    made = World(bootstrap, tmp_path, unique)
    yield made
    made.close()
