"""Workers of an older version and of this checkout in one group, on directories that they take over from each other.

The older version is the commit that SOWSTREAM_OLD_COMMIT names; without it, the oldest one whose formats are promised.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.programs.faults.kills import is_ready, kill, stop_all
from tests.programs.faults.load import Load, commands
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from tests.endtoend.world import Worker, World

OLD_COMMIT: Final = os.environ.get("SOWSTREAM_OLD_COMMIT", "02f200ad")
"""The older version."""
_ROOT: Final = Path(__file__).parents[3]
_KEYS: Final = 2_000
_RECORDS_PER_S: Final = 200
_RECORDS_MAX: Final = 10_000_000
_PLACES: Final = 2
"""Number of workers, each with a state directory of its own."""


def has_old_commit() -> bool:
    """Return True if the older version is in this checkout's history."""
    command = ["git", "cat-file", "-e", f"{OLD_COMMIT}^{{commit}}"]
    return (_ROOT / ".git").exists() and subprocess.run(command, cwd=_ROOT, check=False).returncode == 0


def install(commit: str, directory: Path) -> Path:
    """Install a commit into a directory, compiled as a wheel is, with the packages of this environment."""
    source, target = directory / "source", directory / "installed"
    source.mkdir(parents=True)
    with subprocess.Popen(["git", "archive", commit], cwd=_ROOT, stdout=subprocess.PIPE) as git:
        assert git.stdout is not None
        with tarfile.open(fileobj=git.stdout, mode="r|") as archive:
            archive.extractall(source, filter="data")
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    subprocess.run([sys.executable, *pip, "--target", str(target), str(source)], check=True)
    return target


def in_one_group(stage: Stage) -> None:
    """Roll workers from the older version to this one and back under load, and then in the other order."""
    old = install(OLD_COMMIT, stage.directory / "old")
    for order in ((old, None), (None, old)):
        _roll(stage, order, turns=2 if stage.is_short else 8)


def _roll(stage: Stage, order: tuple[Path | None, Path | None], turns: int) -> None:
    """Begin with workers of the first version, and end and replace one after the other by the version that it is not.

    Every other worker is killed; the others are stopped as in a rollout.
    """
    world = stage.world()
    first, second = order
    versions = [first] * _PLACES
    workers = [_start(world, place, first) for place in range(_PLACES)]
    world.wait(lambda: all(map(is_ready, workers)), "both workers starting")
    with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
        for turn in range(turns):
            place = turn % _PLACES
            time.sleep(stage.rng.uniform(0.1, 3))  # The seed decides at which moment of their work.
            is_killed = stage.rng.random() < 0.5
            versions[place] = second if versions[place] is first else first
            names = ["this" if version is None else "old" for version in versions]
            ending = "killed" if is_killed else "stopped"
            stage.report(f"  turn {turn + 1} of {turns}: worker {place} {ending}; then {', '.join(names)}")
            if is_killed:
                kill(workers[place])
            else:
                assert workers[place].stop() == 0, workers[place].log()
            workers[place] = worker = _start(world, place, versions[place])
            world.wait(lambda worker=worker: is_ready(worker), "a worker of the other version starting")
        load.stop()
    world.settle()
    stop_all(world)
    stage.check(world)


def _start(world: World, place: int, installed: Path | None) -> Worker:
    return world.start(state_dir=world.directory / f"state-{place}", installed=installed)


SCENARIOS = [
    Scenario(
        "two-versions",
        "workers of an older version and of this one in one group, on each other's directories, half of them killed, "
        "8 times; in both orders; only if asked for",
        900,
        in_one_group,
        is_extra=True,
    )
]
