"""Input is deleted before it was processed: its partition is held, and no record behind the gap is merged."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from processor.kafka.admin.admin import Admin
from tests.programs.faults.kills import is_ready, start_and_settle
from tests.programs.faults.load import commands, publish
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from tests.endtoend.world import Worker, World

_KEYS = 500
_REMEDY = "nothing is skipped silently"


def input_gone(stage: Stage) -> None:
    """Delete input between two workers, then under a worker that is stopped."""
    world = stage.world()
    publish(world, commands(stage.seed, 2_000, _KEYS))
    start_and_settle(world)
    stage.check(world)
    publish(world, commands(stage.seed + 1, 2_000, _KEYS))
    lows = _delete(world)
    _check_refusal(world, world.start(), lows)

    world = stage.world()
    worker = world.start()
    world.wait(lambda: is_ready(worker), "the worker starting")
    worker.process.send_signal(signal.SIGSTOP)
    try:
        publish(world, commands(stage.seed, 2_000, _KEYS))
        lows = _delete(world)
    finally:
        worker.process.send_signal(signal.SIGCONT)
    _check_refusal(world, worker, lows)


def _delete(world: World) -> dict[int, int]:
    """Delete all but the last records of every partition, as retention would; returns the oldest offsets left."""
    topic = f"{world.name}.publish"
    ends = Admin(world.config.kafka).end_offsets(topic, range(4))
    lows = {partition: end - 5 for partition, end in ends.items()}
    places = [TopicPartition(topic, partition, low) for partition, low in lows.items()]
    # The client drops answers when it is closed.
    admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 3})
    for future in admin.delete_records(places).values():
        future.result()
    return lows


def _check_refusal(world: World, worker: Worker, lows: dict[int, int]) -> None:
    """Check that the worker holds every partition, gives the remedy, stops, and merged nothing after the gap."""
    world.wait(lambda: _held(worker) == set(lows), "every partition being held")
    assert _REMEDY in worker.log(), worker.log()
    code = worker.stop()
    assert code == 0, f"exit code {code}:\n{worker.log()}"
    merged = [record.headers["source"] for record in world.read("sow")]
    behind = [source for source in merged if int(source.split("/")[2]) >= lows[int(source.split("/")[1])]]
    assert not behind, f"{len(behind)} records behind the hole were merged, such as {behind[0]}"


def _held(worker: Worker) -> set[int]:
    """The partitions that the worker reports as held for this reason."""
    lines = [json.loads(line) for line in worker.log().splitlines() if '"partition held"' in line]
    return {line["partition"] for line in lines if line["reason"] == "input_gone"}


SCENARIOS = [
    Scenario(
        "input-gone",
        "records are deleted before they were processed, between two workers and under a stopped one: held",
        100,
        input_gone,
    ),
]
