"""One run: a feed, workers that conflate it, perhaps under kills, a reader; and the account of the evidence."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import psutil

from processor.kafka.admin.admin import Admin
from tests.endtoend.world import World
from tests.programs.conflated.account import Bounds, add_up
from tests.programs.conflated.arrivals import Arrivals
from tests.programs.conflated.evidence import Place
from tests.programs.faults.kills import is_ready, kill, stop_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.endtoend.world import Worker
    from tests.programs.conflated.account import Account

LATENESS_P99_MS = 150.0
WARM_UP_S = 20.0
"""Time for which a broker that has just started is slow; deliveries in it are checked, except for their delays."""
TAKEOVER_MS = 10_000.0
"""Largest delay after a kill: a worker's session is 3 s here, its open transaction may last 5 s, and then follow a
rebalance, a restore, and the backlog.
"""


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    seconds: float
    rate: float = 20_000
    keys: int = 5_000
    interval_ms: int = 500
    workers: int = 1
    kill_every_s: float | None = None
    """Time between two kills of the workers in turn, each started again at once; None: no kills."""
    is_merged: bool = False
    """Whether the feed sends commands, from which a merge worker makes the underlying topic."""
    bounds: Bounds | None = None
    """Limits of the delays; None: those promised for such a run."""
    crash: tuple[str, int] | None = None
    """A crash point of `crashing_worker` for each worker, and the number of the pass at which it crashes."""

    @property
    def is_harmed(self) -> bool:
        """Return whether workers are killed or crash."""
        return self.kill_every_s is not None or self.crash is not None

    @property
    def promised(self) -> Bounds:
        """The limits of the delays."""
        if self.bounds is not None:
            return self.bounds
        if self.is_harmed:
            return Bounds(max_ms=TAKEOVER_MS)
        return Bounds() if self.is_merged else Bounds(p99_ms=LATENESS_P99_MS)

    def __str__(self) -> str:
        harm = "" if self.kill_every_s is None else f", kill -9 every {self.kill_every_s:g} s"
        harm += "" if self.crash is None else f", {self.crash[0]}"
        through = ", through a merge worker" if self.is_merged else ""
        return (
            f"{self.seconds:g} s of {self.rate:,.0f} updates/s over {self.keys:,} keys at {self.interval_ms} ms, "
            f"{self.workers} worker{'s' * (self.workers > 1)}{harm}{through}, seed {self.seed}"
        )


class Outcome(NamedTuple):
    """The result of a run."""

    account: Account
    kills: int
    effort: str
    """The shares of a processor that each process used."""

    @property
    def wrong(self) -> list[str]:
        """The promises that were broken; none if all is well."""
        return self.account.complaints.lines()

    def __str__(self) -> str:
        return "\n".join([f"{self.account}; {self.kills} kills", self.effort, *self.wrong])


def run(plan: Plan, bootstrap: str, directory: Path, name: str, report: Callable[[str], None]) -> Outcome:
    """Run the plan; the outcome lists the broken promises.

    Raises:
        AssertionError: a process ended by itself, or a condition never held.
    """
    report(str(plan))
    # The default for measured delays; a short interval where workers die, so that their disks hold recent state.
    write_back_s = 0.5 if plan.is_harmed else 10.0
    new_world = World(
        bootstrap,
        directory,
        name,
        interval=f"{plan.interval_ms}ms",
        runtime={"internal": {"write_back_interval_s": write_back_s}},
    )
    with contextlib.closing(new_world) as world:
        copies = [f"{world.conflated}.{role}" for role in ("sow", "delta")]
        if plan.is_merged:
            world.start()
        workers = [world.start("conflate", world.conflated, crash=plan.crash) for _ in range(plan.workers)]
        world.wait(lambda: all(map(is_ready, world.workers)), "every worker having partitions")
        partitions = world.config.topics[name].partitions
        with Arrivals(bootstrap, copies, partitions) as arrivals:
            with _feed(plan, world) as feed:
                watch = _Watch(world)
                kills = _harm(plan, world, workers, feed, report)
                output = feed.communicate()[0]
                assert feed.returncode == 0, "the feed failed"
                sent = json.loads(output)
                effort = watch.summary(sent["cpu_s"])
            world.wait(lambda: world.processed(world.conflated, f"{name}.sow"), "delivering everything")
            stop_all(world)
            world.wait(lambda: _all_came(world, arrivals, copies, partitions), "the reader reading everything")
        report(f"sent {sent['sent']:,}, at most {sent['behind_s'] * 1000:,.0f} ms behind the rate; adding up")
        is_disturbed = kills > 0 or plan.crash is not None
        places = [
            Place(bootstrap, name, world.conflated, number, arrivals.of(copies, number), is_disturbed)
            for number in range(partitions)
        ]
        warm_up_s = 0 if plan.is_harmed else min(WARM_UP_S, plan.seconds / 2)
        account = add_up(places, plan.interval_ms, warm_up_s, report)
        account.close(plan.promised)
        was_met = kills > 0 or any("injected" in worker.log() for worker in world.workers)
        assert plan.crash is None or was_met, "the calamity did not happen"
        return Outcome(account, kills, effort)


@contextlib.contextmanager
def _feed(plan: Plan, world: World) -> Iterator[subprocess.Popen[bytes]]:
    """Start the feed, which ends with the block."""
    topic = f"{world.name}.{'publish' if plan.is_merged else 'sow'}"
    options = {"rate": plan.rate, "keys": plan.keys, "seconds": plan.seconds, "seed": plan.seed}
    words = [f"--{name}={value}" for name, value in options.items()] + ["--commands"] * plan.is_merged
    feed = subprocess.Popen(
        [sys.executable, "-m", "tests.programs.conflated.feed", world.bootstrap, topic, *words], stdout=subprocess.PIPE
    )
    try:
        yield feed
    finally:
        feed.kill()
        feed.wait()


def _harm(
    plan: Plan, world: World, workers: list[Worker], feed: subprocess.Popen[bytes], report: Callable[[str], None]
) -> int:
    """Kill the workers in turn while the feed runs; returns the number of kills."""
    if plan.crash is not None:
        return _succeed(world, workers, feed)
    kills, rng = 0, random.Random(plan.seed)
    while True:
        # The seed decides at which moment of their work.
        wait_s = None if plan.kill_every_s is None else plan.kill_every_s + rng.uniform(-0.5, 0.5)
        with contextlib.suppress(subprocess.TimeoutExpired):
            feed.wait(wait_s)
            return kills
        place = kills % len(workers)
        kill(workers[place])
        workers[place] = world.start("conflate", world.conflated)
        kills += 1
        report(f"  kill {kills}: worker {place}")


def _succeed(world: World, workers: list[Worker], feed: subprocess.Popen[bytes]) -> int:
    """Start a successor for each worker that ends while the feed runs; returns their number."""
    ended = 0
    while feed.poll() is None:
        for place, worker in enumerate(workers):
            if worker.is_expected_to_end and worker.process.poll() is not None:
                workers[place] = world.start("conflate", world.conflated)
                ended += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            feed.wait(0.1)
    return ended


def _all_came(world: World, arrivals: Arrivals, topics: list[str], partitions: int) -> bool:
    admin = Admin(world.config.kafka)
    ends = {
        (topic, number): end for topic in topics for number, end in admin.end_offsets(topic, range(partitions)).items()
    }
    return all(arrivals.ends.get(place, 0) == end for place, end in ends.items())


class _Watch:
    """Measures the processor use of the processes while the feed runs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._began = self._now()

    def summary(self, feed_cpu_s: float) -> str:
        """The use in parts of one processor, without the workers if some of them were killed."""
        spent = [after - before for before, after in zip(self._began, self._now(), strict=True)]
        seconds, idle_s, workers_s, harness_s = spent
        cores = psutil.cpu_count() or 1
        parts = {"feed": feed_cpu_s, "reader": harness_s}
        if not any(worker.is_expected_to_end for worker in self._world.workers):
            parts["workers"] = workers_s
        return f"of {cores} processors {1 - idle_s / cores / seconds:.0%} busy; of one: " + ", ".join(
            f"{name} {used_s / seconds:.0%}" for name, used_s in parts.items()
        )

    def _now(self) -> tuple[float, float, float, float]:
        alive = [worker.process.pid for worker in self._world.workers if not worker.is_expected_to_end]
        used = [psutil.Process(pid).cpu_times() for pid in alive]
        workers_s = sum(one.user + one.system for one in used)
        return time.monotonic(), psutil.cpu_times().idle, workers_s, time.process_time()
