"""An OTLP receiver over loopback HTTP, which decodes what is sent to it by OpenTelemetry's own protobuf types."""

import gzip
import http.server
import threading
from contextlib import contextmanager
from types import SimpleNamespace

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@contextmanager
def receiving():
    """Run a receiver; `url` is its address, `spans()` and `metrics()` what it has received."""
    spans, metrics, arrived = [], [], threading.Condition()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            with arrived:
                if self.path == "/v1/traces":
                    request = ExportTraceServiceRequest.FromString(body)
                    spans.extend(
                        span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans
                    )
                else:
                    assert self.path == "/v1/metrics", self.path
                    metrics.append(ExportMetricsServiceRequest.FromString(body))
                arrived.notify_all()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    def wait(condition, timeout_s=60):
        with arrived:
            assert arrived.wait_for(condition, timeout_s), [span.name for span in spans]

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield SimpleNamespace(url=url, spans=spans, metrics=metrics, wait=wait)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(span):
    """The attributes of a span or a point."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def points(request):
    """The metrics of one request by name."""
    return {
        metric.name: metric
        for each in request.resource_metrics
        for scope in each.scope_metrics
        for metric in scope.metrics
    }
