"""Short runs of the broker scenarios of the fault suite; `make program NAME=faults` runs them at full length."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from processor.trial.broker.server import HOST, free_port, is_ready
from tests.programs.faults.broker.bounces import bounce
from tests.programs.faults.broker.broker import AtFault, Broker
from tests.programs.faults.broker.fault import Api
from tests.programs.faults.broker.network import HARMS, harm_requests
from tests.programs.faults.scenario import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker

_SEED = 5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that the scenarios may kill."""
    with Broker(tmp_path_factory.mktemp("faults") / "broker") as instance:
        yield instance


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage for short scenarios."""
    with Stage(_SEED, tmp_path, print, is_short=True) as instance:
        yield instance


@pytest.mark.long
def test_a_broker_starts_though_the_port_of_its_controller_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that another process takes between its choice and its use costs a second start, not the test."""
    with socket.create_server((HOST, 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr("processor.trial.broker.server.free_port", lambda: next(ports))
        with Broker(tmp_path / "broker") as broker:
            assert is_ready(f"{HOST}:{broker.port}", timeout_s=120)


@pytest.mark.long
def test_a_commit_whose_answer_is_lost_counts_once(stage: Stage, broker: Broker) -> None:
    """A commit counts once if Kafka has committed but its answer is lost, so that the worker repeats the request."""
    harm_requests(stage, Api.END_TXN, HARMS["reset-after"], broker)


@pytest.mark.long
def test_a_commit_that_arrives_late_ends_no_later_transaction(stage: Stage, broker: Broker) -> None:
    """A late commit, whose request the worker has repeated, does not end the next transaction (KAFKA-17754)."""
    harm_requests(stage, Api.END_TXN, HARMS["late"], broker)


@pytest.mark.long
def test_a_broker_that_is_killed_under_load_loses_and_doubles_nothing(stage: Stage, broker: Broker) -> None:
    """A broker that is killed with SIGKILL while workers commit keeps its data: no record is lost or doubled."""
    try:
        bounce(stage, Broker.kill, broker)
    except AtFault as error:
        pytest.skip(f"Kafka itself failed: {error}")
