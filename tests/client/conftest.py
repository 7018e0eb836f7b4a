"""A family of topics of its own, and a client, for each test that asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from processor.client import Client
from tests.client.family import Family


@pytest.fixture
def family(bootstrap: str, unique: str) -> Family:
    """Topics of one test's own."""
    return Family(bootstrap, unique)


@pytest.fixture
def client(family: Family) -> Iterator[Client]:
    """A client of them, closed at the end."""
    with Client("test", family.config) as made:
        yield made
