"""A trace from a publish through a worker to delta and ack, received by OTLP over HTTP, on a real broker."""

import pytest

from processor.client import Client
from processor.config import load
from processor.telemetry import tracing
from tests.endtoend.world import World
from tests.telemetry.receiver import attributes, points, receiving

pytestmark = pytest.mark.broker


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
