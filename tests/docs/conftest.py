"""A topic family with its workers for each test that requests one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """A topic family, and the workers that a test starts on it."""
    world = World(bootstrap, tmp_path, unique)
    yield world
    world.close()
