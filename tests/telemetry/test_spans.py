"""Spans of a publish and its merge, as they are made and as a collector gets them."""

import sys
from concurrent.futures import Future

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from processor.client import Client
from processor.client.subscribe.stream import received
from processor.config import load
from processor.config.runtime import TelemetryConfig
from processor.errors import ConfigurationError
from processor.record import Record
from processor.subscriptions import Message
from processor.telemetry import tracing
from processor.telemetry.tracing import LINKS_MAX, Spans, spans_of
from processor.wire.ack import Ack
from processor.wire.headers import trace_of
from tests.endtoend.world import World
from tests.telemetry.receiver import attributes, points, receiving

ON = TelemetryConfig(traces=True)


@pytest.fixture
def exporter(monkeypatch):
    """The application's own provider, which keeps spans in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def published(spans, topic="orders"):
    """Publish; return the headers and the span's context."""
    headers = []
    with spans.publish(topic, "delta_publish", headers) as context:
        pass
    return headers, context


def record(headers, offset=0):
    """A record of the input topic."""
    return Record(b"7", b"{}", headers, offset, 0)


def links(span):
    """The span ids that a span links to."""
    return [link.context.span_id for link in span.links]


def test_a_publish_adds_its_trace_to_the_headers_and_keeps_one_that_is_there(exporter):
    """The header is W3C's; a command with a trace of its own gets neither a second header nor a span."""
    spans = Spans(ON)
    headers, context = published(spans)
    [span] = exporter.get_finished_spans()
    assert (span.name, span.kind.name) == ("publish orders", "PRODUCER")
    ids = f"{context.trace_id:032x}-{context.span_id:016x}"
    assert headers == [("traceparent", f"00-{ids}-{context.trace_flags:02x}".encode())]
    with spans.publish("orders", "publish", headers) as again:
        assert again is None
    assert len(headers) == len(exporter.get_finished_spans()) == 1


def test_a_publish_within_a_span_of_the_application_is_its_child(exporter):
    """The application's current span is the parent of the publish."""
    spans = Spans(ON)
    with trace.get_tracer_provider().get_tracer("app").start_as_current_span("request") as parent:
        _, context = published(spans)
    span = exporter.get_finished_spans()[0]
    assert context.trace_id == parent.get_span_context().trace_id
    assert span.parent.span_id == parent.get_span_context().span_id


def test_a_batch_has_a_link_to_each_of_its_publishes_once_and_no_parent(exporter):
    """Of a batch with three publishes of two traces, and records without any, the span has two links."""
    spans = Spans(ON)
    (first, one), (second, two) = published(spans), published(spans)
    exporter.clear()
    with spans.process("orders", 3, [record(first), record(None, 1), record(second, 2), record(first, 3)]):
        pass
    [span] = exporter.get_finished_spans()
    assert (span.name, span.parent, links(span)) == ("process orders", None, [one.span_id, two.span_id])
    assert span.attributes["messaging.batch.message_count"] == 4
    assert span.attributes["messaging.destination.partition.id"] == "3"
    assert span.end_time >= span.start_time


def test_a_batch_with_more_publishes_than_a_span_has_links_has_several_spans(exporter):
    """No link is lost."""
    spans = Spans(ON)
    publishes = [published(spans) for _ in range(LINKS_MAX + 1)]
    exporter.clear()
    with spans.process("orders", 0, [record(headers, n) for n, (headers, _) in enumerate(publishes)]):
        pass
    found = exporter.get_finished_spans()
    assert [len(span.links) for span in found] == [LINKS_MAX, 1]
    assert {number for span in found for number in links(span)} == {context.span_id for _, context in publishes}


