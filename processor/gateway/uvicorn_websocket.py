"""uvicorn's WebSocket with limits of what comes in, and with a `Transport` for the application."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from processor.gateway.transport import PART_BYTES, Transport
from processor.subscriptions.request.turn import TURN_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from websockets.frames import Frame

LOGON_BYTES_MAX: Final = 64 * 1024
"""Largest message of a WebSocket without an identity, within a part: it holds a token, as the head of a request does.
"""


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
