"""Shows the jobs live: a row for each on a terminal, and their metrics to Prometheus."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import ConfigurationError
from spark_integration.merge.streaming.merge_counts import MergeListener
from spark_integration.pipeline.monitor import Monitor
from spark_integration.pipeline.pipeline_settings import PipelineSettings

if TYPE_CHECKING:
    from rich.table import Table


_COLUMNS: Final = ("job", "state", "seconds", "rows/s", "lag", "rows", "quarantined")
_GAP: Final = 2
_NAME_MIN: Final = 8


@contextmanager
def live_jobs(monitor: Monitor) -> Iterator[Callable[[], None]]:
    """Show the figures of a monitor while the block runs; the function that it gives draws them again.

    On a terminal that is a table below the log lines; elsewhere the log lines are all there is.
    """
    from rich.console import Console  # noqa: PLC0415 - slow
    from rich.live import Live  # noqa: PLC0415

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda: None
        return
    with Live(_table(monitor, console.width), console=console, auto_refresh=False) as live, _lines_above():
        drawn = time.monotonic()

        def draw() -> None:
            nonlocal drawn
            if time.monotonic() - drawn >= 0.5:
                drawn = time.monotonic()
                live.update(_table(monitor, console.width), refresh=True)

        yield draw
        live.update(_table(monitor, console.width), refresh=True)


@contextmanager
def _lines_above() -> Iterator[None]:
    """Let log lines pass through rich, which writes them above the table; handlers keep the stream of their start."""
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)


def _table(monitor: Monitor, width: int) -> Table:
    rows = [
        (
            name,
            view.state,
            "-" if view.batch is None else f"{view.batch_s:.1f}",
            "-" if view.batch is None else f"{view.rows_per_s:,.0f}",
            "-" if view.lag is None else f"{view.lag:,}",
            f"{view.counts['published'] + view.counts['written']:,}",
            f"{view.quarantined:,}",
        )
        for name, view in monitor.views().items()
    ]
    return narrow_table(_COLUMNS, rows, width)


def narrow_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table with one line for each job: where it is too wide, names of jobs are cut, and numbers never.

    Args:
        columns: the headings; the first one is that of the names.
        rows: the cells.
        width: the width of the terminal, in columns.
    """
    from rich.table import Table  # noqa: PLC0415 - slow

    drawn = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    widths[0] = max(_NAME_MIN, min(widths[0], width - sum(widths[1:]) - _GAP * (len(columns) - 1)))
    for name, own in zip(columns, widths, strict=True):
        is_text = name in ("job", "kind", "state", "ended")
        drawn.add_column(name, justify="left" if is_text else "right", no_wrap=True, width=own)
    for row in rows:
        drawn.add_row(*row)
    return drawn


log = structlog.stdlib.get_logger("sowstream.spark")


@contextmanager
def metrics_server(pipeline: PipelineSettings, *, is_merge: bool = False) -> Iterator[Monitor]:
    """Create a monitor whose metrics are served while the block runs.

    Args:
        pipeline: the settings of the port and its address. Port 0: any free one, which is logged; None: nothing is
            served.
        is_merge: serve the counters of a merge too, under the names of those of workers.

    Raises:
        ConfigurationError: the port is in use, or the address is none of this machine.
    """
    port = pipeline.metrics_port
    if port is None:
        yield Monitor()
        return
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - only where it is served

    from processor.telemetry.page_server import PageServer, metrics_page  # noqa: PLC0415

    registry = CollectorRegistry()
    try:
        server = PageServer(port, {"/metrics": metrics_page(registry)}, {}, host=pipeline.metrics_host)
    except OSError as error:
        raise ConfigurationError(f"metrics_port {port}: {error.strerror}; choose another one") from None
    log.info("metrics are served", port=server.port)
    try:
        yield Monitor(registry, *([MergeListener(registry=registry)] if is_merge else []))
    finally:
        server.close()
