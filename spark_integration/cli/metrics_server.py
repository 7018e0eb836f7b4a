"""Serves the metrics of the jobs to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from processor.errors import ConfigurationError
from spark_integration.merge.streaming.merge_counts import MergeListener
from spark_integration.pipeline.monitor import Monitor

log = structlog.stdlib.get_logger("sowstream.spark")


@contextmanager
def metrics_server(port: int | None, *, is_merge: bool = False) -> Iterator[Monitor]:
    """Create a monitor whose metrics are served while the block runs.

    Args:
        port: the port; 0: any free one, which is logged; None: nothing is served.
        is_merge: serve the counters of a merge too, under the names of those of workers.

    Raises:
        ConfigurationError: the port is in use.
    """
    if port is None:
        yield Monitor()
        return
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - only where it is served

    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ConfigurationError(f"metrics_port {port}: {error.strerror}; choose another one") from None
    log.info("metrics are served", port=server.server_port)
    try:
        yield Monitor(registry, *([MergeListener(registry=registry)] if is_merge else []))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
