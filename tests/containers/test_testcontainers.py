"""A worker runs against Kafka in a container with the settings of docker-compose.yml."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from processor.trial.broker.server import is_ready
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import World, random_commands

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

SERVICE = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text(encoding="utf-8"))["services"][
    "kafka"
]
READY_S = 120.0


def filled_in(text: str, **variables: object) -> str:
    """A text with each `${NAME:-default}` replaced by the variable or its default."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: str(variables.get(match[1], match[2])), text)


@pytest.fixture(scope="session")
def kafka_image() -> str:
    """The image to run, local or pulled: SOWSTREAM_TEST_KAFKA_IMAGE, or the compose file's."""
    import docker

    image = os.environ.get("SOWSTREAM_TEST_KAFKA_IMAGE") or filled_in(SERVICE["image"])
    client = docker.from_env()
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        try:
            client.images.pull(image)
        except docker.errors.DockerException as error:
            pytest.skip(f"image {image} is not here and cannot be pulled: {error}")
    finally:
        client.close()
    return image


@pytest.fixture(scope="session")
def container_bootstrap(kafka_image: str) -> Iterator[str]:
    """The address of a broker in a container, which is removed with its volumes after the tests."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    testcontainers_config.ryuk_disabled = True  # The reaper is one more image to pull; this fixture cleans up itself.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    container = DockerContainer(kafka_image).with_kwargs(hostname=SERVICE["hostname"])
    for name, value in SERVICE["environment"].items():
        container.with_env(name, filled_in(value, KAFKA_PORT=port))
    # The tests' workers have shorter session timeouts than a broker allows by default.
    container.with_env("KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS", "1000")
    container.ports["9092/tcp"] = ("127.0.0.1", port)
    with container:
        deadline_s = time.monotonic() + READY_S
        while not is_ready(f"127.0.0.1:{port}"):
            assert time.monotonic() < deadline_s, container.get_logs()
            time.sleep(0.2)  # Between two polls of the condition.
        yield f"localhost:{port}"


def test_worker_merges_on_a_broker_in_a_container(container_bootstrap: str, tmp_path: Path, unique: str) -> None:
    """A worker merges exactly once on the compose file's broker: SOW, delta and input agree."""
    world = World(container_bootstrap, tmp_path, unique)
    try:
        world.publish(random_commands(71, 2_000, 100))
        world.start()
        world.settle()
        check(world)
    finally:
        world.close()
