"""Shows the jobs live: a row for each on a terminal, and their metrics to Prometheus."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import ConfigurationError
from spark_integration.merge.streaming.merge_counts import MergeListener
from spark_integration.pipeline.monitor import Monitor
from spark_integration.pipeline.pipeline_settings import PipelineSettings

if TYPE_CHECKING:
    from rich.table import Table


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
