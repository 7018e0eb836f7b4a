"""Serves pages over HTTP to probes and Prometheus, on one thread, within limits that no client can exceed.

A connection is for one request::

    reading ──request──▶ waiting ──page──▶ sending ──all is sent──▶ draining ──the client closes──▶ closed

`draining` discards the rest of a request, as a socket that is closed with unread bytes resets the connection, and the
client loses the answer. A request has `REQUEST_S`, and so has its answer; `waiting` ends when its turn comes, or when
the client closes the connection. A new connection beyond `CONNECTIONS_MAX`
closes an old one, so that probes are answered while other clients are slow.
"""

from __future__ import annotations

import logging
import math
import re
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from prometheus_client import REGISTRY, make_wsgi_app

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

CONNECTIONS_MAX: Final = 16
"""Most connections at once. One more closes the oldest one of the address that has the most."""
REQUEST_S: Final = 5.0
"""Longest time for the whole request, and then for the whole answer."""
REQUEST_BYTES_MAX: Final = 16 * 1024
"""Longest request line with headers; also the most that is discarded after it."""

_TEXT: Final = "text/plain; charset=utf-8"
_LINE: Final = re.compile(rb"([A-Z]+) (?:http://[!-.0-~]+)?(/[!-~]*) HTTP/1\.[01]")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_END_OF_LINE: Final = re.compile(rb"\r?\n")
_END_OF_HEADERS: Final = re.compile(rb"\r?\n\r?\n")
_BACKLOG: Final = 1024
"""Connections that wait in the system, so that a probe waits for the loop, and not a second for its next attempt."""
_ACCEPTED_MAX: Final = CONNECTIONS_MAX // 2
"""Most connections that are accepted in a turn of the loop: each is looked at once before others can close it."""
_REST: Final = 4
"""How many times as long as a page took, the next one waits: the processor is there for other work."""
_RETRY_S: Final = 0.1
_LOG_INTERVAL_S: Final = 60.0

log = logging.getLogger("sowstream.pages")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page."""

    path: str
    """The path, decoded."""
    query: str
    """The text after the question mark, as it was sent."""
    headers: Mapping[str, str]
    """The headers, by name in small letters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: HTTPStatus
    """The status."""
    body: bytes
    """The page."""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", _TEXT),)
    """The headers, without those of the connection."""


Page: TypeAlias = Callable[[PageRequest], Answer]
"""A page: computes the answer to a request, on the server's thread, so without waiting."""


def metrics_page(registry: CollectorRegistry = REGISTRY) -> Page:
    """Create the page of a registry's metrics, in the format and encoding that the client accepts."""
    application = make_wsgi_app(registry)

    def page(request: PageRequest) -> Answer:
        headers: list[tuple[str, str]] = []
        environment = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/metrics",
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.headers.get("accept"),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding"),
        }
        body = b"".join(application(environment, lambda _, its_headers: headers.extend(its_headers)))
        return Answer(HTTPStatus.OK, body, tuple(headers))

    return page


def listening_socket(port: int, host: str) -> socket.socket:
    """Create the socket of a server.

    Args:
        port: the port; 0: any free one.
        host: the address to listen on; empty: every address, of IPv6 too where there is IPv6.

    Raises:
        OSError: the address cannot be used.
        OverflowError: there is no such port.
    """
    has_both = socket.has_dualstack_ipv6()
    is_ipv6 = ":" in host or (not host and has_both)
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
        backlog=_BACKLOG,
        dualstack_ipv6=is_ipv6 and has_both,
    )


