"""One run: records, clients that claim them, workers that are killed, and the comparison at the end."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.endtoend.world import World
from tests.programs.claims.checks import Claim, broken_promises
from tests.programs.claims.claimant import client_name, key_name, rivals_of
from tests.programs.harness import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PATIENCE_S = 600.0
_LOOK_S = 0.2
_VERSIONS = "versions.json"


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    clients: int = 50
    """Clients, each with a connection of its own."""
    processes: int = 5
    """Processes among which the clients are divided."""
    keys: int = 2_000
    """Records to be claimed."""
    rivals: int = 3
    """Clients that claim each record."""
    workers: int = 2
    kills: int = 2
    """Workers that are killed while claims are made."""
    window: int = 50
    """Claims of one client that wait for their outcome."""

    def __str__(self) -> str:
        return (
            f"{self.keys * self.rivals:,} claims of {self.keys:,} keys by {self.clients} clients in {self.processes} "
            f"processes, {self.workers} workers, {self.kills} kills, seed {self.seed}"
        )


def run(plan: Plan, bootstrap: str, directory: Path, name: str, report: Callable[[str], None]) -> Verdict:
    """Run the plan.

    Raises:
        AssertionError: a process failed, or nothing happened for ten minutes.
    """
    report(str(plan))
    world = World(bootstrap, directory, name)
    try:
        for _ in range(plan.workers):
            world.start()
        world.publish([(key_name(n).encode(), {"id": key_name(n)}, {}) for n in range(plan.keys)])
        world.settle()
        report("published")
        begins = {(seen.key or b"").decode(): int(seen.headers["version"]) for seen in world.read("sow")}
        (directory / _VERSIONS).write_text(json.dumps(begins), "utf-8")
        seconds, killed, claims = _claim(plan, world, report)
        world.settle()
        last = {seen.key: seen for seen in world.read("sow")}
        records = {
            (seen.key or b"").decode(): (int(seen.headers["version"]), json.loads(seen.value or b"{}"))
            for seen in last.values()
        }
    finally:
        world.close()
    expected = {
        key_name(key): [client_name(n) for n in rivals_of(key, plan.clients, plan.rivals, plan.seed)]
        for key in range(plan.keys)
    }
    won = sum(claim.outcome == "won" for claim in claims)
    rate = len(claims) / seconds
    figures = [f"{len(claims):,} claims in {seconds:.1f} s, {rate:,.0f}/s, {won:,} won; {killed} workers killed"]
    wrong = broken_promises(expected, claims, records, begins)
    if killed < plan.kills:
        wrong.append(f"only {killed} of {plan.kills} workers were killed while claims were made: take more claims")
    return Verdict(wrong, figures)


def _claim(plan: Plan, world: World, report: Callable[[str], None]) -> tuple[float, int, list[Claim]]:
    """Have all claims made under kills; returns the seconds, the number of kills and the outcomes."""
    rng = random.Random(plan.seed)
    total = plan.keys * plan.rivals
    # Within the middle of the run, so that claims are waiting at each kill.
    moments = sorted(rng.uniform(0.1, 0.8) * total for _ in range(plan.kills))
    killed = 0
    with contextlib.ExitStack() as running:
        files = [world.directory / f"claims-{number}.jsonl" for number in range(plan.processes)]
        programs = [
            running.enter_context(_claimant(plan, world, file, range(number, plan.clients, plan.processes)))
            for number, file in enumerate(files)
        ]
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline().strip() == "ready"
        began_s = time.monotonic()
        for program in programs:
            assert program.stdin is not None
            print("go", file=program.stdin, flush=True)
        while any(program.poll() is None for program in programs):
            done = sum(file.read_bytes().count(b"\n") for file in files)
            if killed < len(moments) and done >= moments[killed]:
                alive = [worker for worker in world.workers if worker.process.poll() is None]
                rng.choice(alive).kill()
                world.start()
                killed += 1
                report(f"{done:,} of {total:,} claims; a worker killed, another started")
            assert time.monotonic() - began_s < _PATIENCE_S, f"{done:,} of {total:,} claims after {_PATIENCE_S:g} s"
            time.sleep(_LOOK_S)  # Between two looks; the number of outcomes decides.
        seconds = time.monotonic() - began_s
        assert not any(program.returncode for program in programs), "a process of clients failed"
        claims = [Claim(*json.loads(line)) for file in files for line in file.read_text("utf-8").splitlines()]
    return seconds, killed, claims


@contextlib.contextmanager
def _claimant(plan: Plan, world: World, file: Path, numbers: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    """Start a process of clients, which ends with the block."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.programs.claims.claimant", str(world.file), world.name, str(file),
         str(world.directory / _VERSIONS),
         f"--clients={','.join(map(str, numbers))}", f"--all-clients={plan.clients}", f"--keys={plan.keys}",
         f"--rivals={plan.rivals}", f"--seed={plan.seed}", f"--window={plan.window}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        yield program
    finally:
        program.kill()
        program.communicate()
