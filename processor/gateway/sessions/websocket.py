"""The WebSocket endpoint `/v1/ws`: an ASGI application that carries the frames of a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from processor.errors import FilterError, SowstreamError, VersionConflict
from processor.gateway.access.identity import AccessDenied
from processor.gateway.access.origins import is_allowed
from processor.gateway.publishing import describe
from processor.gateway.sessions.client_subscription import reason_of
from processor.gateway.sessions.requests import PUBLISHING, SUBSCRIBING, BadRequest, Request, read_requests, request_of
from processor.gateway.sessions.session import Session

if TYPE_CHECKING:
    from processor.gateway.gateway import Gateway
    from processor.wire.ack import Ack

log = structlog.stdlib.get_logger("sowstream.gateway")

PROTOCOL: Final = "sowstream.v1"
"""The subprotocol."""
ABORT: Final = "sowstream.abort"
"""The extension of an ASGI scope that closes a connection without waiting for the client."""
WRITE: Final = "sowstream.write"
"""The extension that writes the bytes of a frame at once, if the client takes them; returns False if it does not."""
LOGON_TIMEOUT_S: Final = 10.0
"""A client that has not logged on by then is closed."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WebSocketEndpoint:
    """Accepts WebSockets, and runs a session for each."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket until it ends."""
        gateway = self._gateway
        if (await receive())["type"] != "websocket.connect":
            return
        refused = self._refusal(scope)
        if refused is not None:
            gateway.metrics.refused_connections += 1
            await _refuse(scope, send, refused)
            return
        await send({"type": "websocket.accept", "subprotocol": PROTOCOL})
        extensions = scope.get("extensions", {})
        await _Client(gateway, receive, send, extensions.get(ABORT), extensions.get(WRITE)).run()

    def _refusal(self, scope: Scope) -> int | None:
        """The HTTP status with which an upgrade is refused; None: it is accepted."""
        gateway = self._gateway
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not is_allowed(headers.get("origin"), headers.get("host"), gateway.settings.origins):
            return 403
        if PROTOCOL not in scope.get("subprotocols", ()):
            return 400
        return 503 if len(gateway.sessions) >= gateway.limits.connections else None


