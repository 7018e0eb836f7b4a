"""The final report: every check with its counts, then the figures of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from processor.tools.demo.display.formatting import milliseconds, ratio, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from processor.tools.demo.check import CheckResult
    from processor.tools.demo.display.picture import Picture


def report_findings(console: Console, findings: Sequence[CheckResult]) -> bool:
    """Print every check; returns whether all hold."""
    for finding in findings:
        mark = Text("FAIL ", style="bold red") if finding.wrong else Text("  ok ", style="green")
        console.print(mark + Text(finding.fact), soft_wrap=True)
        for line in finding.wrong:
            console.print(Text(f"       {line}", style="red"), soft_wrap=True)
    right = sum(not finding.wrong for finding in findings)
    console.print(f"{right} of {len(findings)} checks hold.")
    return right == len(findings)


def report_numbers(console: Console, picture: Picture, latencies_ms: Sequence[float | None], ran_s: float) -> None:
    """Print the figures of the run."""
    merged = sum(topic.merged for topic in picture.merged)
    rejected = sum(topic.rejected for topic in picture.merged)
    rows = [("ran", f"{ran_s:.0f} s, {merged:,} records merged, {rejected:,} rejected")]
    rows += [
        (
            topic.name,
            f"{size(topic.sow_bytes)} of records as {size(topic.delta_bytes)} of deltas: {topic.saved:.0%} saved",
        )
        for topic in picture.merged
    ]
    for topic in picture.conflated:
        rows.append((topic.name, f"{topic.taken:,} updates in, {topic.delivered:,} out: {ratio(topic.ratio)}"))
        rows.append(("", f"late by {_spread(topic.late_ms)}"))
    rows.append(("latency", _spread(latencies_ms)))
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(name, style="bold"), text)
    console.print(grid)


def _spread(quantiles_ms: Sequence[float | None]) -> str:
    """Median, 99th percentile and highest in words."""
    p50, p99, highest = (milliseconds(each) for each in quantiles_ms)
    return f"p50 {p50}, p99 {p99}, highest {highest}"
