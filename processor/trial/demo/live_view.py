"""The live display, redrawn four times a second on a terminal, a plain line elsewhere; and the final report."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from processor.trial.demo.settings import VIEW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from processor.trial.demo.check import CheckResult
    from processor.trial.demo.picture import ConflatedFigures, MergedFigures, Picture
    from processor.trial.demo.processes import TableFigures
    from processor.trial.demo.watcher import OrderStep


_BARS: Final = "▁▂▃▄▅▆▇█"


def milliseconds(value: float | None) -> str:
    """`23 ms`, `1.4 s`, or a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.1f} s"


def size(value_bytes: float) -> str:
    """`917 B`, `3.4 MB`."""
    for unit in ("B", "kB", "MB"):
        if value_bytes < 1000:
            return f"{value_bytes:.0f} {unit}" if unit == "B" else f"{value_bytes:.1f} {unit}"
        value_bytes /= 1000
    return f"{value_bytes:.1f} GB"


def ratio(value: float) -> str:
    """`58 : 1`."""
    return f"{value:.1f} : 1" if value < 10 else f"{value:.0f} : 1"


def curve(values: Sequence[float | None], width: int) -> str:
    """The last values as a row of bars from zero to the highest; a blank for None."""
    shown = values[-width:]
    highest = max((value for value in shown if value is not None), default=0.0)
    if highest <= 0:
        return "".join(" " if value is None else _BARS[0] for value in shown)
    return "".join(" " if value is None else _BARS[round(value / highest * (len(_BARS) - 1))] for value in shown)


_WIDTH_MIN: Final = 80
_WIDTH_MAX: Final = 120
_LINE_INTERVAL_S: Final = 3.0
_CURVE: Final = 24
_STEPS: Final = 4
_SHOWN_PAIRS: Final = ("EURUSD", "GBPUSD", "USDJPY")


class Moment(NamedTuple):
    """The state of the demo itself."""

    phase: str
    """The current phase, in a few words."""
    elapsed_s: float
    """Seconds since the feeds began."""
    workers: Sequence[tuple[str, bool]]
    """Each worker's name, and whether it runs."""


class LiveView:
    """A live screen on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if _draws(console) else None
        self._said_s = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line about an event."""
        self._console.print(Text(line), soft_wrap=True)

    def show(self, moment: Moment, picture: Picture, table: TableFigures | None = None) -> None:
        """Show the current state, with the table on Spark if there is one."""
        if self._live is not None:
            shown = screen(moment, picture, table, width=self._console.width)
            self._live.update(shown, refresh=True)
        elif time.monotonic() - self._said_s >= _LINE_INTERVAL_S:
            self._said_s = time.monotonic()
            self.say(line(moment, picture, table))


def _draws(console: Console) -> bool:
    """Return whether the console can redraw lines."""
    return console.is_terminal and not console.is_dumb_terminal


def line(moment: Moment, picture: Picture, table: TableFigures | None = None) -> str:
    """The most important figures in one line."""
    merged = " ".join(
        f"{topic.name} in {topic.in_per_s:.0f}/s out {topic.out_per_s:.0f}/s saved {topic.saved:.0%};"
        for topic in picture.merged
    )
    conflated = " ".join(
        f"{topic.name} in {topic.in_per_s:.0f}/s out {topic.out_per_s:.0f}/s {ratio(topic.ratio)};"
        for topic in picture.conflated
    )
    down = "".join(f" {name} is down;" for name, runs in moment.workers if not runs)
    latency = f"latency p50 {milliseconds(picture.p50_ms)} p99 {milliseconds(picture.p99_ms)}"
    down += "" if table is None else f" on Spark {table.rows} rows, batch {table.batch};"
    opened = f"{sum(picture.open_orders.values()):,} orders open"
    return (
        f"{moment.elapsed_s:4.0f} s {moment.phase}: {merged} {conflated} {opened}; {latency}; lag {picture.lag}{down}"
    )


