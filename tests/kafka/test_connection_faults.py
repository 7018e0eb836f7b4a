"""Each reason for a failed connection, provoked with real sockets and TLS, has its own sentence and remedy."""

from __future__ import annotations

import http.server
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processor.errors import BrokerUnavailable, ConfigurationError, Stop
from processor.kafka import outage
from processor.kafka.admin.admin import Admin
from processor.kafka.connection_faults import Fault, fault_in
from processor.kafka.connection_probe import FaultLog, addresses_of, steps
from tests.certificates import Authority

_WAIT_S = 12.0


class _Http(http.server.BaseHTTPRequestHandler):
    """Answers like a web server."""

    def do_GET(self) -> None:
        """Answer with an empty page."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


@contextmanager
def http_server(handler: type[_Http] = _Http) -> Iterator[str]:
    """A web server, by its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that treats one connection after the other, by its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        ended = threading.Event()
        kept: list[socket.socket] = []

        def accept() -> None:
            while not ended.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                kept.append(connection)
                serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()
            for connection in kept:
                connection.close()


def tls(certificate: Path, clients: Path | None = None) -> Callable[[socket.socket], None]:
    """A server's side of a TLS handshake; the connection ends after it. `clients`: the authority that clients need."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED

    def serve(connection: socket.socket) -> None:
        connection.settimeout(60)
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                secure.settimeout(2)  # The next connection waits for the end of this one.
                secure.recv(1)
        except OSError:
            connection.close()

    return serve


def mute(_connection: socket.socket) -> None:
    """A server that never answers."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the broker's certificates."""
    return Authority(tmp_path_factory.mktemp("tls"))


def refusal(properties: dict[str, str], timeout_s: float = _WAIT_S) -> tuple[Stop, float]:
    """The error of the first request, and the time until it came."""
    began_s = time.monotonic()
    with pytest.raises(Stop) as caught:
        Admin(properties, timeout_s).cluster()
    return caught.value, time.monotonic() - began_s


def test_an_unknown_host_is_called_one() -> None:
    """A name that does not resolve is quoted with the resolver's words, long before the time limit."""
    error, seconds = refusal({"bootstrap.servers": "nosuchhost.invalid:9092"}, 60)
    assert seconds < 50
    assert isinstance(error, BrokerUnavailable)
    assert "nosuchhost.invalid:9092: no host has this name (" in str(error)
    assert "To do: correct kafka.bootstrap.servers (or --bootstrap)" in str(error)


def test_services_wait_for_a_name_and_commands_for_a_resolver() -> None:
    """A name of no host ends the wait, unless a service awaits it or Kafka has answered; a dead resolver does not."""
    line = "[thrd:h:1/bootstrap]: h:1/bootstrap: Failed to resolve 'h:1': {} (after 1ms in state CONNECT)"

    def ends(words: str, *, awaits_names: bool = False, has_answered: bool = False) -> bool:
        faults = FaultLog({"bootstrap.servers": "h:1"}, logging.getLogger("test"), awaits_names=awaits_names)
        if has_answered:
            faults.clear()
        faults.log(3, "%s %s %s", "FAIL", "client", line.format(words))
        return faults.ends_the_wait

    unknown = "Name or service not known"
    assert ends(unknown)
    assert not ends(unknown, awaits_names=True)
    assert not ends(unknown, has_answered=True)
    assert not ends("Temporary failure in name resolution")


def test_a_refusal_by_a_router_is_the_reason_although_later_tries_get_no_answer() -> None:
    """A host that was called unreachable once is not said to be behind a firewall later."""
    faults = FaultLog({"bootstrap.servers": "h:1"}, logging.getLogger("test"))
    place = "[thrd:h:1/bootstrap]: h:1/bootstrap: "
    faults.log(3, "%s %s %s", "FAIL", "client", f"{place}Connect to ipv4#h:1 failed: No route to host (after 1ms)")
    faults.log(3, "%s %s %s", "FAIL", "client", f"{place}Connection setup timed out in state CONNECT (after 2500ms)")
    assert [fault.kind for fault in faults.explained(timeout_s=0.1)] == ["unreachable"]