class PageServer:
    """Serves pages on a thread of its own, until it is closed or the process ends."""

    def __init__(self, port: int, pages: Mapping[str, Page], probes: Mapping[str, Page], *, host: str = "") -> None:
        """Listen, and start the thread.

        Args:
            port: see `listening_socket`.
            pages: pages that take time, such as `/metrics`, by path: one is made when no probe waits, and then none for
                four times as long as it took.
            probes: pages that are made at once, such as `/livez`, by path.
            host: see `listening_socket`.

        Raises:
            OSError: the address cannot be used.
            OverflowError: there is no such port.
        """
        self._listening = listening_socket(port, host)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._pages, self._probes = pages, probes
        self._connections: list[_Connection] = []
        self._page_s = 0.0
        self._logged_s = -_LOG_INTERVAL_S
        # Without calls to the system for each socket: after each, the thread waits for Python's lock.
        self._selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and all connections."""
        self._stop.close()
        self._thread.join()

    def _serve(self) -> None:
        with self._selector, self._listening, self._stopped:
            ready: dict[Any, _Connection | None] = {}
            while self._stopped not in ready:
                for connection in ready.values():
                    if connection is not None:
                        self._advance(connection)
                self._end_late()
                if self._listening not in ready or self._accept():
                    self._answer_waiting()
                ready = {key.fileobj: key.data for key, _ in self._selector.select(self._wait_s())}
            for connection in self._connections:
                connection.socket.close()

    def _wait_s(self) -> float | None:
        """The time until the next deadline, or until the next page may be made; None: there is none."""
        if not self._connections:
            return None
        next_s = min(each.deadline_s for each in self._connections)
        if any(each.request is not None for each in self._connections):
            next_s = min(next_s, self._page_s)
        return max(0.0, next_s - time.monotonic())

    def _accept(self) -> bool:
        """Accept some connections; returns whether these were all: behind others a probe may wait."""
        for _ in range(_ACCEPTED_MAX):
            try:
                accepted, address = self._listening.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                self._log_problem(f"cannot accept a connection: {error.strerror}")
                if self._connections:  # The process has too many open files, and this one is given back.
                    self._end_one()
                else:
                    time.sleep(_RETRY_S)
                return True
            if len(self._connections) == CONNECTIONS_MAX:
                self._end_one()
            accepted.setblocking(False)
            connection = _Connection(accepted, str(address[0]))
            self._connections.append(connection)
            self._selector.register(accepted, selectors.EVENT_READ, connection)
        return False

    def _end_one(self) -> None:
        """Close the oldest connection of the address that has the most, so that no address takes the place of all.

        A probe whose request has arrived meanwhile gets its answer first.
        """
        ((busiest, _),) = Counter(each.host for each in self._connections).most_common(1)
        oldest = next(each for each in self._connections if each.host == busiest)
        self._advance(oldest)
        if oldest in self._connections:
            self._drop(oldest)

    def _advance(self, connection: _Connection) -> None:
        """Receive or send as much as is possible without waiting."""
        try:
            if connection.is_sent or connection.request is not None:
                connection.drain()
            elif connection.answer is not None:
                self._send(connection)
            elif (text := connection.receive()) is not None:
                self._read(connection, text)
        except BlockingIOError:
            return
        except OSError:  # The client is gone.
            self._drop(connection)

    def _read(self, connection: _Connection, text: bytes) -> None:
        """Read a request, and answer it, but for one whose page takes time."""
        request = _request(text)
        connection.has_body = not text.startswith(b"HEAD ")
        if isinstance(request, Answer):
            self._start(connection, request)
        elif request.path in self._pages:
            connection.request, connection.deadline_s = request, math.inf
        else:
            self._start(connection, self._made(self._probes.get(request.path), request))

    def _answer_waiting(self) -> None:
        """Make a page for one connection: the next turn looks first whether a probe has come."""
        start_s = time.monotonic()
        connection = next((each for each in self._connections if each.request is not None), None)
        if connection is None or connection.request is None or start_s < self._page_s:
            return
        answer = self._made(self._pages[connection.request.path], connection.request)
        end_s = time.monotonic()
        self._page_s = end_s + (end_s - start_s) * _REST
        try:
            self._start(connection, answer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)

    def _made(self, page: Page | None, request: PageRequest) -> Answer:
        """The answer of a page; None: there is no such page."""
        if page is None:
            known = ", ".join((*self._pages, *self._probes))
            return Answer(HTTPStatus.NOT_FOUND, f"the pages are {known}\n".encode())
        try:
            return page(request)
        except Exception as error:  # noqa: BLE001 - a page that fails must not end the others
            self._log_problem(f"page {request.path} cannot be made: {type(error).__name__}: {error}")
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _start(self, connection: _Connection, answer: Answer) -> None:
        connection.start(answer)
        self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        connection.send()
        if connection.is_sent:
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _end_late(self) -> None:
        """Close the connections whose time is over."""
        now_s = time.monotonic()
        for connection in [each for each in self._connections if each.deadline_s <= now_s]:
            if connection.answer is None:
                with suppress(OSError):
                    connection.socket.send(_bytes_of(_error(HTTPStatus.REQUEST_TIMEOUT)))
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _log_problem(self, problem: str) -> None:
        """Log a problem, at most one a minute: a client may cause any number."""
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            log.warning(problem)


class _Connection:
    """One connection: what was received, and the part of the answer that is still to be sent."""

    def __init__(self, accepted: socket.socket, host: str) -> None:
        self.socket, self.host = accepted, host
        self.deadline_s = time.monotonic() + REQUEST_S
        self.request: PageRequest | None = None
        """A request that waits for its page."""
        self.has_body = True
        """Whether the answer has its body: not for HEAD."""
        self.answer: memoryview | None = None
        """The rest of the answer, as bytes."""
        self._received = bytearray()
        self._drained = 0

    @property
    def is_sent(self) -> bool:
        """True if the client has the whole answer, or the system that sends it."""
        return self.answer is not None and not self.answer

    def receive(self) -> bytes | None:
        """Receive a part of the request; returns its line and headers when they are complete, or too long.

        Raises:
            BlockingIOError: there is nothing to receive.
            OSError: the client has closed the connection.
        """
        part = self.socket.recv(REQUEST_BYTES_MAX - len(self._received))
        if not part:
            raise ConnectionResetError
        self._received += part
        end = _END_OF_HEADERS.search(self._received)
        if end is None and len(self._received) < REQUEST_BYTES_MAX:
            return None
        return bytes(self._received[: end.start()] if end else self._received)

    def start(self, answer: Answer) -> None:
        """Start an answer: its time begins when it is ready to be sent."""
        self.request, self.answer = None, memoryview(_bytes_of(answer, has_body=self.has_body))
        self.deadline_s = time.monotonic() + REQUEST_S

    def send(self) -> None:
        """Send a part of the answer.

        Raises:
            BlockingIOError: the client does not take more.
            OSError: the client has closed the connection.
        """
        assert self.answer is not None
        self.answer = self.answer[self.socket.send(self.answer) :]
        if not self.answer:
            self.socket.shutdown(socket.SHUT_WR)

    def drain(self) -> None:
        """Discard a part of the bytes behind the request.

        Raises:
            BlockingIOError: nothing follows yet.
            OSError: the client has closed the connection, or sends too much.
        """
        part = self.socket.recv(REQUEST_BYTES_MAX)
        self._drained += len(part)
        if not part or self._drained > REQUEST_BYTES_MAX:
            raise ConnectionResetError


def _request(text: bytes) -> PageRequest | Answer:
    """Read a request, its line and headers; returns the answer to one that is wrong."""
    if len(text) >= REQUEST_BYTES_MAX:
        return _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    first, *lines = _END_OF_LINE.split(text)
    line, headers = _LINE.fullmatch(first), [_HEADER.fullmatch(each) for each in lines]
    if line is None or None in headers:
        return _error(HTTPStatus.BAD_REQUEST)
    if line[1] not in (b"GET", b"HEAD"):
        return _error(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))
    path, _, query = line[2].decode("ascii").partition("?")
    named = {each[1].decode("ascii").lower(): each[2].decode("latin-1").strip() for each in headers if each}
    return PageRequest(unquote(path), query, named)


def _error(status: HTTPStatus, *headers: tuple[str, str]) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode(), (("Content-Type", _TEXT), *headers))


def _bytes_of(answer: Answer, *, has_body: bool = True) -> bytes:
    """The bytes of an answer, with the body or, as HEAD asks, without."""
    headers = (*answer.headers, ("Content-Length", str(len(answer.body))), ("Connection", "close"))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    start = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n{lines}\r\n".encode("latin-1")
    return start + answer.body if has_body else start
