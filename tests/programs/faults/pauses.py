"""Workers that are stopped for longer than every time limit, and then resumed."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.programs.faults.kills import is_ready, stop_all
from tests.programs.faults.load import Load, commands
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from tests.endtoend.world import Worker, World

_KEYS = 2_000
_RECORDS_PER_S = 2_000
_POLL_LIMIT_S = 6


def pause(stage: Stage) -> None:
    """Stop a worker in the middle of its work; another one takes over and finishes; then the first one resumes."""
    world = stage.world(
        kafka={"max.poll.interval.ms": str(_POLL_LIMIT_S * 1000)}, runtime={"transaction_timeout_s": _POLL_LIMIT_S / 3}
    )
    zombie = world.start(state_dir=world.directory / "state-a")
    world.wait(lambda: is_ready(zombie), "the first worker starting")
    for turn in range(1 if stage.is_short else 4):
        with Load(world, commands(stage.seed + turn, 6_000, _KEYS), _RECORDS_PER_S):
            time.sleep(stage.rng.uniform(0.2, 2))  # The seed decides at which moment of its work.
            zombie.process.send_signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            successor = world.start(state_dir=world.directory / f"state-{turn}")
        try:
            world.settle()  # The stopped worker's session and transaction have expired.
            stage.report(
                f"  turn {turn + 1}: finished by the other {time.monotonic() - stopped_s:.1f} s after the stop"
            )
            before = _counts(world)
            while time.monotonic() - stopped_s < _POLL_LIMIT_S + 1:
                time.sleep(0.1)  # Until its poll limit has expired too.
            rejoins = _rejoins(zombie)
        finally:
            zombie.process.send_signal(signal.SIGCONT)
        world.wait(lambda rejoins=rejoins: _rejoins(zombie) > rejoins, "the zombie coming back to the group")
        after = _counts(world)
        assert after == before, f"the zombie committed something: {before} became {after}"
        stage.check(world)
        # It works like any other worker again.
        assert successor.stop() == 0, successor.log()
        with Load(world, commands(stage.seed + 100 + turn, 1_000, _KEYS), _RECORDS_PER_S):
            pass
        world.settle()
    stop_all(world)
    stage.check(world)


def _counts(world: World) -> dict[str, int]:
    """The number of committed records of each topic."""
    return {role: len(world.read(role)) for role in ("publish", "sow", "delta", "dlq")}


def _rejoins(worker: Worker) -> int:
    """How often a worker was assigned partitions."""
    return worker.file.read_text(errors="replace").count('"event": "assigned"')


SCENARIOS = [
    Scenario(
        "pause",
        "SIGSTOP of a worker at work for longer than session and poll limit, another finishes, SIGCONT; 4 times",
        200,
        pause,
    ),
]
