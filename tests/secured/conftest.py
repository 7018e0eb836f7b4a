"""A secured broker, and an estate of topics for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.secured.estate import Estate
from tests.secured.secured_broker import SecuredBroker, secured_broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker that denies by default."""
    with (
        pytest.MonkeyPatch.context() as patch,
        secured_broker(tmp_path_factory.mktemp("secured"), patch) as running,
    ):
        yield running


@pytest.fixture
def mechanism() -> str:
    """The listener; tests of several have it as a parameter."""
    return "SCRAM"


@pytest.fixture
def estate(broker: SecuredBroker, mechanism, tmp_path: Path, unique: str) -> Iterator[Estate]:
    """The topics of a test, without rights to them."""
    made = Estate(broker, mechanism, tmp_path, unique)
    yield made
    made.close()
