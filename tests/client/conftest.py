"""Fixtures: a topic family and a client for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from processor.client import Client
from tests.client.family import Family


@pytest.fixture
def family(bootstrap: str, unique: str) -> Family:
    """A topic family for one test."""
    return Family(bootstrap, unique)


@pytest.fixture
def client(family: Family) -> Iterator[Client]:
    """A client of the family, closed at the end."""
    with Client("test", family.config) as made:
        yield made
