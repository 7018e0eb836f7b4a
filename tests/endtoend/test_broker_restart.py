"""Tests a broker that is away for longer than a worker's session: the worker recovers, and no record is lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from processor.trial.broker import EmbeddedBroker
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import World, random_commands

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.broker


@pytest.mark.long
def test_a_worker_outlives_a_broker_that_is_away_for_longer_than_its_session(tmp_path: Path, unique: str) -> None:
    """The broker stops in the middle of a backlog, and restarts with its port and data."""
    with EmbeddedBroker(data_dir=tmp_path / "broker") as broker:
        bootstrap, port = broker.bootstrap, int(broker.bootstrap.rpartition(":")[2])
        world = World(bootstrap, tmp_path, unique)
        world.publish(random_commands(91, 20_000, 100))
        worker = world.start()
        world.wait(lambda: '"event": "restored"' in worker.log(), "the worker starting")
    time.sleep(6)  # The session is 3 s: its end is the fact waited for, and nobody is there to tell it.
    with EmbeddedBroker(data_dir=tmp_path / "broker", port=port):
        world.publish(random_commands(92, 1_000, 100))
        world.settle()
        check(world)
        assert worker.stop() == 0, worker.log()
        world.close()
