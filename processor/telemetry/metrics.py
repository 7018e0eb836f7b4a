"""Exports the metrics of Prometheus' registry by OTLP: each is defined once, and read from there."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY

from processor.errors import ConfigurationError
from processor.telemetry.tracing import SCOPE, not_installed, resource, signal_address

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricsData
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

    from processor.config.runtime import TelemetryConfig

log = logging.getLogger("sowstream.telemetry")

_INTERVAL_MS: Final = "15000"
_LEAST_INTERVAL_MS: Final = 100


class MetricsExport:
    """A thread that exports a registry of Prometheus at intervals, and once more at the end."""

    def __init__(self, registry: CollectorRegistry, exporter: MetricExporter, interval_s: float) -> None:
        """Export nothing yet.

        Args:
            registry: the metrics.
            exporter: sends them.
            interval_s: the time between two exports.
        """
        self._registry = registry
        self._exporter = exporter
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sowstream-otlp-metrics", daemon=True)
        self._began_ns = time.time_ns()

    def start(self) -> None:
        """Begin to export."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Export once more and end; a collector that does not answer within the time is left."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._export()
        self._export()
        self._exporter.shutdown()

    def _export(self) -> None:
        try:
            self._exporter.export(metrics_data(self._registry.collect(), self._began_ns, time.time_ns()))
        except Exception as error:  # noqa: BLE001 - metrics must not end a worker; the next export tries again
            log.warning("metrics were not exported: %s", type(error).__name__)


def otlp_exporter(settings: TelemetryConfig) -> MetricExporter:
    """The exporter to the collector of the settings.

    Raises:
        ConfigurationError: OpenTelemetry's packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - optional
    except ImportError as error:
        raise not_installed(error) from None
    return OTLPMetricExporter(signal_address(settings.endpoint, "metrics"))


def metrics_export(settings: TelemetryConfig) -> MetricsExport | None:
    """The export of this process's metrics that the settings ask for; None: it is off. Errors as `otlp_exporter`."""
    if not settings.metrics:
        return None
    return MetricsExport(REGISTRY, otlp_exporter(settings), _interval_s())


def _interval_s() -> float:
    """The time between two exports, from OpenTelemetry's own variable."""
    written = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or _INTERVAL_MS
    if not written.isdecimal() or int(written) < _LEAST_INTERVAL_MS:
        raise ConfigurationError(
            f"OTEL_METRIC_EXPORT_INTERVAL: expected milliseconds, {_LEAST_INTERVAL_MS} or more, such as {_INTERVAL_MS}"
        )
    return int(written) / 1000


def metrics_data(families: Iterable[Family], began_ns: int, now_ns: int) -> MetricsData:
    """Convert families of metrics as Prometheus' client collects them.

    Counters and histograms are cumulative since `began_ns`; all other kinds are gauges. Series with NaN or an infinity,
    which no collector can add up, are left out.

    Args:
        families: the metrics.
        began_ns: the time from which counters count, nanoseconds since the epoch.
        now_ns: the time of the values.
    """
    from opentelemetry.sdk.metrics import export  # noqa: PLC0415 - an optional package
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 - as well

    metrics = [metric for family in families if (metric := _metric(family, began_ns, now_ns)) is not None]
    scope = export.ScopeMetrics(InstrumentationScope(SCOPE, version("sowstream")), metrics, "")
    return export.MetricsData([export.ResourceMetrics(resource(), [scope], "")])


def _metric(family: Family, began_ns: int, now_ns: int) -> Metric | None:
    from opentelemetry.sdk.metrics import export  # noqa: PLC0415 - an optional package

    data: Any
    if family.type == "histogram":
        points = _histogram_points(family, began_ns, now_ns)
        data = export.Histogram(points, export.AggregationTemporality.CUMULATIVE)
    else:
        is_counter = family.type == "counter"
        wanted = {f"{family.name}_total"} if is_counter else {family.name}
        points = [
            export.NumberDataPoint(dict(sample.labels), began_ns, now_ns, sample.value)
            for sample in family.samples
            if sample.name in wanted and math.isfinite(sample.value)
        ]
        temporality = export.AggregationTemporality.CUMULATIVE
        data = export.Sum(points, temporality, is_monotonic=True) if is_counter else export.Gauge(points)
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return export.Metric(name, family.documentation, _unit(name), data) if points else None


def _histogram_points(family: Family, began_ns: int, now_ns: int) -> list[Any]:
    """The points of a histogram: Prometheus' buckets are cumulative, OTLP's are not."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint  # noqa: PLC0415 - an optional package

    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        series = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name == f"{family.name}_bucket":
            buckets.setdefault(series, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name == f"{family.name}_sum":
            sums[series] = sample.value
    unknown: Any = None  # The least and the greatest value: Prometheus does not keep them.
    points = []
    for series, rows in buckets.items():
        rows.sort()
        counts = [int(count - before) for (_, count), before in zip(rows, [0, *(c for _, c in rows)], strict=False)]
        bounds = [bound for bound, _ in rows if math.isfinite(bound)]
        total = int(rows[-1][1])
        points.append(
            HistogramDataPoint(
                dict(series), began_ns, now_ns, total, sums.get(series, 0.0), counts, bounds, unknown, unknown
            )
        )
    return points


def _unit(name: str) -> str:
    """The unit in a name, as OTLP writes it."""
    bare = name.removesuffix("_total")
    return "s" if bare.endswith("_seconds") else "By" if bare.endswith("_bytes") else "1"
