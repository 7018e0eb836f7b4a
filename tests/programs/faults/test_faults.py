"""Short runs of the fault suite; `make program NAME=faults` runs all of it."""

from __future__ import annotations

import signal
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from processor.kafka.clients.transactional_producer import TransactionalProducer
from tests.endtoend.world import Worker
from tests.programs.faults import broken_worker
from tests.programs.faults.__main__ import choose, main
from tests.programs.faults.broken_worker import BUGS
from tests.programs.faults.bugs import find
from tests.programs.faults.kills import is_ready, kill, stop_all
from tests.programs.faults.load import Load, commands
from tests.programs.faults.registry import SCENARIOS, missing
from tests.programs.faults.scenario import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.endtoend.world import World


_SEED = 17
_SESSION_S = 3


@pytest.fixture
def stage(bootstrap: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage on the tests' broker."""
    with Stage(_SEED, tmp_path, print, bootstrap) as instance:
        yield instance


@pytest.mark.long
@pytest.mark.broker
def test_three_kills_and_a_pause_lose_nothing_and_double_nothing(stage: Stage) -> None:
    """Three kills and a pause of two workers with directories of their own lose and double no record."""
    world = stage.world()
    workers = [world.start(state_dir=world.directory / f"state-{place}") for place in range(2)]
    world.wait(lambda: any(map(is_ready, workers)), "a worker starting")
    with Load(world, commands(_SEED, 1_000_000, 1_000), 1_000) as load:
        for turn in range(3):
            time.sleep(stage.rng.uniform(0.1, 1))  # The seed decides at which moment of their work.
            kill(workers[turn % 2])
            workers[turn % 2] = world.start(state_dir=world.directory / f"state-{turn % 2}")
        world.wait(lambda: is_ready(workers[0]) or is_ready(workers[1]), "a worker starting")
        workers[0].process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(_SESSION_S + 1)  # Its session expires; no process can be asked whether it has.
        finally:
            workers[0].process.send_signal(signal.SIGCONT)
        load.stop()
    world.settle()
    stop_all(world)
    figures = stage.check(world)
    assert figures.inputs > 1_000


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("bug", ["apply-before-commit", "merge-a-record-twice"])
def test_a_bug_in_a_worker_is_found(stage: Stage, bug: str) -> None:
    """The checker finds a worker that applies before it commits, and one that merges a record twice."""
    find(stage, bug, BUGS[bug][1])


def test_the_commit_without_offsets_is_called_as_the_thread_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker without offset commits accepts the thread's arguments, so that it does not fail by its own call."""
    committed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(broken_worker, "arm", lambda *_: None)
    begun = lambda _, *arguments, **more: committed.append((*arguments, more))  # noqa: E731 - a method's stand-in
    monkeypatch.setattr(TransactionalProducer, "begin_commit", begun)
    BUGS["offsets-not-in-transaction"][0]()
    TransactionalProducer.begin_commit(cast("Any", None), "orders.publish", {0: 7}, "metadata", limit_s=None)
    assert committed == [("orders.publish", {}, "metadata", {"limit_s": None})]


def test_a_worker_that_ended_before_it_was_killed_is_reported(tmp_path: Path) -> None:
    """Killing a worker that has already ended is an error: otherwise a crash could pass for a kill."""
    place = cast("World", SimpleNamespace(directory=tmp_path, workers=[], file=tmp_path / "none"))
    worker = Worker(place, "worker", [], ["tests.programs.faults.no_such_module"], {})
    worker.process.wait()
    with pytest.raises(AssertionError, match="exit code 1 before it was killed"):
        kill(worker)


def test_scenarios_have_different_names_and_a_limit() -> None:
    """Scenarios have different names, which `--only` takes, a row in the README's table, and a time limit."""
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert missing(SCENARIOS) == [], "make program NAME=faults ARGS=--readme"
    assert all(scenario.what and scenario.limit_s > 0 for scenario in SCENARIOS)


@pytest.mark.parametrize(
    "words", [["--only", "kil-all"], ["--only", "kill", "--only", "stats"], ["--readme", "--short"]]
)
def test_a_run_that_would_prove_nothing_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that matches no scenario is refused, and so is writing a short run's outcome into the README."""
    monkeypatch.setattr(sys, "argv", ["faults", *words, "--list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_a_scenario_that_takes_an_hour_runs_only_where_it_is_named() -> None:
    """The fault suite omits the scenario that takes an hour; its name or a part of it selects it; `--list` shows it."""
    assert "forty-kills" not in {one.name for one in choose([])}
    assert [one.name for one in choose(["forty"])] == ["forty-kills"]
    assert choose([], with_extra=True) == SCENARIOS
