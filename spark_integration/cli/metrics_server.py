"""Serves the metrics of the jobs to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from processor.errors import ConfigurationError
from spark_integration.merge.streaming.merge_counts import MergeListener
from spark_integration.pipeline.monitor import Monitor
from spark_integration.pipeline.pipeline_settings import PipelineSettings

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
