"""One run: lives of a few keys, kills of what merges them, and the check of both topics."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from processor.kafka.admin.admin import Admin
from tests.endtoend.world import World
from tests.programs.harness import Verdict
from tests.programs.lives.checks import lives_of, repeated_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PARTITIONS = 4
_BATCH = 2_000
_LOOK_S = 0.2
_PATIENCE_S = 1_800.0


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    lives: int = 100_000
    """Lives to begin."""
    keys: int = 500
    """Keys that live again and again."""
    kills: int = 6
    """Workers, or processes of Spark, that are killed."""
    engine: Literal["worker", "spark"] = "worker"
    """The merge: workers, or a stream on Spark."""
    guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """Of the workers."""

    def __str__(self) -> str:
        return (
            f"{self.lives:,} lives of {self.keys} keys, {self.engine}, {self.guarantee}, {self.kills} kills, "
            f"seed {self.seed}"
        )


def commands(plan: Plan) -> Iterator[tuple[bytes | None, Any, dict[str, str]]]:
    """Begin lives, and update and end them; a third end by the clock, soon after their last command or before it."""
    rng = random.Random(plan.seed)
    live: set[int] = set()
    begun = 0
    while begun < plan.lives:
        key = rng.randrange(plan.keys)
        if key not in live:
            begun += 1
            live.add(key)
            ends = rng.random() < 0.33
            headers = {"expiration": rng.choice(["0.001", "0.05", "0.3"])} if ends else {}
            yield b"%d" % key, {"id": key, "life": begun}, headers
            if ends:  # The next command meets a record, or none any more.
                live.discard(key)
        elif rng.random() < 0.5:
            yield b"%d" % key, {"n": rng.randrange(10)}, {}
        else:
            live.discard(key)
            yield b"%d" % key, None, {}


def run(plan: Plan, bootstrap: str, directory: Path, name: str, report: Callable[[str], None]) -> Verdict:
    """Run the plan.

    Raises:
        AssertionError: a process failed, or nothing happened for half an hour.
    """
    report(str(plan))
    is_spark = plan.engine == "spark"
    may_repeat = is_spark or plan.guarantee == "at_least_once"
    world = World(bootstrap, directory, name, source_header=may_repeat, more={"guarantee": plan.guarantee})
    began_s = time.monotonic()
    try:
        killed = _merge(plan, world, report)
        sow, deltas = world.read("sow"), world.read("delta")
    finally:
        world.close()
    allowed = {"may_repeat": may_repeat, "may_expire_in_vain": plan.guarantee == "at_least_once"}
    wrong = [f"{role}: {line}" for role, records in (("sow", sow), ("delta", deltas))
             for line in repeated_versions(records, **allowed)]  # fmt: skip
    lives, expired = lives_of(deltas)
    figures = (
        f"{lives:,} lives, {expired:,} of them expired, {len(deltas):,} versions in "
        f"{time.monotonic() - began_s:.0f} s; {killed} kills"
    )
    if killed < plan.kills:
        wrong.append(f"only {killed} of {plan.kills} kills happened: take more lives")
    return Verdict(wrong, [figures])


def _merge(plan: Plan, world: World, report: Callable[[str], None]) -> int:
    """Publish all commands while they are merged under kills; returns the number of kills."""
    rng = random.Random(f"{plan.seed} kills")
    engine = _Spark(world) if plan.engine == "spark" else _Workers(world, rng)
    admin, batch, killed, sent = Admin(world.config.kafka), [], 0, 0
    moments = sorted(rng.uniform(0.05, 0.9) for _ in range(plan.kills))
    try:
        engine.start()
        for number, command in enumerate(commands(plan)):
            batch.append(command)
            if len(batch) < _BATCH:
                continue
            world.publish(batch)
            batch, sent = [], number + 1
            # In step with the merge: what expires does so between the commands, and not behind them.
            engine.wait(lambda sent=sent: _written(admin, world) > sent // 8, "the merge follows")
            if killed < len(moments) and number > moments[killed] * 3 * plan.lives * 0.75:
                engine.kill()
                engine.start()
                killed += 1
                report(f"{number:,} commands; killed and started again")
        world.publish([*batch, (b"last", {"id": "last"}, {})])
        engine.wait(lambda: _is_last_merged(world), "the last command is merged")
    finally:
        engine.close()
    return killed


def _written(admin: Admin, world: World) -> int:
    return sum(admin.end_offsets(f"{world.name}.delta", range(_PARTITIONS)).values())


def _is_last_merged(world: World) -> bool:
    return any(record.key == b"last" for record in world.read("sow"))


class _Workers:
    """Two workers."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng

    def start(self) -> None:
        """Have two workers again."""
        while sum(worker.process.poll() is None for worker in self._world.workers) < 2:
            self._world.start()

    def kill(self) -> None:
        """Kill one of them."""
        self._rng.choice([worker for worker in self._world.workers if worker.process.poll() is None]).kill()

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        """Wait for a fact."""
        self._world.wait(reached, what)

    def close(self) -> None:
        """Do nothing: the world ends them."""


class _Spark:
    """A streaming merge in a process of its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    def start(self) -> None:
        """Start it, in the checkpoint of the one before."""
        from tests.spark.test_merge_stream_killed import Job

        self._job = Job(self._world, cores=2, offsets=20_000)

    def kill(self) -> None:
        """Kill Python and the JVM."""
        self._job.kill()

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        """Wait for a fact."""
        until_s = time.monotonic() + _PATIENCE_S
        while not reached():
            assert time.monotonic() < until_s, (
                f"{what} did not happen\n{self._job.log.read_text(errors='replace')[-3000:]}"
            )
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """End it."""
        self._job.kill()
