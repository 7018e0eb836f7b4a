"""One run: a feed through the whole pipeline under kills and moves of the merge, and the audit at its end."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.kafka.admin.admin import Admin
from tests.programs.faults.examine import Complaints
from tests.programs.faults.open_transactions import open_transactions
from tests.programs.pipeline.evidence import gather
from tests.programs.pipeline.feed import Feed
from tests.programs.pipeline.job_process import Program
from tests.programs.pipeline.layout import GROUPS, PARTITIONS, PATIENCE_S, TOGETHER, Layout
from tests.programs.pipeline.stage import Stage
from tests.programs.pipeline.trouble_checks import ALL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.programs.pipeline.checks import Check
    from tests.programs.pipeline.evidence import Evidence


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    seconds: float = 60
    """Duration of the feed at its full rate; it trickles on while kills and moves are left."""
    rate: float = 2_000
    """Rows a second."""
    keys: int = 50_000
    kills: int = 10
    """The number of kills of jobs: driver, JVM or both."""
    worker_kills: int = 3
    moves: int = 3
    """How many times the merge moves to Spark and back."""
    together: bool = False
    """Whether all jobs run in one process and one Spark session."""
    patience: float = PATIENCE_S
    """Longest wait for any one event, in seconds."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:g} s of {self.rate:,.0f} rows/s over {self.keys:,} keys, {self.kills} kills of jobs, "
            f"{self.worker_kills} of workers, {self.moves} moves to Spark and back, seed {self.seed}"
        )


class Finding(NamedTuple):
    """The result of one check."""

    check: Check
    figures: str
    wrong: list[str]


class Outcome(NamedTuple):
    """The result of a run."""

    findings: list[Finding]
    open_transactions: list[str]
    kills: list[str]
    deaths: list[str]
    """The deaths of commands that move the merge."""
    rows: int
    seconds: float

    @property
    def wrong(self) -> list[str]:
        """The broken promises; none if all is well."""
        return self.open_transactions + [
            f"{finding.check.name}: {line}" for finding in self.findings for line in finding.wrong
        ]

    def __str__(self) -> str:
        lines = ["| check | promise | figures | result |", "|---|---|---|---|"]
        for check, figures, wrong in self.findings:
            lines.append(f"| {check.name} | {check.promise} | {figures} | {'FAILED' if wrong else 'ok'} |")
        lines.append(f"{self.rows:,} rows in {self.seconds:.0f} s; killed: {', '.join(self.kills) or 'none'}")
        if self.deaths:
            lines.append(f"died: {', '.join(self.deaths)}")
        return "\n".join(lines + self.wrong)


def run(plan: Plan, bootstrap: str, directory: Path, name: str, report: Callable[[str], None]) -> Outcome:
    """Run the plan; the outcome has the broken promises.

    Raises:
        AssertionError: a process ended by itself, left others behind, or a condition never held.
    """
    report(str(plan))
    began_s, rng = time.monotonic(), random.Random(plan.seed)
    groups = TOGETHER if plan.together else GROUPS
    rows_max = round(plan.seconds * plan.rate)
    with Layout(bootstrap, directory, f"_{name}", plan.patience) as layout, Stage(layout, report, groups) as stage:
        with Feed(layout, seed=plan.seed, keys=plan.keys, rate=plan.rate, rows_max=rows_max) as feed:
            stage.await_start()
            report("all jobs and workers work")
            feed.begin_notes()
            stage.refuse_second_driver()
            stage.kill(feed, rng, jobs=plan.kills, workers=plan.worker_kills, seconds=plan.seconds)
            moves = Moves(stage, feed, plan.moves)
            moves.run()
            stage.wait(lambda: feed.has_sent_all, "sending everything", feed)
            stage.await_work(feed)
        report(f"{feed.sent:,} rows are sent; draining")
        stage.drain()
        report("auditing")
        left_open = open_transactions(layout.world)
        evidence = gather(layout, feed.ledger, may_repeat=plan.moves > 0)
    findings = audit(evidence)
    return Outcome(findings, left_open, stage.kills, moves.deaths, feed.sent, time.monotonic() - began_s)


def audit(evidence: Evidence) -> list[Finding]:
    """Run all checks."""
    findings = []
    for check in ALL:
        complaints = Complaints()
        figures = check.run(evidence, complaints)
        findings.append(Finding(check, figures, complaints.lines()))
    return findings


STEPS: Final = {
    "takeover": ("check", "claim", "drain", "fence", "begin", "verify"),
    "handback": ("check", "claim", "wait", "drain", "return", "verify"),
}
"""The steps of each command."""
_MORE: Final = 200


class Moves:
    """Takes the merge over and hands it back, a number of times."""

    def __init__(self, stage: Stage, feed: Feed, count: int) -> None:
        """Set up.

        Args:
            stage: the running pipeline.
            feed: sends input meanwhile.
            count: how many times to move to Spark and back; the steps are divided among them.
        """
        self.deaths: list[str] = []
        """The command and the step of each death."""
        self._stage, self._feed, self._count = stage, feed, count
        self._admin = Admin(stage.layout.world.config.kafka)

    def run(self) -> None:
        """Move to Spark and back; the merge on Spark is killed once each time."""
        for turn in range(self._count):
            self._stage.report(f"  move {turn + 1} of {self._count}; {self._feed.sent:,} rows are sent")
            self._move("takeover", turn)
            with self._merging() as merge:
                self._await_more(merge)
                merge.kill("both")
            with self._merging() as merge:
                self._await_more(merge)
                self._move("handback", turn)
                # It finds the fence, and ends by itself.
                merge.await_success()
            self._await_more()

    def _move(self, command: str, turn: int) -> None:
        """Run a command once for each of its steps in this turn, at which it dies, and then to its end."""
        for step in STEPS[command][turn :: self._count]:
            program = self._program(command, step)
            try:
                code = program.await_end()
            finally:
                program.close()
            assert code == -signal.SIGKILL, f"{command} did not die at {step}, but ended with {code}:\n{program.text}"
            self.deaths.append(f"{command} at {step}")
            self._stage.report(f"    {command} has died at {step}")
        program = self._program(command)
        try:
            program.await_success()
        finally:
            program.close()
        self._stage.report(f"    {command} is done")

    def _program(self, command: str, step: str | None = None) -> Program:
        layout = self._stage.layout
        module = ["spark_integration.cli"] if step is None else ["tests.programs.pipeline.dying_command", step]
        arguments = [command, layout.orders, "-c", str(layout.file)]
        return Program([*module, *arguments], layout.directory / f"{command}.log", layout.patience_s)

    @contextmanager
    def _merging(self) -> Iterator[Program]:
        program = self._program("merge")
        try:
            yield program
        finally:
            program.close()

    def _await_more(self, merge: Program | None = None) -> None:
        """Wait until more updates are merged."""
        wanted = self._count_sow() + _MORE

        def has_more() -> bool:
            if merge is not None:
                merge.refuse_end()
            return self._count_sow() >= wanted

        self._stage.wait(has_more, "merging more updates", self._feed)

    def _count_sow(self) -> int:
        ends = self._admin.end_offsets(self._stage.layout.topic("sow"), range(PARTITIONS))
        return sum(ends.values())