def test_a_port_without_a_listener_has_the_advice_to_start_kafka() -> None:
    """A refused connection is no unknown host: Kafka may not run, or have another port."""
    error, _ = refusal({"bootstrap.servers": "127.0.0.1:1"}, 2)
    assert isinstance(error, BrokerUnavailable)
    assert "127.0.0.1:1: nothing listens on this port" in str(error)
    assert "sowstream broker start" in str(error)


def test_each_of_several_addresses_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    """With two wrong addresses, the error has the reason of each, and so has the line of the log while it waits."""
    outage.reached()  # During an outage the line is not repeated.
    error, _ = refusal({"bootstrap.servers": "127.0.0.1:1,nosuchhost.invalid:9092"}, 3)
    assert "127.0.0.1:1: nothing listens" in str(error)
    assert "nosuchhost.invalid:9092: no host" in str(error)
    [line] = [
        record.getMessage() for record in caplog.records if "waiting for Kafka, up to 3 s: " in record.getMessage()
    ]
    assert "127.0.0.1:1: nothing listens" in line
    assert "nosuchhost.invalid:9092: no host" in line


def test_a_web_server_is_recognised() -> None:
    """An HTTP server on the port is named as such, long before the time limit: waiting is of no use."""
    with http_server() as address:
        error, seconds = refusal({"bootstrap.servers": address}, 60)
    assert isinstance(error, ConfigurationError)
    assert f"{address}: an HTTP server answers there, and not Kafka" in str(error)
    assert seconds < 50


def test_a_web_server_that_a_look_missed_is_recognised_by_a_later_one() -> None:
    """On a busy machine a look may be too short: each further try looks again."""
    asked = []

    class Late(_Http):
        def do_GET(self) -> None:
            asked.append(self.path)
            if len(asked) > 1:  # The first one gets no answer.
                super().do_GET()

    with http_server(Late) as address:
        error, seconds = refusal({"bootstrap.servers": address}, 60)
    assert isinstance(error, ConfigurationError)
    assert f"{address}: an HTTP server answers there, and not Kafka" in str(error)
    assert seconds < 50


@pytest.mark.long
def test_a_server_that_never_answers_is_no_closed_port() -> None:
    """A port that accepts connections and stays silent is described as such."""
    with listener(mute) as address:
        error, _ = refusal({"bootstrap.servers": address}, 4)
    assert f"{address}: accepts connections, and does not answer as a Kafka broker does" in str(error)


def test_a_plain_client_on_a_tls_port_is_advised_to_use_tls(authority: Authority) -> None:
    """A client without TLS on a TLS port learns the property to set, long before the time limit."""
    with listener(tls(authority.issue("plain", "IP:127.0.0.1"))) as address:
        error, seconds = refusal({"bootstrap.servers": address}, 60)
    assert isinstance(error, ConfigurationError)
    assert f"{address}: the port requires TLS" in str(error)
    assert "set kafka.security.protocol to SSL" in str(error)
    assert seconds < 50


