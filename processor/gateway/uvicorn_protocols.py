"""uvicorn's protocols with limits, and with a `Transport` for the application: the only user of uvicorn's inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from processor.gateway.problems import problem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

HEAD_TIMEOUT_S: Final = 10.0
"""Longest time from a connection, or from the response before, to the end of a request's head."""
HEAD_BYTES_MAX: Final = 64 * 1024
"""Largest head of a request."""
REST_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is read, and thrown away, of a request that was answered before its end: its sender often reads nothing before
it has sent all, and would get no answer from a connection that is reset."""
SILENT_MAX: Final = 500
"""Connections that wait for a request for longer than a moment; the one that has waited longest makes room."""
BURST_MAX: Final = 2_000
"""Connections that wait for a request, new ones too: all clients of a gateway may come back at the same time."""
_MOMENT_S: Final = 1.0


_silent: Final[dict[GuardedHttp, float]] = {}
"""The connections of this process that wait for a request, and since when; the one that has waited longest first."""


class Transport:
    """The calls on a connection for which ASGI has no message.

    ::

        uvicorn's protocols ── scope["extensions"][Transport.EXTENSION] ──▶ Transport.of(scope): application, websocket

    A WebSocket's client (`websocket.py`) makes a `FrameSender` of it, which its session calls.
    """

    EXTENSION: ClassVar[str] = "sowstream.transport"
    """The key of the extensions of an ASGI scope."""

    __slots__ = ("abort", "write_frame")

    def __init__(
        self, abort: Callable[[], None], write_frame: Callable[[Callable[[], bytes | None]], bool] | None = None
    ) -> None:
        self.abort: Final = abort
        """Closes the connection without waiting for the client."""
        self.write_frame: Final = write_frame
        """Writes the bytes of the next frame at once; returns False, without asking for it, if the client does not take
        it. None: frames are sent as messages of ASGI."""

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
    _bytes_max: int | None = HEAD_BYTES_MAX  # None: the application reads as much as it wants.
    _bytes = 0
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request; the connection that has waited longest makes room if there are too many."""
        super().connection_made(transport)
        self._await(HEAD_BYTES_MAX)
        if len(_silent) > SILENT_MAX:
            oldest, since_s = next(iter(_silent.items()))
            if len(_silent) > BURST_MAX or self.loop.time() - since_s > _MOMENT_S:
                oldest.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take the next bytes, and end the connection if there are too many of them."""
        self._bytes += len(data)
        if not self._is_refused:
            super().data_received(data)
        if self._bytes_max is None or self._bytes <= self._bytes_max:
            return
        cycle: Any = self.cycle  # None before the first request.
        if self._bytes_max == HEAD_BYTES_MAX and (cycle is None or cycle.response_complete):
            self._refuse_head()
        else:
            self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        """Give the connection to a WebSocket; the parser, which refers to this object, ends."""
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]

    def on_message_begin(self) -> None:
        """Begin a request; the application can close its connection without waiting for the client."""
        super().on_message_begin()
        scope: Any = self.scope
        scope["extensions"] = {Transport.EXTENSION: Transport(self.transport.abort)}
        if self._bytes_max is None:  # The request before it is not answered yet.
            self._bytes, self._bytes_max = 0, HEAD_BYTES_MAX

    def on_headers_complete(self) -> None:
        """End the wait for the head of a request."""
        self._stop_timer()
        self._bytes_max = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next request if this one was answered before its end."""
        super().on_message_complete()
        if self._bytes_max == REST_BYTES_MAX:
            self._await(HEAD_BYTES_MAX)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:  # Otherwise the next one is here.
            self._await(REST_BYTES_MAX if self.cycle.more_body else HEAD_BYTES_MAX)

    def _refuse_head(self) -> None:
        """Answer a request whose head is too large; what follows is not read as HTTP."""
        body = problem(431, f"the head of a request has at most {HEAD_BYTES_MAX} bytes").body
        head = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/problem+json\r\n"
        self._is_refused = True
        self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._await(REST_BYTES_MAX)

    def _await(self, bytes_max: int) -> None:
        """Wait for the head of a request, or for what follows one that was answered; neither may take long."""
        self._stop_timer()
        self._bytes, self._bytes_max = 0, bytes_max
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
    """uvicorn's WebSocket, which the application can close without waiting for a client that takes nothing."""

    is_served = False
    """True if the application has ended."""

    def handle_connect(self, event: Request) -> None:
        """Begin to serve a WebSocket."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            write = None if self.conn.extensions else self.write_frame  # An extension would have to encode it.
            scope: Any = self.scope
            scope["extensions"][Transport.EXTENSION] = Transport(self.transport.abort, write)

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
