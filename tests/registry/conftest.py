"""A real registry for the tests of this folder."""

import pytest


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """The address of a real registry."""
    from tests.registry.apicurio import running

    with running(tmp_path_factory.mktemp("registry")) as url:
        yield url
