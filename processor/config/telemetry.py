"""Settings of OpenTelemetry: spans and metrics for a collector."""

from __future__ import annotations

from pydantic import Field

from processor.config.section import IntervalS, Section


class TelemetryConfig(Section):
    """Spans and metrics sent to an OpenTelemetry collector, by OTLP over HTTP. `OTEL_*` variables set the rest."""

    traces: bool = False
    """Send spans of publishes, merged batches, deliveries and acks, linked by header `traceparent`."""
    metrics: bool = False
    """Send the metrics that `runtime.metrics_port` serves."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^@\s]+$")
    """The collector, such as http://HOST:4318; credentials go into OTEL_EXPORTER_OTLP_HEADERS. None:
    OTEL_EXPORTER_OTLP_ENDPOINT, or else this machine.
    """
    metrics_interval_s: IntervalS = Field(default=15.0, ge=0.1)
    """Time between two exports of the metrics."""
