"""Topics for each test, in memory or on a real broker, and gateways that end with it."""

from __future__ import annotations

import importlib.util

import pytest

from tests.endtoend.world import World

collect_ignore_glob = [] if importlib.util.find_spec("uvicorn") else ["test_*.py"]


@pytest.fixture
def memory_world():
    """A gateway of one topic in memory, without tokens."""
    from tests.gateway.memory import MemoryWorld

    made = MemoryWorld()
    yield made
    made.close()


@pytest.fixture
def guarded(tmp_path):
    """A gateway with tokens and rights: bob sees and publishes desk x without its field secret, ann all."""
    from tests.gateway.memory import Guarded

    made = Guarded(tmp_path)
    yield made
    made.world.close()


@pytest.fixture
def kafka_world(bootstrap, tmp_path, unique):
    """A family of topics on a real broker."""
    made = World(bootstrap, tmp_path, unique)
    yield made
    made.close()


@pytest.fixture
def writer(kafka_world):
    """Writes the SOW topic on Kafka."""
    from tests.gateway.running import SowWriter

    return SowWriter(kafka_world)


@pytest.fixture
def start(kafka_world):
    """Starts gateways of the topics on Kafka."""
    from tests.gateway.running import RunningGateway

    started = []

    def start_one(**settings):
        gateway = RunningGateway(kafka_world.config, **settings)
        started.append(gateway)
        return gateway

    yield start_one
    for gateway in started:
        if gateway._thread.is_alive():
            gateway.stop()