def screen(
    moment: Moment, picture: Picture, table: TableFigures | None = None, *, width: int = _WIDTH_MIN
) -> RenderableType:
    """All figures, as wide as the terminal between 80 columns and 120."""
    width = max(_WIDTH_MIN, min(width, _WIDTH_MAX))
    below = Table.grid(expand=True)
    below.add_column(width=width // 2)
    below.add_column(width=width - width // 2)
    below.add_row(_latency(picture), _prices(picture.prices))
    all_of_it = Table.grid()
    all_of_it.add_column(width=width)
    for part in (_title(moment), _merged(picture.merged), _conflated(picture.conflated), below, _order(picture, width)):
        all_of_it.add_row(part)
    if table is not None:
        all_of_it.add_row(_spark(table))
    return all_of_it


def _title(moment: Moment) -> RenderableType:
    workers = Text(" ").join(
        Text(f"● {name}" if runs else f"○ {name}", style="green" if runs else "bold red")
        for name, runs in moment.workers
    )
    grid = Table.grid(expand=True)
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_row(Text.assemble(" ", ("sowstream demo", "bold"), f"  {moment.phase}"), Text.assemble(workers, " "))
    return grid


def _merged(topics: Sequence[MergedFigures]) -> RenderableType:
    table = _table("topic", "in/s", "out/s", "record", "delta", "saved", "rejected", "lag")
    for topic in topics:
        table.add_row(
            topic.name,
            f"{topic.in_per_s:,.0f}",
            f"{topic.out_per_s:,.0f}",
            f"{topic.sow_bytes / max(1, topic.merged):.0f} B",
            f"{topic.delta_bytes / max(1, topic.merged):.0f} B",
            Text(f"{topic.saved:.0%}", style="bold green"),
            f"{topic.rejected:,}",
            f"{topic.lag:,}",
        )
    return _panel("merged: full records and deltas out of whatever comes in", table)


def _conflated(topics: Sequence[ConflatedFigures]) -> RenderableType:
    table = _table("topic", "interval", "in/s", "out/s", "ratio", "late p50", "late p99", "highest")
    for topic in topics:
        table.add_row(
            topic.name,
            f"{topic.interval_s:g} s",
            f"{topic.in_per_s:,.0f}",
            f"{topic.out_per_s:,.0f}",
            Text(ratio(topic.ratio), style="bold green"),
            *map(milliseconds, topic.late_ms),
        )
    return _panel("conflated: each key at most once per interval", table)


def _spark(figures: TableFigures) -> RenderableType:
    """The table of orders that a job on Spark keeps."""
    table = _table("table", "rows", *figures.by_state, "batch", "took")
    table.add_row(
        "orders",
        Text(f"{figures.rows:,}", style="bold green"),
        *(f"{count:,}" for count in figures.by_state.values()),
        f"{figures.batch:,}",
        f"{figures.took_s:.1f} s",
    )
    return _panel("on Spark: the same orders as a table of Parquet", table)


def _latency(picture: Picture) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=10)
    grid.add_column(width=_CURVE)
    grid.add_row(Text(f"p50 {milliseconds(picture.p50_ms)}", style="bold green"), _curve(picture.latencies_ms, "green"))
    grid.add_row(f"p99 {milliseconds(picture.p99_ms)}", Text(f"last {_CURVE} s".rjust(_CURVE), style="dim"))
    grid.add_row(f"lag {picture.lag:,}", _curve(picture.lags, "yellow"))
    return _panel("published → seen by a subscriber", grid)


def _curve(values: Sequence[float | None], style: str) -> Text:
    return Text(curve(values, _CURVE).rjust(_CURVE), style=style)


def _prices(prices: Sequence[dict[str, Any]]) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column()
    for _ in range(3):
        grid.add_column(justify="right")
    by_pair = {price["pair"]: price for price in prices}
    for pair in _SHOWN_PAIRS:
        if (price := by_pair.get(pair)) is None:
            grid.add_row(pair, "-", "-", "-")
            continue
        digits = 3 if pair.endswith("JPY") else 5
        shown = [f"{price[name]:.{digits}f}" for name in ("bid", "offer", "spread")]
        grid.add_row(pair, shown[0], shown[1], Text(shown[2], style="cyan"))
    return _panel("prices: bid, offer, spread", grid)


def _order(picture: Picture, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=7, justify="right")
    grid.add_column(width=width - 12, no_wrap=True, overflow="ellipsis")
    for step in picture.steps[-_STEPS:]:
        grid.add_row(Text(f"{step.after_s:.2f} s", style="dim"), _step(step))
    for _ in range(_STEPS - len(picture.steps)):
        grid.add_row("", "")
    order = "an order" if picture.order is None else f"order {picture.order}"
    return _panel(f"{order} on its way, delta by delta", grid, _open(picture.open_orders))


def _open(orders: Mapping[str, int]) -> str:
    """The view of open orders, customers by their first names."""
    return f"view {VIEW}: " + (" · ".join(f"{name.split()[0]} {count:,}" for name, count in orders.items()) or "-")


def _step(step: OrderStep) -> Text:
    """A delta without the key, which is in the title."""
    delta = json.loads(step.delta)
    del delta["id"]
    if not delta:
        return Text("said again, nothing changed", style="dim")
    text = Text(json.dumps(delta, separators=(",", ":")))
    text.highlight_regex(r'(?<="state":")[a-z]+', "bold green")
    if step.removed:
        text.append(f"  removed {step.removed}", style="red")
    return text


def _table(*columns: str) -> Table:
    table = Table(box=None, expand=True, padding=(0, 0, 0, 1), pad_edge=False, header_style="dim")
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if at else "left", no_wrap=True, min_width=7 if at else 10)
    return table


def _panel(title: str, content: RenderableType, below: str | None = None) -> Panel:
    return Panel(
        content,
        title=Text(title, style="dim"),
        title_align="left",
        subtitle=None if below is None else Text(below, style="bold green"),
        subtitle_align="left",
        box=box.ROUNDED,
        border_style="dim",
        padding=(0, 1),
    )


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
    # Far above the figures of README, which are of a worker at 1,000 records a second.
    rows.append(("latency", f"{_spread(latencies_ms)}; all programs shared this machine"))
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(name, style="bold"), text)
    console.print(grid)


def _spread(quantiles_ms: Sequence[float | None]) -> str:
    """Median, 99th percentile and highest in words."""
    p50, p99, highest = (milliseconds(each) for each in quantiles_ms)
    return f"p50 {p50}, p99 {p99}, highest {highest}"