def test_a_batch_that_fails_says_so_and_raises(exporter):
    """The span has the kind of error, and not its text."""
    spans = Spans(ON)
    headers, _ = published(spans)
    exporter.clear()
    with pytest.raises(ValueError, match="secret"), spans.process("orders", 0, [record(headers)]):
        raise ValueError("secret")
    [span] = exporter.get_finished_spans()
    assert span.attributes["error.type"] == "ValueError"
    assert "secret" not in span.to_json()


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [("other", b"x")],
        [("traceparent", b"rubbish")],
        [("traceparent", None)],
        [("traceparent", b"\xff" * 55)],
        [("traceparent", b"0" * 100_000)],
        [("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-00")],
    ],
)
def test_a_batch_without_a_sampled_trace_has_no_span(exporter, headers):
    """Missing, bad and unsampled traces make no span, and no error."""
    with Spans(ON).process("orders", 0, [record(headers)]):
        pass
    assert exporter.get_finished_spans() == ()


def test_a_message_that_a_subscriber_received_is_linked_to_its_publish(exporter):
    """A message with a trace has a span, one without has none."""
    headers, context = published(Spans(ON))
    exporter.clear()
    received(ON)([Message("publish", "orders", headers=trace_of(headers)), Message("publish", "orders")])
    [span] = exporter.get_finished_spans()
    assert (span.name, links(span)) == ("receive orders", [context.span_id])


def test_the_ack_of_a_command_is_linked_to_its_publish(exporter):
    """The span has the ack's type and status; one that failed has the kind of error."""
    spans = Spans(ON)
    _, context = published(spans)
    exporter.clear()
    done, failed = Future(), Future()
    for future in (done, failed):
        spans.settle("orders", context, future)
    assert exporter.get_finished_spans() == ()
    done.set_result(Ack("success", None, "persisted", "orders", "7", None, None, None))
    failed.set_exception(ConfigurationError("secret"))
    good, bad = exporter.get_finished_spans()
    assert links(good) == links(bad) == [context.span_id]
    assert good.attributes["sowstream.ack.type"] == "persisted"
    assert good.attributes["sowstream.ack.status"] == "success"
    assert bad.attributes["error.type"] == "ConfigurationError"


def test_without_the_setting_nothing_is_made_and_nothing_imported():
    """Tracing is off by default, and OpenTelemetry is not imported then."""
    assert spans_of(TelemetryConfig()) is None
    assert received(TelemetryConfig()) is None
    code = (
        "import sys, processor.client, processor.runtime.worker.worker\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    import subprocess

    subprocess.run([sys.executable, "-c", code], check=True, timeout=150)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    """Without the extra, the setting is an error that says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'sowstream\[otel\]'"):
        tracing.tracer(ON)


@pytest.mark.broker
def test_a_publish_is_linked_to_its_merge_its_delta_and_its_ack(bootstrap, tmp_path, unique, monkeypatch):
    """Process, receive and settle link to the publish's span; the worker's metrics come by the same way."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    with receiving() as receiver:
        telemetry = {"traces": True, "metrics": True, "endpoint": receiver.url}
        world = World(bootstrap, tmp_path, unique, more={"telemetry": telemetry})
        try:
            worker = world.start()
            with Client("tracer", load(world.file)) as client:
                with client.delta_subscribe(unique, timeout_s=60) as subscription:
                    acks = [client.delta_publish(unique, {"id": number, "x": 1}, ack="persisted") for number in (1, 2)]
                    messages = [next(subscription) for _ in acks]
                    assert [ack.result(60).status for ack in acks] == ["success"] * 2
                assert all("traceparent" in message.headers for message in messages)
            tracing._exporting(receiver.url).force_flush()
            assert worker.stop() == 0
            receiver.wait(lambda: any(span.name == f"process {unique}" for span in receiver.spans))
        finally:
            world.close()
            tracing._exporting(receiver.url).shutdown()
            tracing._exporting.cache_clear()
    by_name = {}
    for span in receiver.spans:
        by_name.setdefault(span.name.split()[0], []).append(span)
    published = {span.span_id for span in by_name["publish"]}
    assert len(published) == 2
    for name in ("process", "receive", "settle"):
        assert {link.span_id for span in by_name[name] for link in span.links} == published, name
        assert {span.parent_span_id for span in by_name[name]} == {b""}
    assert {attributes(span)["messaging.destination.name"] for span in receiver.spans} >= {unique}
    consumed = points(receiver.metrics[-1])["sowstream_records_consumed_total"]
    assert {attributes(point)["processor"]: point.as_double for point in consumed.sum.data_points}[unique] == 2
