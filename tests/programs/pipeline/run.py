"""One run: a feed through the whole pipeline under kills and moves of the merge, and the audit at its end."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple

from tests.programs.faults.examine import Complaints
from tests.programs.faults.open_transactions import open_transactions
from tests.programs.pipeline.evidence import gather
from tests.programs.pipeline.feed import Feed
from tests.programs.pipeline.layout import GROUPS, PATIENCE_S, TOGETHER, Layout
from tests.programs.pipeline.moves import Moves
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
