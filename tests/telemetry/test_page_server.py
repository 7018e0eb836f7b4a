"""Metrics, and the server of health and metrics pages: its answers, and what its clients cannot do to it."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from pydantic import ValidationError

from processor.config.runtime import TelemetryConfig
from processor.runtime.metrics import Timings
from processor.telemetry import page_server
from processor.telemetry.metrics import MetricsExport, metrics_data, metrics_export, otlp_exporter
from processor.telemetry.page_server import (
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    Answer,
    PageRequest,
    PageServer,
    metrics_page,
)
from tests.telemetry.receiver import attributes, points, receiving
from tests.waiting import until

LIVE = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROBES = {"/livez": lambda _: Answer(HTTPStatus.OK, b"ok\n")}
BIG = b"x" * 16_000_000
"""More than the buffers of two sockets."""


@pytest.fixture
def request_s() -> float:
    """The time for a request: so long that an answer which waited for a slow client would not come within a test."""
    return 1000.0


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    """Metrics that take long to write."""
    registry = CollectorRegistry()
    many = Gauge("sowstream_test_many", "Many.", ["number"], registry=registry)
    for number in range(10_000):
        many.labels(number).set(number)
    Gauge("sowstream_test_gauge", "A gauge.", registry=registry).set(7)
    return registry


@pytest.fixture
def server(registry: CollectorRegistry, request_s: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    """A server with a page that is short, one that is long, one that fails, and metrics that take long to write."""
    monkeypatch.setattr(page_server, "REQUEST_S", request_s)
    pages = {
        "/metrics": metrics_page(registry),
        "/big": lambda _: Answer(HTTPStatus.OK, BIG),
        "/fails": lambda _: Answer(HTTPStatus.OK, str(1 // 0).encode()),
    }
    server = PageServer(0, pages, PROBES, host="127.0.0.1")
    yield server
    server.close()


def connect(server: PageServer, source: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of this machine."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=100, source_address=(source, 0))


def read(connection: socket.socket) -> bytes:
    """All bytes until the server closes the connection; a reset ends them too."""
    parts = []
    with connection, contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


def ask(server: PageServer, request: str | bytes, source: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the body of the answer to a request."""
    connection = connect(server, source)
    connection.sendall(request if isinstance(request, bytes) else request.encode("latin-1"))
    head, _, body = read(connection).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


def probe(server: PageServer, source: str = "127.0.0.1", tries: int = 1) -> tuple[float, float]:
    """The seconds that a probe waits for its answer, which must be good, and those of this process' processor time.

    It may be turned away in all tries but one.
    """
    start_s, start_work_s = time.monotonic(), time.process_time()
    for left in reversed(range(tries)):
        try:
            assert ask(server, LIVE, source)[0] == HTTPStatus.OK
            break
        except (ConnectionError, IndexError):
            if not left:
                raise
    return time.monotonic() - start_s, time.process_time() - start_work_s


def are_answered_at_once(probes: list[tuple[float, float]]) -> bool:
    """True if no probe waited for a second of work, or for a client of the time that `request_s` gives it."""
    waits_s, work_s = zip(*probes, strict=True)
    return max(work_s) < 1 and max(waits_s) < 100


