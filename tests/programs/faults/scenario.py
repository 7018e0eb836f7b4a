"""A scenario of the fault suite, and the stage on which it runs."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from processor.trial.broker import EmbeddedBroker
from tests.endtoend.world import World
from tests.programs.faults import histories
from tests.programs.faults.checker import check

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from tests.programs.faults.checker import Evidence, Figures, Guarantee

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault, or one kind of faults: `--only NAME`."""

    name: str
    """A word or two with hyphens, such as `kill-random`."""
    what: str
    """One line for the table: the fault, its target, and how often it occurs."""
    limit_s: float
    """Longest allowed duration; a longer run is a failure."""
    run: Callable[[Stage], None]
    is_extra: bool = False
    """Whether it runs only if `--only` names it: it takes as long as many others."""


class TooSlow(AssertionError):
    """A scenario took longer than its limit."""


@dataclass
class Stage:
    """The environment of a scenario: a broker, an empty directory, a seed; it counts the runs and records.

    ```python
    def run(stage: Stage) -> None:
        world = stage.world()          # closed by the stage
        ...
        stage.check(world)             # raises Discrepancy; counts the run and its records
    ```
    """

    seed: int
    directory: Path
    report: Callable[[str], None]
    shared_bootstrap: str | None = None
    """The bootstrap of a running broker; None: an embedded one, started on first use."""
    histories: Path | None = None
    """The directory for the records of each run with the checker's verdict; None: they are not kept."""
    is_short: bool = False
    """Whether `make test` runs the scenario, with fewer repetitions."""
    runs: int = 0
    """Number of runs accounted for."""
    rng: random.Random = field(init=False)
    began_s: float = field(init=False, default_factory=time.monotonic)
    _cleanup: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)
    _made: int = field(init=False, default=0)
    _inputs: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cleanup.close()

    @property
    def bootstrap(self) -> str:
        """The broker shared by the scenarios that do not harm it."""
        if self.shared_bootstrap is None:
            self.shared_bootstrap = self.keep(EmbeddedBroker()).bootstrap
        return self.shared_bootstrap

    def keep(self, thing: contextlib.AbstractContextManager[_T]) -> _T:
        """Enter a context that ends with the stage, after the worlds created later."""
        return self._cleanup.enter_context(thing)

    def world(self, *, bootstrap: str | None = None, **settings: Any) -> World:
        """Create a family of topics whose outputs have the header `source`; `settings` are those of `World`."""
        self._made += 1
        name = f"faults{self.rng.getrandbits(32):08x}"
        directory = self.directory / f"{self._made}"
        directory.mkdir(parents=True)
        world = World(bootstrap or self.bootstrap, directory, name, **{"source_header": True, **settings})
        self._cleanup.callback(world.close)
        return world

    def check(self, world: World, *, guarantee: Guarantee = "exactly_once") -> Figures:
        """Account for every record of a run.

        Raises:
            Discrepancy: the outputs differ from the expected ones.
        """
        figures = check(world, guarantee=guarantee, keep=partial(self._keep_history, guarantee=guarantee))
        self.runs += 1
        self._inputs[world.name] = figures.inputs
        self.report(f"  {figures}")
        return figures

    def _keep_history(self, evidence: Evidence, figures: Figures, wrong: list[str], *, guarantee: Guarantee) -> None:
        if self.histories is None:
            return
        self.histories.mkdir(parents=True, exist_ok=True)
        file = self.histories / f"{self.runs + 1}-{evidence.name}.jsonl.xz"
        histories.write(file, evidence, seed=self.seed, guarantee=guarantee, figures=str(figures), wrong=wrong)
        self.report(f"  its history is {file}")

    @property
    def records(self) -> int:
        """Number of input records accounted for, each counted once."""
        return sum(self._inputs.values())

    def count(self, world: World, records: int) -> None:
        """Count a run whose outputs were meant to be wrong."""
        self.runs += 1
        self._inputs[world.name] = records

    @property
    def elapsed_s(self) -> float:
        """Time since the scenario began."""
        return time.monotonic() - self.began_s
