"""uvicorn's protocols with limits, and with a `Transport` for the application: the only user of uvicorn's inside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from processor.gateway.problems import problem
from processor.subscriptions.request.turn import TURN_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from websockets.frames import Frame

HEAD_TIMEOUT_S: Final = 10.0
"""Longest time from a connection, or from the response before, to the end of a request's head."""
HEAD_BYTES_MAX: Final = 64 * 1024
"""Largest head of a request; also the most that comes behind its body, or between two parts of it, such as trailers."""
_FIELD_BYTES: Final = 32
"""What a field of a head counts beyond its text, as in HTTP/2 (RFC 9113, 6.5.2): each is several objects."""
PART_BYTES: Final = 4096
"""What is parsed at a time of the bytes that have come, before a limit is looked at again: 700 empty frames."""
PIPELINE_MAX: Final = 100
"""Requests that come on a connection before the one in front of them is answered."""
LOGON_BYTES_MAX: Final = 64 * 1024
"""Largest message of a WebSocket without an identity, within a part: it holds a token, as the head of a request does.
"""
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


class Transport:
    """The calls on a connection for which ASGI has no message.

    ::

        uvicorn's protocols ── scope["extensions"][Transport.EXTENSION] ──▶ Transport.of(scope): application, websocket

    A WebSocket's client (`websocket.py`) makes a `FrameSender` of it, which its session calls.
    """

    EXTENSION: ClassVar[str] = "sowstream.transport"
    """The key of the extensions of an ASGI scope."""

    __slots__ = ("abort", "admit", "write_frame")

    def __init__(
        self,
        abort: Callable[[], None],
        write_frame: Callable[[Callable[[], bytes | None]], bool] | None = None,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self.abort: Final = abort
        """Closes the connection without waiting for the client."""
        self.write_frame: Final = write_frame
        """Writes the bytes of the next frame at once; returns False, without asking for it, if the client does not take
        it. None: frames are sent as messages of ASGI."""
        self.admit: Final = admit
        """Lets a client that has an identity now send messages of the size that the settings allow."""

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> Transport | None:
        """The transport of an ASGI scope; None: another server serves it."""
        transport: Transport | None = scope.get("extensions", {}).get(cls.EXTENSION)
        return transport


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


class AbortableWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which the application can close without waiting for a client that takes nothing.

    What has come is read until a message waits for the application, or others need a turn; meanwhile nothing more
    comes.
    """

    is_served = False
    """True if the application has ended."""
    _is_admitted = False
    _unread = b""
    _pong = b""  # It waits until the client takes something.

    def data_received(self, data: bytes) -> None:
        """Take the next bytes."""
        self._unread += data
        self._read_on()

    def _read_on(self) -> None:
        until_s = self.loop.time() + TURN_S
        unread, begin = self._unread, 0
        while begin < len(unread) and not self.read_paused and not self._is_over():
            try:
                super().data_received(unread[begin : begin + PART_BYTES])
            except Exception:
                self._unread = b""
                self.transport.abort()  # As the event loop does, which does not call this function each time.
                raise
            begin += PART_BYTES
            held = len(self.conn.reader.buffer) + sum(map(len, self.frames))  # Of a message that is not complete.
            if held > LOGON_BYTES_MAX and not self._is_admitted and not self.transport.is_closing():
                self.conn.fail(1009, "a message before the logon is too large")
                self.handle_parser_exception()
            if self.conn.handshake_exc is not None and not self.handshake_initiated:  # uvicorn would leave it open.
                self.transport.write(b"".join(self.conn.data_to_send()))
                self.transport.close()
            if self.loop.time() > until_s:
                break
        self._unread = b"" if self._is_over() else unread[begin:]
        if self.transport.is_closing():
            return
        if self._unread:
            self.transport.pause_reading()
            if not self.read_paused:
                self.loop.call_soon(self._read_on)
        elif not self.read_paused:
            self.transport.resume_reading()

    def _is_over(self) -> bool:
        """Return whether unread bytes are dropped: the connection was closed, and not by the loss of its client."""
        return self.transport.is_closing() and self.conn.state is not State.OPEN

    async def receive(self) -> Any:
        """Take the next message for the application; if there is no other one, reading goes on.

        Before its client has an identity, reading goes on when the application has carried out the message.
        """
        self._read_if_empty()
        message = await self.queue.get()
        while self.disconnected and self._unread and self.queue.empty():  # It is the end, which comes behind the rest.
            self.read_paused = False
            self._read_on()
            self.queue.put_nowait(message)
            await asyncio.sleep(0)  # Others have a turn.
            message = await self.queue.get()
        if self._is_admitted:
            self._read_if_empty()
        return message

    def _read_if_empty(self) -> None:
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._read_on()

    def handle_connect(self, event: Request) -> None:
        """Begin to serve a WebSocket."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            write = None if self.conn.extensions else self.write_frame  # An extension would have to encode it.
            scope: Any = self.scope
            scope["extensions"][Transport.EXTENSION] = Transport(self.transport.abort, write, self._admit)

    def _admit(self) -> None:
        self._is_admitted = True

    def handle_cont(self, event: Frame) -> None:
        """Take a fragment: the parts of a message are one object, however small and many they are."""
        frames: Any = self.frames
        if type(frames[0]) is not bytearray:
            frames[0] = bytearray(frames[0])
        frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer a ping; while the client takes nothing, the last one alone, and when it does (RFC 6455, 5.5.3)."""
        output = self.conn.data_to_send()
        if self.transport.is_closing():
            return
        if self.writable.is_set() or self.conn.close_rcvd is not None:
            self.transport.write(b"".join(output))
        elif output:
            self._pong = output[-1]

    def handle_parser_exception(self) -> None:
        """End a connection with a wrong frame; uvicorn cannot before the application has accepted it."""
        if self.conn.close_sent is None or self.transport.is_closing():
            self.transport.abort()
        else:
            super().handle_parser_exception()

    def resume_writing(self) -> None:
        """Go on: the client takes something."""
        super().resume_writing()
        pong, self._pong = self._pong, b""
        if pong and not self.close_sent and not self.transport.is_closing():
            self.transport.write(pong)

    def write_frame(self, next_frame: Callable[[], bytes | None]) -> bool:
        """Write the bytes of the next frame; returns False, without asking for it, if the client does not take it."""
        if not self.writable.is_set() or self.disconnected or self.close_sent or not self.handshake_complete:
            return False
        frame = next_frame()
        if frame is not None:
            self.transport.write(frame)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._release()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """End the application's part."""
        super().on_task_complete(task)
        self.is_served = True
        self._release()

    def _release(self) -> None:
        """Break the reference cycles of a connection that has ended: the collector, which pauses all, need not run."""
        if self.disconnected and self.is_served:
            self.scope["extensions"].clear()
            self.conn.parser.close()
            self.conn.parser_exc = None

    async def send(self, event: Any) -> None:
        """Send a message of the application; after a refusal the handshake is over, which uvicorn does not note."""
        await super().send(event)
        if event["type"] == "websocket.http.response.body":
            self.handshake_complete = True
        elif event["type"] == "websocket.close":
            self._read_on()  # The client's answer to it may have come behind other frames.


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
