"""A group that rebalances all the time."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.programs.faults.kills import is_ready, stop_all
from tests.programs.faults.load import Load, commands
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from tests.endtoend.world import Worker

_KEYS = 2_000
_RECORDS_PER_S = 800
_RECORDS_MAX = 10_000_000
_WORKERS_MAX = 4


def join_and_leave(stage: Stage) -> None:
    """Every second, start a worker or stop one that has run for long; one worker always stays."""
    turns = 8 if stage.is_short else 60
    world = stage.world()
    stays = world.start()
    world.wait(lambda: is_ready(stays), "the first worker starting")
    here: list[Worker] = []
    gone: list[Worker] = []
    with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
        for turn in range(turns):
            began_s = time.monotonic()
            if len(here) + 1 < _WORKERS_MAX and (not here or stage.rng.random() < 0.5):
                own = world.directory / f"state-{turn}" if stage.rng.random() < 0.5 else None
                here.append(world.start(state_dir=own))
            else:
                leaver = here.pop(0)
                leaver.is_expected_to_end = True
                leaver.process.terminate()
                gone.append(leaver)
            if turn % 10 == 9:
                stage.report(f"  turn {turn + 1} of {turns}: {1 + len(here)} workers, {load.published:,} records")
            time.sleep(max(0.0, 1 - (time.monotonic() - began_s)))
        load.stop()
    for worker in gone:
        code = worker.process.wait(timeout=60)
        # A worker stopped before it handled signals has neither processed nor logged anything.
        assert code == 0 or (code == -signal.SIGTERM and not worker.log()), f"exit code {code}:\n{worker.log()}"
    world.settle()
    stop_all(world)
    stage.check(world)


SCENARIOS = [
    Scenario("join-leave", "a worker joins or leaves every second for a minute, under load", 200, join_and_leave),
]
