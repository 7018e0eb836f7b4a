"""The WebSocket endpoint `/v1/ws`: an ASGI application that carries the frames of a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from processor.client.gateway.answers import LATER
from processor.errors import FilterError, SowstreamError, VersionConflict
from processor.filter import compile_work
from processor.gateway.access.identity import AccessDenied, is_allowed
from processor.gateway.access.requests import PUBLISHING, BadRequest, Request, read_requests, request_of
from processor.gateway.commands.publishing import describe
from processor.gateway.commands.turns import NumberOrder
from processor.gateway.sessions.client_subscription import reason_of
from processor.gateway.sessions.host import FrameSender
from processor.gateway.sessions.session import Session
from processor.gateway.transport import Transport
from processor.subscriptions.request.subscribe_options import FORMS
from processor.wire.publisher_mark import is_reserved

if TYPE_CHECKING:
    from processor.gateway.access.allowances import Allowance
    from processor.gateway.access.identity import Identity
    from processor.gateway.gateway import Gateway
    from processor.record import Value
    from processor.wire.ack import Ack

log = structlog.stdlib.get_logger("sowstream.gateway")

PROTOCOL: Final = "sowstream.v1"
"""The subprotocol."""
LOGON_TIMEOUT_S: Final = 10.0
"""A client that has not logged on so long after it was accepted is closed, also if it sends other requests."""
TRY_AGAIN: Final = 4503
"""The closing code of a client that may succeed later with the same token."""
_CLOSING_TIMEOUT_S: Final = 1.0
"""A client without an identity that does not answer the end of its connection is dropped after so long."""
_READ_AGAIN_S: Final = 0.05
"""Wait before a frame is given again to threads that had no place for it."""
_WAITING_MAX: Final = 1_000
"""Requests of a connection that wait for a view or for Kafka; beyond it no further request is read."""
_WAITING_CHARACTERS: Final = 8 * 1024 * 1024
"""The same, by the size of their frames."""

_WAITING_OPS: Final = frozenset(FORMS) | PUBLISHING | {"replace"}

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
        await _Client(gateway, receive, send, Transport.of(scope)).run()

    def _refusal(self, scope: Scope) -> int | None:
        """The HTTP status with which an upgrade is refused; None: it is accepted."""
        gateway = self._gateway
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not is_allowed(headers.get("origin"), headers.get("host"), gateway.settings.origins):
            return 403
        if PROTOCOL not in scope.get("subprotocols", ()):
            return 400
        return None if gateway.has_place else 503


class _Client:
    """One accepted WebSocket."""

    def __init__(self, gateway: Gateway, receive: Receive, send: Send, transport: Transport | None) -> None:
        self._gateway = gateway
        self._transport = transport
        self._receive = receive
        self._send = send
        self._is_woken = False
        self._sender: asyncio.Task[None] | None = None  # While it has work: few of many clients need one at a time.
        self._write = None if transport is None else transport.write_frame
        self._session = Session(gateway, FrameSender(self._wake, self._flush, self._abort))
        self._waiting: dict[asyncio.Task[None], int] = {}  # With the characters of their frames.
        self._publishing = asyncio.Lock()  # It lets them in by the order of their requests.
        self._numbers = NumberOrder()
        self._allowance: Allowance | None = None  # Of its identity; None: it has none yet.

    async def run(self) -> None:
        gateway, session = self._gateway, self._session
        gateway.sessions.add(session)
        gateway.unidentified += 1
        if not gateway.authenticator.is_required:
            self._identify(await gateway.verify(None), gateway.allowances.one())
        try:
            await self._receive_frames()
        finally:
            gateway.sessions.discard(session)
            if self._allowance is None:
                gateway.unidentified -= 1
            else:
                self._allowance.places.give_back()
            gateway.memory.note_closed()
            gateway.metrics.messages += session.sent
            session.end()
            # Without a reference back: a task that is cancelled before it has begun would keep this client in a cycle.
            tasks, self._waiting = [*self._waiting], {}
            if self._sender is not None:
                tasks.append(self._sender)
                self._sender = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _identify(self, identity: Identity, allowance: Allowance) -> None:
        """Take the identity of the client, and a place of it. Raises a `BadRequest` if it has none left."""
        if allowance is not self._allowance:
            allowance.places.take()
            if self._allowance is None:
                self._gateway.unidentified -= 1
            else:
                self._allowance.places.give_back()
        self._session.identity = identity
        self._session.allowance = self._allowance = allowance
        if self._transport is not None:
            self._transport.admit()

    async def _receive_frames(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + LOGON_TIMEOUT_S
        while True:
            if self._allowance is None and not self._session.is_closing:
                try:
                    async with asyncio.timeout_at(deadline_s):
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
            trees = await self._requests(text)
        except BadRequest as error:
            session.refuse(error.request_id, error.reason, str(error))
            return
        for tree in trees:
            if session.is_closing:
                return
            # Others have their turn, and the client's next frames wait in its socket while it asks for too much.
            await asyncio.sleep(0 if self._allowance is None else self._allowance.requests.wait_s())
            if self._allowance is not None:
                self._allowance.requests.take(1)
            try:
                request = request_of(tree)
            except BadRequest as error:
                session.refuse(error.request_id, error.reason, str(error))
                continue
            if request.op in _WAITING_OPS:
                await self._carry_out_behind(request, len(text))
            else:
                await self._carry_out(request)

    async def _requests(self, text: str) -> list[Value]:
        """The requests of a frame: none behind it is read before, as it may have a lower number.

        Raises:
            BadRequest: it cannot be read.
        """
        while True:
            try:
                return await self._gateway.parsed(text, lambda: read_requests(text))
            except BadRequest as error:
                if error.reason not in LATER:
                    raise
            await asyncio.sleep(_READ_AGAIN_S)

    async def _carry_out_behind(self, request: Request, characters: int) -> None:
        """Carry out a request that may wait for a view or for Kafka: those behind it do not wait."""
        while len(self._waiting) >= _WAITING_MAX or sum(self._waiting.values()) > _WAITING_CHARACTERS:
            await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.get_running_loop().create_task(self._carry_out(request))
        self._waiting[task] = characters
        task.add_done_callback(self._forget)
        await asyncio.sleep(0)  # One that need not wait is carried out now, in the order of the requests.

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)

    async def _carry_out(self, request: Request) -> None:
        """Carry out a request, and answer it if it fails."""
        session = self._session
        try:
            await self._answer(request)
        except BadRequest as error:
            session.refuse(request.id, error.reason, str(error))
        except SowstreamError as error:
            place = {"line": error.line, "column": error.column} if isinstance(error, FilterError) else {}
            session.refuse(request.id, reason_of(error), str(error), **place)
        except Exception:
            log.exception("a request failed", op=request.op)
            session.refuse(request.id, "internal", "the request failed; the gateway's log has the details")

    async def _answer(self, request: Request) -> None:
        session = self._session
        if request.op == "logon":
            await self._log_on(request)
        elif session.identity is None:
            raise BadRequest("logon_required", "send logon first")
        elif request.op in FORMS:
            await session.subscribe(request)
        elif request.op in PUBLISHING:
            async with self._publishing:
                await self._publish(request)
        elif request.op == "replace":
            await session.replace(request)
        elif request.op == "unsubscribe":
            session.unsubscribe(request)
        else:
            session.succeed(request.id)

    async def _log_on(self, request: Request) -> None:
        gateway, session = self._gateway, self._session
        client = request.text("client")
        if client is not None and is_reserved(f"user/{client}"):
            raise BadRequest(
                "bad_request",
                f"client {client!r:.99}: such a name is forgotten after a day; choose another",
            )
        try:
            identity = await gateway.verify(request.text("token"))
            earlier = session.identity
            if earlier is not None and earlier.user != identity.user:
                raise BadRequest("bad_request", "the identity of a connection cannot change; connect again")
            self._identify(identity, gateway.allowances.of(identity))
        except AccessDenied as error:
            gateway.metrics.refused_logons += 1
            session.refuse(request.id, "logon_failed", str(error))
            if session.identity is None:
                session.close(4401, "the logon failed")
            return
        except BadRequest as error:
            session.refuse(request.id, error.reason, str(error))
            if session.identity is None:
                session.close(TRY_AGAIN, "the logon cannot succeed now")
            return
        session.client = client or session.client or "browser"
        session.succeed(request.id, user=identity.user, message_bytes=gateway.limits.message_bytes)
        if earlier is not None and earlier.roles != identity.roles:
            await session.apply_rights()

    async def _publish(self, request: Request) -> None:
        session = self._session
        assert session.identity is not None
        assert self._allowance is not None
        topic, sequence = request.required("topic"), request.fields.get("sequence")

        def answer(ack_type: str | None, ack: Ack | None, error: Exception | None) -> None:
            if error is not None:
                reason, detail = describe(error)
                more = {"ack": "processed", "version": error.version} if isinstance(error, VersionConflict) else {}
                self._note(topic, sequence, reason)
                session.refuse(request.id, reason, detail, **more)
            elif ack is None:
                session.succeed(request.id)
            elif ack.status == "success":
                numbers = {"records_deleted": ack.records_deleted, "version": ack.version}
                more = {name: number for name, number in numbers.items() if number is not None}
                session.succeed(request.id, ack=ack_type, key=ack.sow_key, detail=ack.reason, **more)
            else:
                reason, _, detail = (ack.reason or "").partition(":")
                more = {} if ack.version is None else {"version": ack.version}
                session.refuse(request.id, reason, detail.strip(), ack=ack_type, key=ack.sow_key, **more)

        try:
            if sequence is not None:
                self._allowance.names.use(session.client)
            keys = request.fields.get("keys")
            self._allowance.publishes.spend(1 if keys is None else len(keys))
            self._allowance.words.spend(compile_work(request.text("filter") or ""))
            await self._gateway.publishing.publish(
                session.identity,
                request.op,
                topic,
                request.fields,
                client=session.client,
                numbers=self._numbers,
                on_answer=answer,
            )
        except SowstreamError as error:
            reason, detail = describe(error)
            self._note(topic, sequence, reason)
            more = {"version": error.version} if isinstance(error, VersionConflict) else {}
            session.refuse(request.id, reason, detail, ack="processed", **more)

    def _note(self, topic: str, sequence: object, reason: str) -> None:
        """Note the failure of a command, whose topic may be one that is not there."""
        if topic in self._gateway.feeds:
            self._numbers.note(topic, sequence, reason)

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
                while (frame := await session.next_frame()) is not None:
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
        if self._transport is not None:
            self._transport.abort()

    async def _close(self) -> None:
        session = self._session
        if self._allowance is None and self._transport is not None:
            asyncio.get_running_loop().call_later(_CLOSING_TIMEOUT_S, self._transport.abort)
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
