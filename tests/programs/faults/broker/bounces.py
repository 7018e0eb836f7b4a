"""Brokers that go away and come back while workers commit: killed or stopped, alone or one of three."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from tests.programs.faults.broker.broker import AtFault, Broker
from tests.programs.faults.broker.cluster import Cluster
from tests.programs.faults.broker.crew import Crew
from tests.programs.faults.load import Load, commands
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEYS = 20_000
_RECORDS_MAX = 150_000
_RECORDS_PER_S = 1_000


def bounce(stage: Stage, end: Callable[[Broker], None], broker: Broker | None = None) -> None:
    """End the only broker under load and start it again after a while, several times."""
    broker = broker or stage.keep(Broker(stage.directory / "broker"))
    world = stage.world(bootstrap=broker.bootstrap)
    with Crew(world, 2) as crew:
        with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
            crew.await_event("restored")
            for _ in range(1 if stage.is_short else 5):
                time.sleep(stage.rng.uniform(1, 4))  # The seed decides at which moment of their work.
                end(broker)
                if not stage.is_short:
                    # The workers' session timeout is 3 s: some sessions expire, others do not.
                    time.sleep(stage.rng.uniform(0, 4))
                broker.start()
            load.stop()
        with blaming(broker):
            crew.settle()
        stage.report(f"  rolled back {crew.count('transaction rolled back')} times, ended {len(crew.reasons)} times")
    with blaming(broker):
        stage.check(world)


@contextlib.contextmanager
def blaming(broker: Broker) -> Iterator[None]:
    """Blame the broker for an error that it caused itself.

    Raises:
        AtFault: there is an error, and the broker had left a transaction open.
    """
    try:
        yield
    except AssertionError as error:
        if (words := broker.skipped_markers) is not None:
            raise AtFault(words) from error
        raise


def kill_all_while_away(stage: Stage) -> None:
    """Kill the broker, then the workers; start the workers while no broker runs, then the broker."""
    broker = stage.keep(Broker(stage.directory / "broker"))
    world = stage.world(bootstrap=broker.bootstrap)
    with Crew(world, 2) as crew:
        with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
            crew.await_event("restored")
            for _ in range(3):
                time.sleep(stage.rng.uniform(1, 4))  # The seed decides at which moment of their work.
                broker.kill()
                time.sleep(stage.rng.uniform(0, 1))
                crew.kill()
                crew.revive()
                time.sleep(stage.rng.uniform(0, 2))
                broker.start()
            load.stop()
        with blaming(broker):
            crew.settle()
    with blaming(broker):
        stage.check(world)


def lose_one_of_three(stage: Stage) -> None:
    """Kill the group's coordinator, the transactions' coordinator and a SOW leader, one after the other."""
    cluster = stage.keep(Cluster(stage.directory))
    world = stage.world(bootstrap=cluster.bootstrap)
    group = f"{world.config.application_id}.{world.name}"
    roles: dict[str, Callable[[], int]] = {
        "the group's coordinator": lambda: cluster.group_coordinator(group),
        "a transaction coordinator": lambda: cluster.transaction_coordinator(f"{world.config.application_id}."),
        "the leader of SOW partition 0": lambda: cluster.leader(f"{world.name}.sow", 0),
        "the next coordinator of the group": lambda: cluster.group_coordinator(group),
    }
    with Crew(world, 2) as crew:
        with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S / 2) as load:
            crew.await_event("restored")
            for role, find in roles.items():
                time.sleep(stage.rng.uniform(1, 3))  # The seed decides at which moment of their work.
                node = find()
                stage.report(f"  {role} is broker {node}: killed")
                cluster.brokers[node].kill()
                time.sleep(stage.rng.uniform(4, 8))  # The other brokers take over, and work continues without it.
                cluster.brokers[node].start()
                cluster.await_in_sync()
            load.stop()
        crew.settle()
        stage.report(f"  rolled back {crew.count('transaction rolled back')} times, ended {len(crew.reasons)} times")
    stage.check(world)


SCENARIOS = [
    Scenario(
        "broker-kill",
        "kill -9 the only broker during commits, 5 times, back after 0 to 4 s",
        300,
        lambda stage: bounce(stage, Broker.kill),
    ),
    Scenario(
        "broker-stop",
        "stop the only broker in good order, 5 times, back after 0 to 4 s",
        300,
        lambda stage: bounce(stage, Broker.stop),
    ),
    Scenario(
        "all-killed",
        "kill -9 the broker and then both workers, which start again before it does, 3 times",
        300,
        kill_all_while_away,
    ),
    Scenario(
        "three-brokers",
        "of three brokers kill -9 the group's coordinator, a transaction coordinator, a SOW leader, the next one",
        400,
        lose_one_of_three,
    ),
]