class _Client:
    """One accepted WebSocket."""

    def __init__(
        self,
        gateway: Gateway,
        receive: Receive,
        send: Send,
        abort: Callable[[], None] | None,
        write: Callable[[Callable[[], bytes | None]], bool] | None,
    ) -> None:
        self._gateway = gateway
        self._abort_transport = abort
        self._receive = receive
        self._send = send
        self._is_woken = False
        self._sender: asyncio.Task[None] | None = None  # While it has work: few of many clients need one at a time.
        self._session = Session(gateway, self._wake, self._abort)
        self._write = write
        self._session.flush = self._flush
        self._allowance = float(gateway.limits.publishes_per_s)
        self._allowance_s = time.monotonic()

    async def run(self) -> None:
        gateway, session = self._gateway, self._session
        gateway.sessions.add(session)
        if not gateway.authenticator.is_required:
            session.identity = await gateway.verify(None)
        try:
            await self._receive_frames()
        finally:
            gateway.sessions.discard(session)
            gateway.memory.note_closed()
            gateway.metrics.messages += session.sent
            session.end()
            # Without a reference back: a task that is cancelled before it has begun would keep this client in a cycle.
            sender, self._sender = self._sender, None
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    async def _receive_frames(self) -> None:
        while True:
            if self._session.identity is None and not self._session.is_closing:
                try:
                    async with asyncio.timeout(LOGON_TIMEOUT_S):
                        event = await self._receive()
                except TimeoutError:
                    self._session.close(4401, "no logon came")
                    continue
            else:
                event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            text = event.get("text")
            if text is None:
                self._session.close(1003, "frames are JSON texts")
                continue
            if len(text) > self._gateway.limits.message_bytes:
                self._session.close(1009, "the frame is too large")
                continue
            await self._handle(text)

    async def _handle(self, text: str) -> None:
        session = self._session
        try:
            trees = read_requests(text)
        except BadRequest as error:
            session.refuse("", error.reason, str(error))
            return
        for tree in trees:
            if session.is_closing:
                return
            request_id = ""
            try:
                request = request_of(tree)
                request_id = request.id
                await self._carry_out(request)
            except BadRequest as error:
                session.refuse(request_id or error.request_id, error.reason, str(error))
            except SowstreamError as error:
                place = {"line": error.line, "column": error.column} if isinstance(error, FilterError) else {}
                session.refuse(request_id, reason_of(error), str(error), **place)
            except Exception:
                log.exception("a request failed", op=tree.get("op") if type(tree) is dict else None)
                session.refuse(request_id, "internal", "the request failed; the gateway's log has the details")

    async def _carry_out(self, request: Request) -> None:
        session = self._session
        if request.op == "logon":
            await self._log_on(request)
        elif session.identity is None:
            raise BadRequest("logon_required", "send logon first")
        elif request.op in SUBSCRIBING:
            await session.subscribe(request)
        elif request.op in PUBLISHING:
            await self._publish(request)
        elif request.op == "replace":
            await session.replace(request)
        elif request.op == "unsubscribe":
            session.unsubscribe(request)
        else:
            session.succeed(request.id)

    async def _log_on(self, request: Request) -> None:
        gateway, session = self._gateway, self._session
        try:
            identity = await gateway.verify(request.text("token"))
        except AccessDenied as error:
            gateway.metrics.refused_logons += 1
            session.refuse(request.id, "logon_failed", str(error))
            if session.identity is None:
                session.close(4401, "the logon failed")
            return
        known = session.identity
        if known is not None and known.user != identity.user:
            raise BadRequest("bad_request", "the identity of a connection cannot change; connect again")
        session.identity = identity
        session.client = request.text("client") or session.client or "browser"
        session.succeed(request.id, user=identity.user)
        if known is not None and known.roles != identity.roles:
            session.apply_rights()

    async def _publish(self, request: Request) -> None:
        session = self._session
        now_s = time.monotonic()
        rate = self._gateway.limits.publishes_per_s
        self._allowance = min(float(rate), self._allowance + (now_s - self._allowance_s) * rate)
        self._allowance_s = now_s
        if self._allowance < 1:
            raise BadRequest("too_many", f"{rate} publishes per second are the limit of a connection")
        self._allowance -= 1
        assert session.identity is not None

        def answer(ack_type: str | None, ack: Ack | None, error: Exception | None) -> None:
            if error is not None:
                session.refuse(request.id, *describe(error))
            elif ack is None:
                session.succeed(request.id)
            elif ack.status == "success":
                more = {} if ack.records_deleted is None else {"records_deleted": ack.records_deleted}
                session.succeed(request.id, ack=ack_type, key=ack.sow_key, detail=ack.reason, **more)
            else:
                reason, _, detail = (ack.reason or "").partition(":")
                more = {} if ack.version is None else {"version": ack.version}
                session.refuse(request.id, reason, detail.strip(), ack=ack_type, key=ack.sow_key, **more)

        try:
            await self._gateway.publishing.publish(
                session.identity,
                request.op,
                request.required("topic"),
                request.fields,
                client=session.client,
                on_answer=answer,
            )
        except SowstreamError as error:
            reason, detail = describe(error)
            more = {"version": error.version} if isinstance(error, VersionConflict) else {}
            session.refuse(request.id, reason, detail, ack="processed", **more)

    def _wake(self) -> None:
        """Let what waits be sent."""
        self._is_woken = True
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_frames())

    async def _send_frames(self) -> None:
        """Send what waits, and end."""
        session, metrics = self._session, self._gateway.metrics
        try:
            while self._is_woken:
                self._is_woken = False
                while (frame := session.take_frame()) is not None:
                    session.sending_since_s = time.monotonic()
                    await self._send({"type": "websocket.send", "text": frame})
                    session.sending_since_s = None
                    metrics.frames += 1
                    metrics.sent_bytes += len(frame)
                    if not session.is_closing and session.is_waiting:
                        break  # More waits: the next tick takes it, so that others have their turn.
                if session.is_closing and not session.has_waiting:
                    await self._close()
                    return
        except Exception:
            if session.sending_since_s is None:  # Otherwise the client is gone.
                log.exception("a session failed, and ends")
                session.abort(1011, "internal error")
        finally:
            self._sender = None

    def _flush(self) -> None:
        """Send a frame at once if nothing is in the way; otherwise the sender does it when it can."""
        session = self._session
        if self._write is None or session.is_closing or self._sender is not None:
            self._wake()
            return
        try:
            if not self._write(self._next_frame):
                self._wake()
        except Exception:
            log.exception("a session failed, and ends")
            session.abort(1011, "internal error")

    def _next_frame(self) -> bytes | None:
        frame = self._session.take_frame()
        if self._session.is_closing:
            self._wake()
        if frame is None:
            return None
        metrics = self._gateway.metrics
        metrics.frames += 1
        metrics.sent_bytes += len(frame)
        return self._gateway.encoder.encoded(frame)

    def _abort(self) -> None:
        """Close a client that does not take its frame."""
        if self._abort_transport is not None:
            self._abort_transport()

    async def _close(self) -> None:
        session = self._session
        try:
            await self._send({"type": "websocket.close", "code": session.close_code, "reason": session.close_reason})
        except Exception:  # noqa: BLE001 - The client has closed already.
            log.debug("a client was gone before it was closed")


async def _refuse(scope: Scope, send: Send, status: int) -> None:
    """Refuse an upgrade."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "websocket.http.response.start", "status": status, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b""})
