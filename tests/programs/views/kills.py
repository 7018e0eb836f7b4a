"""Views on a real broker while processes are killed, disks wiped, partitions moved, and the broker is killed too."""

from __future__ import annotations

import contextlib
import random
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.endtoend.views_world import ViewsWorld
from tests.endtoend.world import Worker
from tests.programs.faults.broker.bounces import blaming
from tests.programs.faults.broker.broker import Broker

_ACTIONS = ("keep", "wipe", "third", "broker", "both")


class Kills:
    """Two processes with every stage of five views, a worker, a conflater, and orders that keep coming."""

    def __init__(self, world: ViewsWorld, broker: Broker | None, seed: int, say: Callable[[str], None]) -> None:
        """Create it; `broker` is one that may be killed; None: none may."""
        self._world, self._broker, self._say = world, broker, say
        self._seed, self._rng = seed, random.Random(seed)
        self._places = [world.directory / "one", world.directory / "two"]
        self._viewers: list[Worker] = []

    def run(self, count: int) -> list[str]:
        """Kill so many times; return what is wrong at the end."""
        world = self._world
        world.start()
        world.start("conflate", world.copy)
        self._viewers = [self._viewer(place) for place in self._places]
        actions = [action for action in _ACTIONS if self._broker is not None or action not in {"broker", "both"}]
        for number in range(count):
            world.orders(self._seed + number, self._rng.randint(50, 400))
            # Every kind in turn, and none of them always in the same place.
            action = actions[(number + self._seed) % len(actions)]
            self._kill(action)
            world.orders(self._seed - number - 1, self._rng.randint(1, 50))
            if number % 5 == 4:
                self._settle()
            self._say(f"kill {number + 1} of {count}: {action}")
        self._settle()
        violations = [(name, world.law(name)) for name in world.config.views]
        return [f"{name}: {violation}" for name, violation in violations if violation]

    def _kill(self, action: str) -> None:
        """Kill a process, the broker, or the broker and then a process."""
        if action in {"broker", "both"}:
            assert self._broker is not None
            self._broker.kill()
            time.sleep(self._rng.uniform(0, 2))  # The seed decides how long the broker is away.
        if action == "broker":
            assert self._broker is not None
            self._broker.start()
            return
        dead = self._rng.randrange(2)
        self._viewers[dead].kill()
        if action in {"wipe", "both"}:
            shutil.rmtree(self._places[dead], ignore_errors=True)
        if action == "both":
            assert self._broker is not None
            self._broker.start()
        third = self._viewer(self._world.directory / "three") if action == "third" else None
        self._viewers[dead] = self._viewer(self._places[dead])
        if third is not None:
            third.is_expected_to_end = True
            third.stop()

    def _settle(self) -> None:
        self._world.settle()
        self._world.wait(self._world.settled(), "the views following")

    def _viewer(self, state_dir: Path) -> Worker:
        return self._world.start("view", list(self._world.config.views), state_dir=state_dir)


def kills(bootstrap: str | None, directory: Path, count: int, seed: int, say: Callable[[str], None]) -> int:
    """Kill so many times while orders come; returns 1 if the views differ from their definitions at the end.

    Each stage of a view runs in two processes. By turns one of them is killed and restarted, loses its disk, is joined
    by a third, so that partitions move; or the broker is killed, alone or with a process whose disk is lost.

    Args:
        bootstrap: a Kafka that runs, which is not killed; None: an own one, which is.
        directory: for states, logs and the broker.
        count: the number of kills.
        seed: decides all that is random.
        say: prints a line.
    """
    say(f"seed {seed}: {count} kills")
    with contextlib.ExitStack() as cleanup:
        broker = None
        if bootstrap is None:
            broker = cleanup.enter_context(Broker(directory / "broker"))
            cleanup.enter_context(blaming(broker))
        address = bootstrap if broker is None else broker.bootstrap
        assert address is not None
        world = ViewsWorld(address, directory, f"v{secrets.token_hex(3)}")
        cleanup.callback(world.close)
        wrong = Kills(world, broker, seed, say).run(count)
    say("\n".join(wrong) or f"{count} kills: views equal their definitions, versions without gaps")
    return 1 if wrong else 0
