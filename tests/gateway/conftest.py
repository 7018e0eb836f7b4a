"""Topics for each test, in memory or on a real broker, gateways that end with it, and their page in a browser."""

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


@pytest.fixture(scope="module")
def browser():
    """A real Chromium."""
    from playwright.sync_api import sync_playwright

    from tests.gateway.browsing import CHROMIUM, PATIENCE_MS

    arguments = ["--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE_MS)
        yield opened
        opened.close()


@pytest.fixture
def world():
    """A gateway with the orders of the page's tests."""
    from tests.gateway.browsing import order
    from tests.gateway.memory import MemoryWorld

    made = MemoryWorld("orders", "quotes")
    made.gateway.call(lambda: [made.feeds["orders"].write(f"{key:04d}", order(key)) for key in range(200)])
    yield made
    made.close()


@pytest.fixture
def context(browser):
    """A browser's own storage, its zone and its size."""
    from tests.gateway.browsing import PATIENCE_MS

    opened = browser.new_context(
        viewport={"width": 1100, "height": 620}, bypass_csp=True, timezone_id="Europe/Zurich", accept_downloads=True
    )
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.close()


@pytest.fixture
def page(context, world):
    """The page with the orders of its world, live."""
    from tests.gateway.browsing import go

    opened = context.new_page()
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    go(opened, world, "topic=orders")
    yield opened
    assert not faults
