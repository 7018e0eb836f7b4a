"""Shows the jobs live on a terminal: a row for each; nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

    from spark_integration.pipeline.monitor import Monitor

_COLUMNS: Final = ("job", "batch", "seconds", "rows", "rows/s", "lag", "published", "written", "quarantined")


@contextmanager
def live_jobs(monitor: Monitor) -> Iterator[Callable[[], None]]:
    """Show the figures of a monitor while the block runs; the function that it gives draws them again."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - only needed on a terminal
    from rich.live import Live  # noqa: PLC0415

    with Live(_table(monitor), console=Console(stderr=True), auto_refresh=False) as live:
        drawn = time.monotonic()

        def draw() -> None:
            nonlocal drawn
            if time.monotonic() - drawn >= 0.5:
                drawn = time.monotonic()
                live.update(_table(monitor), refresh=True)

        yield draw
        live.update(_table(monitor), refresh=True)


def _table(monitor: Monitor) -> Table:
    from rich import box  # noqa: PLC0415 - only needed on a terminal
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "job" else "right")
    for name, view in monitor.views().items():
        table.add_row(
            name,
            "-" if view.batch is None else str(view.batch),
            f"{view.batch_s:.1f}",
            f"{view.rows:,}",
            f"{view.rows_per_s:,.0f}",
            "-" if view.lag is None else f"{view.lag:,}",
            f"{view.counts['published']:,}",
            f"{view.counts['written']:,}",
            f"{view.quarantined:,}",
        )
    return table
