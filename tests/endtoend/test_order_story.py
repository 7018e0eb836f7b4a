"""Tests the order story of subscribe.md: three client processes, a worker, a broker, and the example of the docs."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from processor.client.examples.order_story import SERVICES
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

EXAMPLE = "processor.client.examples.order_story"
NEW = {"id": 1, "customer": "c1", "item": "bolt", "qty": 5, "state": "new"}


class Service:
    """One process of the story, and the messages that it printed."""

    def __init__(self, world: World, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", EXAMPLE, name, "--topic", world.name, "--config", str(world.file)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def next(self) -> dict[str, Any]:
        """Return the next message that it prints."""
        return self._lines.get(timeout=PATIENCE_S)

    def rest(self) -> list[dict[str, Any]]:
        """Interrupt the process as Ctrl-C does; returns the rest of its output."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 0
        self._thread.join(PATIENCE_S)
        return list(self._lines.queue)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._thread.join(PATIENCE_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.put(json.loads(line))


@pytest.fixture
def services(world: World) -> Iterator[dict[str, Service]]:
    """Start all three; each has received an empty snapshot."""
    started = {name: Service(world, name) for name in SERVICES}
    try:
        for service in started.values():
            assert [service.next()["command"], service.next()["command"]] == ["group_begin", "group_end"]
        yield started
    finally:
        for service in started.values():
            service.close()


def test_three_services_work_on_one_order(world: World, services: dict[str, Service]) -> None:
    """Stock and credit get the order, then an oof once one of them answers; fulfilment gets it as a full record."""
    world.start()
    with Client("shop", world.config) as shop:
        shop.publish(world.name, NEW)
        shop.flush(PATIENCE_S)
        told = {name: [services[name].next(), services[name].next()] for name in ("inventory", "credit")}
        ready, gone = services["fulfilment"].next(), services["fulfilment"].next()
    for name, (order, leaves) in told.items():
        assert (order["command"], order["data"]) == ("publish", NEW), name
        assert (leaves["command"], leaves["reason"]) == ("oof", "match"), name
        # The first answer, whosever it was, took it from both.
        assert ("inventory" in leaves["data"]) is not ("credit" in leaves["data"]), name
    whole = NEW | {"inventory": "5 of bolt set aside", "credit": "c1 is good for it"}
    assert (ready["command"], ready["data"], ready.get("delta")) == ("publish", whole, None)
    assert (gone["command"], gone["reason"], gone["data"]) == ("oof", "match", whole | {"state": "sent"})
    assert {name: service.rest() for name, service in services.items()} == {name: [] for name in services}