def open_files() -> int:
    """The number of open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


SLOW = {
    "silent": b"",
    "metrics": b"GET /metrics HTTP/1.1\r\n\r\n",
    "half a request": b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
    "no reader of a long answer": b"GET /big HTTP/1.1\r\n\r\n",
    "an answer that is not closed": LIVE.encode(),
}


@pytest.mark.parametrize("start", SLOW.values(), ids=SLOW)
def test_a_thousand_slow_clients_take_no_thread_few_files_and_delay_no_probe(server: PageServer, start: bytes) -> None:
    """With 1,000 connections that are slow in some way, 16 are open at most, and probes are answered at once."""
    threads, files = set(threading.enumerate()), open_files()
    with contextlib.ExitStack() as clients:
        for _ in range(1000):
            client = clients.enter_context(connect(server))
            with contextlib.suppress(ConnectionError):
                client.sendall(start)
        assert are_answered_at_once([probe(server) for _ in range(5)])
        assert set(threading.enumerate()) <= threads
        assert open_files() <= files + 1000 + CONNECTIONS_MAX
        assert len(server._connections) <= CONNECTIONS_MAX


FLOOD = """
import collections, contextlib, socket, struct, sys
clients = collections.deque()
print(flush=True)
while True:
    with contextlib.suppress(OSError):
        clients.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), source_address=(sys.argv[2], 0)))
        # Closed by a reset: else its port is taken for a minute, and soon all ports of this machine are.
        clients[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    while len(clients) > 100:
        clients.popleft().close()
"""


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"], ids=["the probe's address", "another address"])
def test_probes_are_answered_while_connections_come_without_end(server: PageServer, source: str) -> None:
    """While a program opens connections as fast as it can, each of fifty probes is answered at once.

    From the address of the program a probe may be turned away before it has sent its request: Kubernetes tries thrice.
    """
    with subprocess.Popen([sys.executable, "-c", FLOOD, str(server.port), source], stdout=subprocess.PIPE) as flood:
        try:
            flood.stdout.readline()
            assert are_answered_at_once([probe(server, tries=3) for _ in range(50)])
        finally:
            flood.kill()


def test_clients_of_one_address_do_not_close_connections_of_another(server: PageServer) -> None:
    """A connection beyond the limit closes one of the address that has the most."""
    scrape = connect(server)
    scrape.sendall(b"GET /livez HTTP/1.1\r\n")
    with contextlib.ExitStack() as clients:
        for _ in range(100):
            clients.enter_context(connect(server, "127.0.0.2"))
        assert are_answered_at_once([probe(server) for _ in range(5)])
        scrape.sendall(b"\r\n")
        assert read(scrape).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("request_s", [1.0])
@pytest.mark.parametrize("is_trickling", [False, True], ids=["silent", "a byte at a time"])
def test_a_request_that_is_not_complete_in_time_ends_with_408(
    server: PageServer, request_s: float, is_trickling: bool
) -> None:
    """The time is that of the whole request: bytes that come slowly do not extend it."""
    connection, start_s = connect(server), time.monotonic()
    connection.settimeout(0.1)
    answer = b""
    with connection:
        while not answer and time.monotonic() < start_s + 60:
            with contextlib.suppress(TimeoutError):
                if is_trickling:
                    connection.sendall(b"G")
                answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - start_s >= request_s - 0.1


@pytest.mark.parametrize("request_s", [0.5])
def test_a_complete_request_waits_for_its_turn_unless_its_client_leaves(server: PageServer) -> None:
    """Its time does not run while the page of another one is made, and no page is made for a client that left."""
    made = []

    def slow(_: PageRequest) -> Answer:
        made.append(time.sleep(0.3))
        return Answer(HTTPStatus.OK, b"page")

    server._pages["/slow"] = slow  # type: ignore[index]
    first, left, last = (connect(server) for _ in range(3))
    for connection in (first, left, last):
        connection.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        until(lambda: made or any(each.request for each in server._connections), lambda: server._connections)
    left.close()
    assert read(first).endswith(b"\r\n\r\npage")
    assert read(last).endswith(b"\r\n\r\npage")
    assert len(made) == 2


@pytest.mark.parametrize("request_s", [1.0])
def test_a_client_that_does_not_read_its_answer_is_closed_in_time(server: PageServer, request_s: float) -> None:
    """An answer that is not taken in the time of an answer ends there."""
    connection = connect(server)
    connection.sendall(b"GET /big HTTP/1.1\r\n\r\n")
    start_s = time.monotonic()
    probe(server)
    until(lambda: not server._connections, lambda: server._connections)
    assert time.monotonic() >= start_s + request_s - 0.1
    assert len(read(connection)) < len(BIG)


def test_a_long_answer_arrives_complete(server: PageServer) -> None:
    """An answer beyond the buffers of the sockets is sent in parts, and each byte of it arrives."""
    status, headers, body = ask(server, "GET /big HTTP/1.1\r\n\r\n")
    assert (status, headers["Content-Length"], body == BIG) == (200, str(len(BIG)), True)


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /livez HTTP/1.1\r\n\r\n", 200),
        ("GET /livez HTTP/1.0\r\n\r\n", 200),
        ("GET /livez HTTP/1.1\n\n", 200),
        ("GET /livez?verbose HTTP/1.1\r\n\r\n", 200),
        ("GET /%6Civez HTTP/1.1\r\n\r\n", 200),
        ("GET http://worker:9464/livez HTTP/1.1\r\nHost: worker\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("GET /livez/ HTTP/1.1\r\n\r\n", 404),
        ("GET //livez HTTP/1.1\r\n\r\n", 404),
        ("GET /%00 HTTP/1.1\r\n\r\n", 404),
        ("GET /%FF%zz HTTP/1.1\r\n\r\n", 404),
        (f"GET /{'x' * 300} HTTP/1.1\r\n\r\n", 404),
        ("POST /livez HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        ("DELETE /livez HTTP/1.1\r\n\r\n", 405),
        ("OPTIONS /metrics HTTP/1.1\r\n\r\n", 405),
        ("GET /livez\r\n\r\n", 400),
        ("GET  /livez HTTP/1.1\r\n\r\n", 400),
        ("get /livez HTTP/1.1\r\n\r\n", 400),
        ("GET livez HTTP/1.1\r\n\r\n", 400),
        ("GET /livez HTTP/2.0\r\n\r\n", 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        ("GET /liv\x00ez HTTP/1.1\r\n\r\n", 400),
        ("GET /livez HTTP/1.1\r\nHost\r\n\r\n", 400),
        ("GET /livez HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        ("GET /livez HTTP/1.1\r\nA\x00: b\r\n\r\n", 400),
        ("\x16\x03\x01\x00\r\n\r\n", 400),
        (f"GET /{'x' * REQUEST_BYTES_MAX} HTTP/1.1\r\n\r\n", 431),
        ("GET /livez HTTP/1.1\r\n" + "A: b\r\n" * REQUEST_BYTES_MAX, 431),
        ("GET /livez HTTP/1.1\r\nA:" + " " * (REQUEST_BYTES_MAX - 100) + "\x00\r\n\r\n", 400),
        ("GET /fails HTTP/1.1\r\n\r\n", 500),
        ("GET /metrics HTTP/1.1\r\nAccept: text/plain; version=x.y\r\n\r\n", 500),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else str(value),
)
def test_each_request_is_answered_at_once_with_its_status(server: PageServer, request_text: str, status: int) -> None:
    """A request that is wrong is answered with the reason and harms no other; the connection ends after each."""
    answer_status, headers, body = ask(server, request_text)
    assert (answer_status, headers["Connection"]) == (status, "close")
    assert headers["Content-Length"] == str(len(body))
    probe(server)


def test_head_has_the_headers_of_get_without_the_page(server: PageServer) -> None:
    """HEAD is answered like GET, without a body."""
    of_get, of_head = (ask(server, f"{method} /livez HTTP/1.1\r\n\r\n") for method in ("GET", "HEAD"))
    assert of_head == (*of_get[:2], b"")


def test_an_answer_reaches_a_client_that_sends_more_than_a_request(server: PageServer) -> None:
    """A body and a second request are discarded, and do not reset the connection before its answer is read."""
    status, _, body = ask(server, LIVE + "x" * (REQUEST_BYTES_MAX - 1))
    assert (status, body) == (200, b"ok\n")


def test_metrics_come_in_the_format_and_the_encoding_that_are_accepted(server: PageServer) -> None:
    """`/metrics` has Prometheus' text, or OpenMetrics where the client prefers it, compressed where it reads that."""
    address = f"http://127.0.0.1:{server.port}/metrics?name[]=sowstream_test_gauge"
    with urllib.request.urlopen(address, timeout=100) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert "sowstream_test_gauge 7.0" in answer.read().decode()
    accepted = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
    with urllib.request.urlopen(urllib.request.Request(address, headers=accepted), timeout=100) as answer:
        assert re.match("application/openmetrics-text", answer.headers["Content-Type"])
        assert answer.headers["Content-Encoding"] == "gzip"


def test_a_closed_server_gives_its_port_back() -> None:
    """After `close`, its connections have ended, and another server can have the port."""
    server = PageServer(0, {}, PROBES, host="127.0.0.1")
    client = connect(server)
    probe(server)
    server.close()
    assert read(client) == b""
    again = PageServer(server.port, {}, {}, host="127.0.0.1")
    assert ask(again, LIVE)[0] == HTTPStatus.NOT_FOUND
    again.close()


@pytest.fixture
def own_registry():
    """A registry with a metric of each kind."""
    own_registry = CollectorRegistry()
    counter = Counter("t_records_total", "Records.", ["kind"], registry=own_registry)
    counter.labels("a").inc(3)
    counter.labels("b").inc()
    Gauge("t_lag_records", "Lag.", registry=own_registry).set(7)
    Gauge("t_odd", "NaN.", registry=own_registry).set(math.nan)
    histogram = Histogram("t_commit_seconds", "Commits.", ["p"], buckets=(0.1, 1.0), registry=own_registry)
    for value in (0.05, 0.5, 0.6, 5.0):
        histogram.labels("x").observe(value)
    Info("t_build", "Build.", registry=own_registry).info({"version": "1"})
    own_registry.register(Timings("t_observed_seconds", "Observed.", ("p", "timing")))
    return own_registry


def test_each_kind_of_metric_arrives_at_a_collector(own_registry):
    """A real receiver decodes counters, gauges and histograms with their labels, bounds and units."""
    with receiving() as receiver:
        settings = TelemetryConfig(metrics=True, endpoint=receiver.url)
        export = MetricsExport(own_registry, otlp_exporter(settings), 60)
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


def test_a_collector_that_is_away_costs_a_warning_and_no_worker(own_registry, caplog):
    """An exporter that raises is logged by its kind; the thread goes on and ends in time."""

    class Broken:
        def export(self, data):
            raise OSError("http://user:secret@host")

        def shutdown(self):
            pass

    export = MetricsExport(own_registry, Broken(), 0.01)
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
