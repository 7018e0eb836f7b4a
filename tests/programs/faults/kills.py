"""Kills workers with SIGKILL: at every point between two commits, and at random moments."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.endtoend.crashing_worker import POINTS, die
from tests.programs.faults.load import Load, commands, publish
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from tests.endtoend.world import Worker, World

_KEYS = 2_000
_RECORDS_PER_S = 1_000
_RECORDS_MAX = 10_000_000  # More records than any scenario has time for.


def at_every_point(stage: Stage) -> None:
    """Kill a worker at every point, on the state of an earlier worker; a third one takes over."""
    world = stage.world()
    for number, point in enumerate(POINTS):
        count = stage.rng.randint(1, 3)
        stage.report(f"  {point}, the {count}. time")
        if point == "during restore":
            publish(world, commands(stage.seed + 1_000, 2_000, _KEYS))
            start_and_settle(world)
            world.forget_state()
        victim = world.start(crash=(point, count))
        with Load(world, commands(stage.seed + number, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
            if POINTS[point][3] is die:
                world.wait(lambda victim=victim: victim.process.poll() is not None, f"dying {point}")
                # From the injected error, not from another one.
                assert victim.process.returncode == -signal.SIGKILL, victim.log()
                world.start()
            else:
                world.wait(lambda victim=victim: "injected" in victim.log(), f"a calamity {point}")
            load.stop()
        world.settle()
        stop_all(world)
        stage.check(world)


def at_random(stage: Stage) -> None:
    """Run two workers under load, and kill and restart one of them at random moments."""
    kills = 3 if stage.is_short else 30
    world = stage.world()
    workers = [world.start(), world.start()]
    world.wait(lambda: any(is_ready(worker) for worker in workers), "a worker starting")
    with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
        for number in range(kills):
            time.sleep(stage.rng.uniform(0.1, 4))  # The seed decides at which moment of their work.
            place = stage.rng.randrange(len(workers))
            stage.report(f"  kill {number + 1} of {kills}: worker {place}, {load.published:,} records are published")
            kill(workers[place])
            workers[place] = world.start()
        load.stop()
    world.settle()
    stop_all(world)
    stage.check(world)


def all_at_once(stage: Stage) -> None:
    """Kill three workers at once, two of them on directories of their own, and start them again."""
    turns = 1 if stage.is_short else 5
    world = stage.world()
    with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
        for turn in range(turns):
            workers = [world.start(), *(world.start(state_dir=world.directory / f"state-{n}") for n in range(2))]
            world.wait(lambda workers=workers: any(map(is_ready, workers)), "a worker starting")
            time.sleep(stage.rng.uniform(0, 4))  # The seed decides at which moment of their work.
            stage.report(f"  turn {turn + 1} of {turns}: {load.published:,} records are published")
            kill(*workers)
        load.stop()
    world.start()
    world.settle()
    stop_all(world)
    stage.check(world)


def kill(*workers: Worker) -> None:
    """Kill workers at once, as a power cut would; raises an error if one of them had already ended."""
    for worker in workers:
        code = worker.process.poll()
        assert code is None, f"exit code {code} before it was killed:\n{worker.log()}"
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.kill()


def is_ready(worker: Worker) -> bool:
    """Return whether a worker has been assigned a partition."""
    return '"event": "restored"' in worker.file.read_text(errors="replace")


def start_and_settle(world: World) -> None:
    """Run a worker without a bug until all input is processed."""
    world.start()
    world.settle()
    stop_all(world)


def stop_all(world: World) -> None:
    """Stop the workers in good order; a worker that cannot stop is an error."""
    for worker in world.workers:
        if worker.process.poll() is None:
            code = worker.stop()
            assert code == 0, f"exit code {code}:\n{worker.log()}"


SCENARIOS = [
    Scenario(
        "kill-points",
        f"kill -9, abort or lost commit at each of {len(POINTS)} points between two commits, under load",
        400,
        at_every_point,
    ),
    Scenario("kill-random", "kill -9 30 times of one of two workers at random moments, under load", 300, at_random),
    Scenario("kill-all", "kill -9 of all three workers at once, 5 times, under load", 200, all_at_once),
]
