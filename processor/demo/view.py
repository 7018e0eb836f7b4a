"""The live picture: drawn anew four times a second on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from processor.demo.words import curve, milliseconds, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from processor.demo.follow import Step
    from processor.demo.picture import Conflated, Merged, Picture

_WIDTH: Final = 80
_LINE_INTERVAL_S: Final = 3.0
_CURVE: Final = 24
_STEPS: Final = 6


class Moment(NamedTuple):
    """What the picture says about the demo itself."""

    phase: str
    """What it is doing, in a few words."""
    elapsed_s: float
    """Since the feeds began."""
    workers: Sequence[tuple[str, bool]]
    """Each worker's name, and whether it runs."""


class View:
    """A screen if there is one, else lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._said_s = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Something happened."""
        self._console.print(Text(line), soft_wrap=True)

    def show(self, moment: Moment, picture: Picture) -> None:
        """Show how it stands."""
        if self._live is not None:
            self._live.update(screen(moment, picture), refresh=True)
        elif time.monotonic() - self._said_s >= _LINE_INTERVAL_S:
            self._said_s = time.monotonic()
            self.say(line(moment, picture))


def line(moment: Moment, picture: Picture) -> str:
    """Everything that matters in one line."""
    merged = " ".join(
        f"{topic.name} in {topic.in_per_s:.0f}/s out {topic.out_per_s:.0f}/s saved {topic.saved:.0%};"
        for topic in picture.merged
    )
    conflated = " ".join(f"{topic.name} {ratio(topic.ratio)};" for topic in picture.conflated)
    down = "".join(f" {name} is down;" for name, runs in moment.workers if not runs)
    latency = f"latency p50 {milliseconds(picture.p50_ms)} p99 {milliseconds(picture.p99_ms)}"
    return f"{moment.elapsed_s:4.0f} s {moment.phase}: {merged} {conflated} {latency}; lag {picture.lag}{down}"


def screen(moment: Moment, picture: Picture) -> RenderableType:
    """Everything that matters, 80 columns wide."""
    below = Table.grid(expand=True)
    below.add_column(width=_WIDTH // 2)
    below.add_column(width=_WIDTH // 2)
    below.add_row(_latency(picture), _prices(picture.prices))
    all_of_it = Table.grid()
    # As wide as the design, however wide the terminal.
    all_of_it.add_column(width=_WIDTH)
    for part in (_title(moment), _merged(picture.merged), _conflated(picture.conflated), below, _order(picture)):
        all_of_it.add_row(part)
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


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=True, padding=(0, 1), show_edge=False)
    table.add_column(Text(title, style="bold"), ratio=3, no_wrap=True)
    for column in columns:
        table.add_column(column, ratio=2, justify="right", no_wrap=True)
    return table


def _merged(topics: Sequence[Merged]) -> RenderableType:
    table = _table("topic", "in/s", "out/s", "B/record", "B/delta", "saved", "rejected", "lag")
    for topic in topics:
        table.add_row(
            topic.name,
            f"{topic.in_per_s:,.0f}",
            f"{topic.out_per_s:,.0f}",
            f"{topic.sow_bytes / max(1, topic.merged):.0f}",
            f"{topic.delta_bytes / max(1, topic.merged):.0f}",
            Text(f"{topic.saved:.0%}", style="bold green"),
            f"{topic.rejected:,}",
            f"{topic.lag:,}",
        )
    return _panel("orders and prices, merged", table)


def _conflated(topics: Sequence[Conflated]) -> RenderableType:
    table = _table("conflated", "interval", "in/s", "out/s", "ratio")
    for topic in topics:
        table.add_row(
            topic.name,
            f"{topic.interval_s:g} s",
            f"{topic.in_per_s:,.0f}",
            f"{topic.out_per_s:,.0f}",
            Text(ratio(topic.ratio), style="bold green"),
        )
    return _panel("each key once per interval", table)


def _latency(picture: Picture) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=7)
    grid.add_column(width=_CURVE)
    grid.add_row("p50", Text(milliseconds(picture.p50_ms), style="bold green"))
    grid.add_row("p99", milliseconds(picture.p99_ms))
    grid.add_row("p50", Text(curve(picture.latencies_ms, _CURVE), style="cyan"))
    grid.add_row("lag", Text(curve(picture.lags, _CURVE), style="yellow"))
    grid.add_row("lag now", f"{picture.lag:,} records")
    return _panel("published → seen by a subscriber", grid)


def _prices(prices: Sequence[dict[str, Any]]) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column()
    for _ in range(3):
        grid.add_column(justify="right")
    for price in [price for price in prices if price["pair"] in _SHOWN_PAIRS]:
        digits = 3 if price["bid"] > 20 else 5
        grid.add_row(
            price["pair"],
            f"{price['bid']:.{digits}f}",
            f"{price['offer']:.{digits}f}",
            Text(f"{price['spread']:.{digits}f}", style="cyan"),
        )
    return _panel("prices: bid, offer, spread", grid)


_SHOWN_PAIRS: Final = ("EURUSD", "GBPUSD", "USDJPY", "EURGBP", "USDCAD")


def _order(picture: Picture) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=8, justify="right")
    grid.add_column(width=_WIDTH - 14, no_wrap=True, overflow="ellipsis")
    for step in picture.steps[-_STEPS:]:
        grid.add_row(Text(f"+{step.after_s:.2f} s", style="dim"), _step(step))
    for _ in range(_STEPS - len(picture.steps)):
        grid.add_row("", "")
    return _panel(f"order {picture.order or ''}: its deltas as they come", grid)


def _step(step: Step) -> Text:
    text = Text(step.delta)
    text.highlight_regex(r'"state":"(?P<_>[a-z]+)"', style_prefix="bold green")
    text.highlight_regex(r'"(?P<name>\w+)":', style_prefix="")
    if step.removed:
        text.append(f"  removed {step.removed}", style="red")
    return text


def _panel(title: str, what: RenderableType) -> Panel:
    return Panel(
        what, title=Text(title, style="dim"), title_align="left", box=box.ROUNDED, border_style="dim", padding=(0, 1)
    )
