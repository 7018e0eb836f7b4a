"""The proxy injects faults as the scenarios expect."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Self

import pytest

from processor.trial.broker.server import HOST
from tests.programs.faults.broker.fault import Act, Api, Fault, Way
from tests.programs.faults.broker.ports import quiet_port
from tests.programs.faults.broker.proxy import Proxy
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S = 60.0


class Echo:
    """A broker that answers each request with its API and id, and remembers the requests."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int]] = []
        self.changed = threading.Condition()
        self.server = socket.create_server((HOST, 0))
        self.port: int = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            # Otherwise a thread waiting in `accept` would take one more connection.
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while len(frame := _frame(connection)) >= 8:
                api, _, correlation = struct.unpack_from(">hhi", frame)
                with self.changed:
                    self.got.append((api, correlation))
                    self.changed.notify_all()
                connection.sendall(struct.pack(">iih", 6, correlation, api))

    def await_request(self, api: int, correlation: int) -> None:
        """Wait until a request has arrived."""
        with self.changed:
            assert self.changed.wait_for(lambda: (api, correlation) in self.got, _TIMEOUT_S), self.got


class Caller:
    """A client with one connection."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection((HOST, port), _TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, api: int, correlation: int, body: bytes = b"") -> None:
        """Send a request."""
        self.connection.sendall(struct.pack(">ihhi", 8 + len(body), api, 0, correlation) + body)

    def answer(self, timeout_s: float = _TIMEOUT_S) -> int:
        """The id of the next answer."""
        self.connection.settimeout(timeout_s)
        frame = _frame(self.connection)
        if len(frame) < 4:
            raise EOFError
        return int(struct.unpack_from(">i", frame)[0])

    def ask(self, api: int, correlation: int) -> float:
        """The time until an answer arrives, in s."""
        began_s = time.monotonic()
        self.send(api, correlation)
        assert self.answer() == correlation
        return time.monotonic() - began_s


def ask_on_new_connection(proxy: Proxy, api: int, correlation: int) -> None:
    """Send a request on a new connection, and wait for the answer."""
    with Caller(proxy.port) as caller:
        caller.ask(api, correlation)


def _frame(connection: socket.socket) -> bytes:
    """The next frame without its size; shorter where the connection ends."""
    size = _read(connection, 4)
    return _read(connection, int.from_bytes(size, "big")) if len(size) == 4 else b""


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size and (more := connection.recv(size - len(content))):
        content += more
    return content


@pytest.fixture
def broker() -> Iterator[Echo]:
    """A broker that answers."""
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(broker: Echo) -> Iterator[Proxy]:
    """The proxy in front of the broker."""
    with Proxy(quiet_port(), broker.port) as instance:
        yield instance


@pytest.fixture
def caller(proxy: Proxy) -> Iterator[Caller]:
    """A client of the proxy."""
    with Caller(proxy.port) as instance:
        yield instance


def test_requests_and_answers_pass(proxy: Proxy, caller: Caller) -> None:
    """Small and large requests and answers pass, and the proxy counts requests by API."""
    caller.send(Api.PRODUCE, 1, bytes(3_000_000))
    assert caller.answer() == 1
    caller.ask(Api.END_TXN, 2)
    assert proxy.requests == {Api.PRODUCE: 1, Api.END_TXN: 1}


@pytest.mark.parametrize("way", Way)
def test_one_api_is_delayed_and_the_others_are_not(proxy: Proxy, caller: Caller, way: Way) -> None:
    """A fault delays as many frames of one API as were requested, and none of the others."""
    fault = proxy.inject(Fault(Api.END_TXN, way, Act.DELAY, delay_s=0.2))
    until(lambda: caller.ask(Api.PRODUCE, 1) < 0.2, "an answer that is not delayed; a busy machine may be late itself")
    assert not fault.done.is_set()
    assert caller.ask(Api.END_TXN, 2) >= 0.2
    assert fault.done.is_set()
    until(lambda: caller.ask(Api.END_TXN, 3) < 0.2, "an answer that is not delayed")


def test_a_lost_request_never_arrives(proxy: Proxy, broker: Echo, caller: Caller) -> None:
    """A lost request never reaches the broker, and the connection remains open."""
    proxy.inject(Fault(Api.END_TXN, Way.REQUEST, Act.LOSE))
    caller.send(Api.END_TXN, 1)
    caller.ask(Api.END_TXN, 2)
    assert broker.got == [(Api.END_TXN, 2)]


def test_the_request_of_a_lost_answer_has_arrived(proxy: Proxy, broker: Echo, caller: Caller) -> None:
    """If an answer is lost, the request has arrived, so a client that repeats it has sent it twice."""
    proxy.inject(Fault(Api.TXN_OFFSET_COMMIT, Way.ANSWER, Act.LOSE))
    caller.send(Api.TXN_OFFSET_COMMIT, 1)
    caller.ask(Api.TXN_OFFSET_COMMIT, 2)
    assert broker.got == [(Api.TXN_OFFSET_COMMIT, 1), (Api.TXN_OFFSET_COMMIT, 2)]


@pytest.mark.parametrize(("way", "arrives"), [(Way.REQUEST, False), (Way.ANSWER, True)])
def test_a_reset_ends_the_connection(proxy: Proxy, broker: Echo, caller: Caller, way: Way, *, arrives: bool) -> None:
    """A reset ends the connection, before the request arrives or after it."""
    proxy.inject(Fault(Api.END_TXN, way, Act.RESET))
    caller.send(Api.END_TXN, 1)
    with pytest.raises(ConnectionResetError):
        caller.answer()
    assert broker.got == ([(Api.END_TXN, 1)] if arrives else [])
    ask_on_new_connection(proxy, Api.END_TXN, 2)


def test_a_late_request_arrives_after_its_client_has_asked_again(proxy: Proxy, broker: Echo, caller: Caller) -> None:
    """A delayed request arrives after its client has been reset and has repeated it on another connection."""
    proxy.inject(Fault(Api.END_TXN, Way.REQUEST, Act.LATE, delay_s=4.0))
    caller.send(Api.END_TXN, 1)
    with pytest.raises(ConnectionResetError):
        caller.answer()
    ask_on_new_connection(proxy, Api.END_TXN, 2)
    broker.await_request(Api.END_TXN, 1)
    assert broker.got == [(Api.END_TXN, 2), (Api.END_TXN, 1)]


def test_a_stalled_network_delivers_the_held_frames(proxy: Proxy, broker: Echo, caller: Caller) -> None:
    """A stalled network accepts connections without serving them, and later delivers all frames it has held."""
    caller.ask(Api.PRODUCE, 1)
    proxy.stall()
    caller.send(Api.PRODUCE, 2)
    with Caller(proxy.port) as other:
        other.send(Api.PRODUCE, 3)
        with pytest.raises(TimeoutError):
            other.answer(0.1)
    assert broker.got == [(Api.PRODUCE, 1)]
    proxy.flow()
    assert caller.answer() == 2
    broker.await_request(Api.PRODUCE, 3)


def test_a_refusing_proxy_accepts_no_connection_until_it_admits_them(proxy: Proxy, caller: Caller) -> None:
    """A refusing proxy resets the connected clients, accepts no new ones, and admits them again later."""
    caller.ask(Api.PRODUCE, 1)
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        caller.answer()
    with pytest.raises(ConnectionRefusedError):
        ask_on_new_connection(proxy, Api.PRODUCE, 2)
    proxy.admit()
    ask_on_new_connection(proxy, Api.PRODUCE, 2)


def test_a_slow_network_delays_frames_and_keeps_their_rate(proxy: Proxy, caller: Caller) -> None:
    """A slow network delays frames, but keeps their rate: a hundred requests sent at once take one round trip."""
    proxy.delay_s = 0.5
    began_s = time.monotonic()
    for correlation in range(100):
        caller.send(Api.PRODUCE, correlation)
    assert [caller.answer() for _ in range(100)] == list(range(100))
    assert 1.0 <= time.monotonic() - began_s < 60.0  # A hundred round trips take a hundred seconds.


def test_a_broker_that_is_away_looks_as_it_would_without_the_proxy(proxy: Proxy, broker: Echo) -> None:
    """A client learns at once, through the proxy as without it, that no broker listens."""
    broker.close()
    with pytest.raises((ConnectionResetError, EOFError)):
        ask_on_new_connection(proxy, Api.PRODUCE, 1)
