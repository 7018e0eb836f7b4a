"""Metrics are read from Prometheus' registry and exported by OTLP as they are there."""

import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from pydantic import ValidationError

from processor.config.runtime import TelemetryConfig
from processor.runtime.metrics import Timings
from processor.telemetry.metrics import MetricsExport, metrics_data, metrics_export, otlp_exporter
from tests.telemetry.receiver import attributes, points, receiving


@pytest.fixture
def registry():
    """A registry with a metric of each kind."""
    registry = CollectorRegistry()
    counter = Counter("t_records_total", "Records.", ["kind"], registry=registry)
    counter.labels("a").inc(3)
    counter.labels("b").inc()
    Gauge("t_lag_records", "Lag.", registry=registry).set(7)
    Gauge("t_odd", "NaN.", registry=registry).set(math.nan)
    histogram = Histogram("t_commit_seconds", "Commits.", ["p"], buckets=(0.1, 1.0), registry=registry)
    for value in (0.05, 0.5, 0.6, 5.0):
        histogram.labels("x").observe(value)
    Info("t_build", "Build.", registry=registry).info({"version": "1"})
    registry.register(Timings("t_observed_seconds", "Observed.", ("p", "timing")))
    return registry


def test_each_kind_of_metric_arrives_at_a_collector(registry):
    """A real receiver decodes counters, gauges and histograms with their labels, bounds and units."""
    with receiving() as receiver:
        settings = TelemetryConfig(metrics=True, endpoint=receiver.url)
        export = MetricsExport(registry, otlp_exporter(settings), 60)
        export.start()
        export.stop()
        [request] = receiver.metrics
    found = points(request)
    assert set(found) == {"t_records_total", "t_lag_records", "t_commit_seconds"}
    records = found["t_records_total"]
    assert records.description == "Records."
    assert records.sum.is_monotonic
    assert records.sum.aggregation_temporality == 2  # cumulative
    assert {attributes(p)["kind"]: p.as_double for p in records.sum.data_points} == {"a": 3, "b": 1}
    assert [p.as_double for p in found["t_lag_records"].gauge.data_points] == [7]
    [point] = found["t_commit_seconds"].histogram.data_points
    assert (attributes(point), found["t_commit_seconds"].unit) == ({"p": "x"}, "s")
    assert list(point.bucket_counts) == [1, 2, 1]
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert (point.count, point.sum) == (4, pytest.approx(6.15))
    assert 0 < records.sum.data_points[0].start_time_unix_nano < records.sum.data_points[0].time_unix_nano
    [resource] = request.resource_metrics
    assert attributes(resource.resource)["service.name"] == "sowstream"


def test_every_metric_of_a_worker_that_has_a_value_can_be_exported():
    """Each family of a worker's own registry is converted under the name that Prometheus shows."""
    from prometheus_client import REGISTRY

    import processor.runtime.metrics  # noqa: F401 - registers them

    families = list(REGISTRY.collect())
    data = metrics_data(families, 1, 2)
    names = {metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    shown = {family.name + ("_total" if family.type == "counter" else "") for family in families if family.samples}
    assert names <= shown
    assert {"sowstream_kafka_unreachable_seconds"} <= names


def test_a_collector_that_is_away_costs_a_warning_and_no_worker(registry, caplog):
    """An exporter that raises is logged by its kind; the thread goes on and ends in time."""

    class Broken:
        def export(self, data):
            raise OSError("http://user:secret@host")

        def shutdown(self):
            pass

    export = MetricsExport(registry, Broken(), 0.01)
    export.start()
    export.stop()
    assert not export._thread.is_alive()
    assert "OSError" in caplog.text
    assert "secret" not in caplog.text


def test_without_the_setting_nothing_is_exported():
    """Export is off by default."""
    assert metrics_export(TelemetryConfig()) is None


def test_an_address_with_credentials_is_refused():
    """Settings are logged, so that credentials belong into OpenTelemetry's own variable."""
    with pytest.raises(ValidationError):
        TelemetryConfig(endpoint="http://user:secret@host:4318")
