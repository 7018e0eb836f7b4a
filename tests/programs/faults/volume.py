"""The runs of Kafka's own system tests: many records, few keys, and hard bounces in between."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from processor.kafka.admin.admin import Admin
from tests.programs.faults.kills import is_ready, kill, stop_all
from tests.programs.faults.load import Load, commands, publish
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from tests.endtoend.world import World

_RECORDS = 100_000
_KEYS = 20_000
_SMOKE_KEYS = 20
_SMOKE_RECORDS_PER_KEY = 1_000


def hundred_thousand(stage: Stage) -> None:
    """Repeat Kafka's transactions_test: a copier that is bounced hard three times, each after part of the records."""
    count, bounces = (5_000, 2) if stage.is_short else (_RECORDS, 3)
    world = stage.world()
    publish(world, commands(stage.seed, count, _KEYS))
    for bounce in range(bounces):
        worker = world.start()
        goal = count * (bounce + 1) // (bounces + 2)
        world.wait(lambda goal=goal: _sow_record_count(world) >= goal, f"merging {goal} records")
        stage.report(f"  bounce {bounce + 1} of {bounces} after {goal:,} records")
        kill(worker)
    world.start()
    world.settle()
    stop_all(world)
    stage.check(world)


def smoke(stage: Stage) -> None:
    """Repeat Kafka Streams' smoke test: 20 keys of 1,000 values in 90 s; after one is killed, two more follow."""
    seconds = 90
    world = stage.world()
    worker = world.start()
    world.wait(lambda: is_ready(worker), "the first worker starting")
    count = _SMOKE_KEYS * _SMOKE_RECORDS_PER_KEY
    with Load(world, commands(stage.seed, count, _SMOKE_KEYS), count / seconds) as load:
        for number in range(2):
            while not load.is_over and load.published < count * (number + 1) // 3:
                time.sleep(0.1)  # Between two polls; the observed count decides.
            stage.report(f"  instance {number + 1} is killed after {load.published:,} records")
            kill(worker)
            worker = world.start(state_dir=world.directory / f"state-{number}")
    world.settle()
    stop_all(world)
    stage.check(world)


def _sow_record_count(world: World) -> int:
    """The approximate number of records in SOW."""
    return sum(Admin(world.config.kafka).end_offsets(f"{world.name}.sow", range(4)).values())


SCENARIOS = [
    Scenario("volume", f"{_RECORDS:,} records over {_KEYS:,} keys at once, 3 hard bounces", 200, hundred_thousand),
    Scenario(
        "smoke",
        f"{_SMOKE_KEYS} keys, {_SMOKE_RECORDS_PER_KEY:,} records each over 90 s, an instance killed every 30 s",
        200,
        smoke,
    ),
]