def test_tls_on_a_plain_port_ends_at_once() -> None:
    """A TLS client on a port without TLS does not wait for its time limit."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"\0\0\0\4none")

    with listener(answer) as address:
        error, seconds = refusal({"bootstrap.servers": address, "security.protocol": "SSL"}, 60)
    assert isinstance(error, ConfigurationError)
    assert f"{address}: the port has no TLS" in str(error)
    assert seconds < 50


@pytest.mark.parametrize(
    ("alternative", "days", "trusted", "found"),
    [
        ("IP:127.0.0.1", 2, False, "comes from an authority that is not trusted here"),
        ("DNS:kafka.example", 2, True, "is for another name"),
        ("IP:127.0.0.1", -1, True, "is not valid today"),
    ],
    ids=["unknown authority", "another name", "expired"],
)
def test_three_faults_of_a_certificate_are_told_apart(
    authority: Authority, tmp_path: Path, alternative: str, days: int, trusted: bool, found: str
) -> None:
    """These faults share one text of librdkafka; ours names the right one, before the time limit."""
    certificate = authority.issue(f"server{days}{trusted}", alternative, days=days)
    ca = authority.file if trusted else Authority(tmp_path / "other").file
    with listener(tls(certificate)) as address:
        properties = {"bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.location": str(ca)}
        error, seconds = refusal(properties, 60)
    assert isinstance(error, ConfigurationError)
    assert f"the broker's certificate {found} (" in str(error)
    assert seconds < 50


def test_a_missing_file_is_named() -> None:
    """A certificate file that does not exist is reported with its property and its path."""
    with pytest.raises(ConfigurationError, match=r"kafka\.ssl\.ca\.location: there is no file /nowhere/ca\.pem"):
        Admin({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"})


def test_one_good_address_of_two_suffices(bootstrap: str) -> None:
    """A wrong address beside a good one is no error."""
    assert Admin({"bootstrap.servers": f"127.0.0.1:1,{bootstrap}"}).cluster().brokers


def test_the_steps_to_an_address_end_at_the_first_fault(authority: Authority) -> None:
    """The doctor's steps are resolve, connect and TLS, as far as they succeed."""
    assert [(step.name, step.fault is None) for step in steps("127.0.0.1:1", {})] == [
        ("resolve", True), ("connect", False),
    ]  # fmt: skip
    properties = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.file)}
    with listener(tls(authority.issue("steps", "IP:127.0.0.1"))) as address:
        taken = steps(address, properties)
    assert [(step.name, step.fault) for step in taken] == [("resolve", None), ("connect", None), ("TLS", None)]


@pytest.mark.parametrize(
    ("line", "kind", "detail"),
    [
        (
            "sasl_ssl://k:9/bootstrap: SASL authentication error: Authentication failed (after 31ms in state S)",
            "password",
            "Authentication failed",
        ),
        (
            "sasl_ssl://k:9/bootstrap: Unsupported SASL mechanism: broker's supported mechanisms: SCRAM-SHA-512",
            "mechanism",
            "supported mechanisms: SCRAM-SHA-512",
        ),
        (
            "ssl://k:9/1: SSL handshake failed: ssl/tls alert bad certificate: SSL alert number 42",
            "client_certificate",
            "",
        ),
        ("k:9/bootstrap: Invalid response size 1213486160 (0..1): increase receive.message.max.bytes", "http", ""),
    ],
)
def test_librdkafkas_lines_are_understood(line: str, kind: str, detail: str) -> None:
    """The lines of librdkafka 2.16 lead to the fault, with the address and the broker's own words."""
    fault = fault_in(line)
    assert fault is not None
    assert (fault.kind, fault.address, fault.detail) == (kind, "k:9", detail)


def test_a_connection_that_breaks_later_is_no_missing_login() -> None:
    """A broker that closes at once wants a login; one that closes a connection in use has stopped."""
    line = "k:9/1: Disconnected: connection closed by peer (after {}ms in state UP)"
    at_once, later = fault_in(line.format(3)), fault_in(line.format(30_000))
    assert at_once is not None
    assert (at_once.kind, later) == ("login_missing", None)


def test_the_address_of_a_line_may_be_an_ipv6_one() -> None:
    """A line about an address in brackets belongs to that address, and not to Kafka as a whole."""
    line = "[thrd:[::1]:9092/bootstrap]: [::1]:9092/bootstrap: Connect to ipv6#[::1]:9092 failed: Connection refused"
    assert fault_in(line) == Fault("refused", "[::1]:9092")


def test_addresses_are_read_as_librdkafka_does() -> None:
    """An entry may have a protocol, and may lack the port; IPv6 addresses are in brackets."""
    addresses = addresses_of({"bootstrap.servers": "a:1, SSL://b:2,c,[::1],[::1]:5"})
    assert addresses == ["a:1", "b:2", "c:9092", "[::1]:9092", "[::1]:5"]
