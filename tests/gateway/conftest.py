"""A world of topics for each test, and gateways that end with it."""

from __future__ import annotations

import importlib.util

import pytest

from tests.endtoend.world import World

collect_ignore_glob = [] if importlib.util.find_spec("uvicorn") else ["test_*.py"]


@pytest.fixture
def world(bootstrap, tmp_path, unique):
    """A family of topics on a real broker."""
    made = World(bootstrap, tmp_path, unique)
    yield made
    made.close()


@pytest.fixture
def writer(world):
    """Writes the SOW topic of the world."""
    from tests.gateway.running import SowWriter

    return SowWriter(world)


@pytest.fixture
def start(world):
    """Starts gateways of the world's topics."""
    from tests.gateway.running import RunningGateway

    started = []

    def start_one(**settings):
        gateway = RunningGateway(world.config, **settings)
        started.append(gateway)
        return gateway

    yield start_one
    for gateway in started:
        if gateway._thread.is_alive():
            gateway.stop()
