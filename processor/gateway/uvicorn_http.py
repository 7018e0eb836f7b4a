"""uvicorn's HTTP with limits of what comes in, and the connections that wait for a request or a TLS handshake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from processor.gateway.problems import problem
from processor.gateway.transport import PART_BYTES, Transport

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

HEAD_TIMEOUT_S: Final = 10.0
"""Longest time from a connection, or from the response before, to the end of a request's head."""
HEAD_BYTES_MAX: Final = 64 * 1024
"""Largest head of a request; also the most that comes behind its body, or between two parts of it, such as trailers."""
_FIELD_BYTES: Final = 32
"""What a field of a head counts beyond its text, as in HTTP/2 (RFC 9113, 6.5.2): each is several objects."""
PIPELINE_MAX: Final = 100
"""Requests that come on a connection before the one in front of them is answered."""
REST_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is read, and thrown away, of a request that was answered before its end: its sender often reads nothing before
it has sent all, and would get no answer from a connection that is reset."""
SILENT_MAX: Final = 500
"""Connections that wait for a request for longer than a moment; the one that has waited longest makes room."""
BURST_MAX: Final = 2_000
"""Connections that wait for a request, new ones too: all clients of a gateway may come back at the same time."""
_MOMENT_S: Final = 1.0


_silent: Final[dict[GuardedHttp | Handshake, float]] = {}
"""The connections of this process that wait for a request, and since when; the one that has waited longest first."""


def _make_room(now_s: float) -> None:
    """End the connection that has waited longest, if too many wait for a request."""
    if len(_silent) > SILENT_MAX:
        oldest, since_s = next(iter(_silent.items()))
        if len(_silent) > BURST_MAX or now_s - since_s > _MOMENT_S:
            oldest.end()


class GuardedHttp(HttpToolsProtocol):
    """An HTTP connection that ends when the head of a request, or the rest after its answer, is too slow or too large.

    ::

        head ── on_headers_complete ──▶ body and answer ── on_response_complete ──▶ rest of the body, if any ──▶ head …
    """

    _timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None  # The request that is answered; `cycle` is the one that came last.
    _bytes = 0  # Since the begin of a head, or the last part of a body.
    _rest_bytes = 0  # Since a request was answered before its end.
    _is_head = True  # Until a head is complete.
    _is_rest = False  # The request was answered before its end.
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request; the connection that has waited longest makes room if there are too many."""
        super().connection_made(transport)
        self._await()
        _make_room(self.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and end the request that is answered: uvicorn ends the one that came last."""
        self._stop_timer()
        super().connection_lost(exc)
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Take the next bytes, part by part, and end the connection if there are too many of them."""
        for begin in range(0, len(data), PART_BYTES):
            part = data[begin : begin + PART_BYTES]
            self._bytes += len(part)
            self._rest_bytes += len(part)
            if not self._is_refused:
                self._parse(part)
            parser: Any = self.parser  # None: it is a WebSocket's now.
            if parser is None or self.transport.is_closing():
                return
            if (self._is_rest and self._rest_bytes > REST_BYTES_MAX) or len(self.pipeline) > PIPELINE_MAX:
                self.transport.abort()
                return
            if self._bytes > HEAD_BYTES_MAX and not self._is_refused:
                self._refuse()

    def _parse(self, part: bytes) -> None:
        """Parse bytes as uvicorn does; a head that offers another protocol is parsed again without the offer."""
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(part)
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            except httptools.HttpParserUpgrade as upgrade:
                if self._is_offer():
                    part = self._head_without_offer() + part[upgrade.args[0] :]
                    self.parser = httptools.HttpRequestParser(self)  # The former one reads no body.
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                    continue
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
            return

    def _is_offer(self) -> bool:
        """Return whether a head offers a protocol other than WebSocket, such as h2c: it is ignored (RFC 9110, 7.8)."""
        is_upgrade: bool = self.parser.should_upgrade()
        return is_upgrade and self.parser.get_method() != b"CONNECT" and not self._should_upgrade()

    def _head_without_offer(self) -> bytes:
        line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join([line, *fields, b"", b""])

    def handle_websocket_upgrade(self) -> None:
        """Give the connection to a WebSocket, which ends it if a request on it is not answered yet.

        The parser, which refers to this object, ends.
        """
        cycle: Any = self.cycle  # None: no request came before.
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()
            return
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]

    def on_message_begin(self) -> None:
        """Begin a request; the application can close its connection without waiting for the client."""
        super().on_message_begin()
        scope: Any = self.scope
        scope["extensions"] = {Transport.EXTENSION: Transport(self.transport.abort)}
        self._bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; those behind the body are ignored."""
        self._bytes += _FIELD_BYTES
        if self._is_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the wait for the head of a request."""
        if self._is_offer():
            return
        self._stop_timer()
        self._is_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next request if this one was answered before its end."""
        if self._is_offer():
            return
        super().on_message_complete()
        self._is_head, self._bytes = True, 0
        if self._is_rest:
            self._await()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:  # Otherwise the next one is here.
            self._await(is_rest=self.cycle.more_body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _refuse(self) -> None:
        """End a connection with too many bytes in a head, between two parts of a body, or behind it."""
        cycle: Any = self.cycle
        if self._is_head and (cycle is None or cycle.response_complete):
            self._refuse_head()
        else:
            self.transport.abort()

    def _refuse_head(self) -> None:
        """Answer a request whose head is too large; what follows is not read as HTTP."""
        body = problem(431, f"the head of a request has at most {HEAD_BYTES_MAX} bytes").body
        head = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/problem+json\r\n"
        self._is_refused = True
        self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._await(is_rest=True)

    def _await(self, *, is_rest: bool = False) -> None:
        """Wait for the head of a request, or for the rest of one that was answered; neither may take long."""
        self._stop_timer()
        self._is_rest, self._rest_bytes = is_rest, 0
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self.end)
        _silent[self] = self.loop.time()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        _silent.pop(self, None)

    def end(self) -> None:
        """Close a connection that has waited for too long."""
        self._stop_timer()
        if self.transport is not None:
            self.transport.abort()


class Handshake:
    """A connection that makes its TLS handshake, and counts among those that wait for a request."""

    def __init__(self, connection: socket.socket, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        self._socket = connection
        self._task = loop.create_task(self._run(make, tls))
        _silent[self] = loop.time()
        _make_room(loop.time())

    async def _run(self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(make, self._socket, ssl=tls, ssl_handshake_timeout=HEAD_TIMEOUT_S)
        except OSError:
            pass  # It was no TLS, or came too late.
        finally:
            _silent.pop(self, None)

    def end(self) -> None:
        """Close the connection."""
        _silent.pop(self, None)
        with contextlib.suppress(OSError):  # The client is gone.
            self._socket.shutdown(socket.SHUT_RDWR)
