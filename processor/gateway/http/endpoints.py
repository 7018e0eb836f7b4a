"""The endpoints below `/v1/topics`, and those of operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from processor.codec.display import to_json_line
from processor.gateway.access.entitlements import NO_RIGHTS, Rights
from processor.gateway.access.identity import Identity
from processor.gateway.http.openapi import document
from processor.gateway.http.problems import problem
from processor.gateway.sessions.order_completion import complete_behind
from processor.gateway.sessions.requests import BadRequest
from processor.gateway.sessions.requests import Request as Asked
from processor.gateway.sessions.session import Session
from processor.gateway.sessions.session_subscriptions import SCAN_MAX
from processor.subscriptions import SubscriptionSpec, parse_options
from processor.subscriptions.message_builder import MessageBuilder
from processor.subscriptions.options import Options
from processor.wire.metadata import is_over

if TYPE_CHECKING:
    from processor.gateway.gateway import Gateway

_CHUNK_MAX: Final = 500
"""Messages in one chunk of a streamed answer."""
_FLAGS: Final = frozenset(("oof", "no_empties", "no_sowkey", "send_keys", "timestamp"))
_SUBSCRIBE_OPS: Final = ("sow_and_subscribe", "subscribe", "delta_subscribe", "sow_and_delta_subscribe")


class Endpoints:
    """The HTTP endpoints of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def topics(self, request: Request) -> Response:
        """`GET /v1/topics`: the topics that the client may read or write."""
        identity = await self._identity(request)
        gateway = self._gateway
        rows = []
        for name, feed in gateway.feeds.items():
            rights = gateway.rights(identity, name)
            if rights != NO_RIGHTS:
                rows.append(
                    {
                        "topic": name,
                        "key": list(feed.topic.key.pointers),
                        "read": rights.read is not None,
                        "publish": rights.may_publish and gateway.config.underlying(name) is None,
                        "delete": rights.delete and gateway.config.underlying(name) is None,
                        "message_type": gateway.config.topic(name).message_type,
                        "ready": feed.is_ready,
                    }
                )
        return JSONResponse({"topics": rows})

    async def record(self, request: Request) -> Response:
        """`GET /v1/topics/{topic}/records/{key}`: one record; its version is the ETag."""
        identity, name = await self._identity(request), request.path_params["topic"]
        self._reading(identity, name)
        feed = self._gateway.feeds[name]
        engine = await feed.ready(self._gateway.ready_timeout_s)
        rights = self._reading(identity, name)  # They may have changed meanwhile.
        record = engine.find(request.path_params["key"].encode(errors="surrogatepass"))
        entitlement = rights.read
        value = None if record is None or is_over(record, _wall_ms()) else feed.topic.value(record)
        if record is None or value is None or entitlement is None:
            raise BadRequest("not_found", "there is no such record")
        if not entitlement.allows(value, feed.topic.metadata_of(record)):
            raise BadRequest("not_found", "there is no such record")
        builder = MessageBuilder(feed.topic, Options(timestamp=True), delta=False, entitlement=entitlement)
        message = builder.full("sow", record, value)
        tag = f'"{message.version}"'
        if tag in [text.strip() for text in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers={"ETag": tag})
        body = to_json_line(
            {"topic": name, "sow_key": message.sow_key, "version": message.version, "timestamp": message.timestamp}
            | ({"expires_at": message.expires_at} if message.expires_at else {})
            | {"data": message.data}
        )
        return Response(body, headers={"ETag": tag, "Cache-Control": "no-cache"}, media_type="application/json")

    async def sow(self, request: Request) -> Response:
        """`GET /v1/topics/{topic}/sow`: the records that match, a line of JSON each, streamed."""
        identity, name = await self._identity(request), request.path_params["topic"]
        rights = self._reading(identity, name)
        options = _options(request, ("select", "order_by", "top_n", "skip_n", "timestamp"))
        feed = self._gateway.feeds[name]
        engine = await feed.ready(self._gateway.ready_timeout_s)
        spec = SubscriptionSpec(
            feed.topic,
            request.query_params.get("filter") or None,
            parse_options(None, snapshot=True, live=False, delta=False, **options),
            snapshot=True,
            live=False,
            delta=False,
            entitlement=rights.read,
        )
        connection = engine.connect(queue_bytes=self._gateway.limits.queue_bytes, scan_max=SCAN_MAX)
        build = engine.prepare(spec)
        try:
            while build is not None and not build.is_ready(spec.window_depth):
                build.advance()
                await asyncio.sleep(0)  # Others have their turn.
            connection.subscribe(spec)
        finally:
            if build is not None:
                complete_behind(feed, engine, build)
                engine.release(build)
        encode = self._gateway.encoder.message

        async def lines() -> AsyncIterator[str]:
            try:
                while connection.has_waiting:
                    if rights.text != self._gateway.rights(identity, name).text or self._gateway.is_over(identity):
                        raise BadRequest("not_entitled", "the rights have changed; ask again")
                    messages = connection.take(_CHUNK_MAX)
                    chunk = "".join(
                        f"{_plain(encode(message))}}}\n" for message in messages if message.command == "sow"
                    )
                    if chunk:
                        yield chunk
                    await asyncio.sleep(0)
            finally:
                connection.close()

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def subscribe(self, request: Request) -> Response:
        """`GET /v1/topics/{topic}/subscribe`: Server-Sent Events; `Last-Event-ID` resumes."""
        gateway = self._gateway
        identity, name = await self._identity(request), request.path_params["topic"]
        self._reading(identity, name)
        if len(gateway.sessions) >= gateway.limits.connections:
            raise BadRequest("unavailable", "the gateway has as many connections as it may have")
        op = request.query_params.get("op", "sow_and_subscribe")
        if op not in _SUBSCRIBE_OPS:
            raise BadRequest("bad_request", f"op is one of {', '.join(_SUBSCRIBE_OPS)}")
        names = [one for one in Options._fields if one != "bookmark"]
        fields: dict[str, Any] = {"topic": name, "options": _options(request, tuple(names))}
        texts = {
            "filter": request.query_params.get("filter"),
            "resume": request.headers.get("last-event-id") or request.query_params.get("resume"),
        }
        fields |= {name: text for name, text in texts.items() if text}
        wakes = asyncio.Event()
        gone = asyncio.Event()
        session = Session(gateway, wakes.set, gone.set)
        session.identity = identity
        gateway.sessions.add(session)
        try:
            await session.subscribe(Asked(op, "1", fields))
        except BaseException:
            self._leave(session)
            raise

        async def events() -> AsyncIterator[str]:
            while not gone.is_set():
                while (frame := session.take_frame()) is not None:
                    yield _event(frame)
                    if session.is_waiting:
                        break
                if session.is_closing and not session.has_waiting:
                    return
                await wakes.wait()
                wakes.clear()

        return _EventStream(events(), lambda: self._leave(session))

    async def openapi(self, _request: Request) -> Response:
        """`GET /v1/openapi.json`: the description of these endpoints."""
        return JSONResponse(document())

    async def live(self, _request: Request) -> Response:
        """`GET /livez`: the event loop runs."""
        return PlainTextResponse("ok\n")

    async def ready(self, _request: Request) -> Response:
        """`GET /readyz`: every topic's view has caught up."""
        waiting = [name for name, feed in self._gateway.feeds.items() if not feed.is_ready]
        if waiting:
            return problem(503, f"these views have not caught up: {', '.join(waiting)}")
        return PlainTextResponse("ok\n")

    async def metrics(self, _request: Request) -> Response:
        """`GET /metrics`: Prometheus' text format."""
        return Response(self._gateway.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _identity(self, request: Request) -> Identity:
        return await identity_of(self._gateway, request)

    def _reading(self, identity: Identity, topic: str) -> Rights:
        rights = self._gateway.rights(identity, topic)
        if topic not in self._gateway.feeds or rights.read is None:
            raise BadRequest("not_entitled", f"there is no topic {topic!r:.100} that {identity.user} may read")
        return rights

    def _leave(self, session: Session) -> None:
        self._gateway.sessions.discard(session)
        self._gateway.metrics.messages += session.sent
        session.end()


class _EventStream(StreamingResponse):
    """Server-Sent Events; `leave` is called at their end, also if the client was gone before the first one."""

    def __init__(self, events: AsyncIterator[str], leave: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def identity_of(gateway: Gateway, request: Request) -> Identity:
    """The identity that the token of a request proves.

    Raises:
        AccessDenied: it proves none.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return await gateway.verify(token.strip() if kind.lower() == "bearer" else None)


def _options(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    """The options of a query string."""
    options: dict[str, Any] = {}
    for name in names:
        text = request.query_params.get(name)
        if text is None or text == "":
            continue
        if name in _FLAGS:
            if text not in ("true", "false", "1", "0"):
                raise BadRequest("bad_request", f"{name} is true or false")
            options[name] = text in ("true", "1")
        elif name == "conflation_key":
            options[name] = tuple(text.strip("[]").split(","))
        else:
            options[name] = text
    return options


def _plain(body: str) -> str:
    """A message without its subscriptions, which a query has none of."""
    return "{" + body.removeprefix('{"subs":[],')


def _event(frame: str) -> str:
    """A frame as a Server-Sent Event; its id is the bookmark, if it has one."""
    at = frame.rfind('"bookmarks":{"1":"')
    if at < 0:
        return f"data: {frame}\n\n"
    begin = at + len('"bookmarks":{"1":"')
    return f"id: {frame[begin : frame.index(chr(34), begin)]}\ndata: {frame}\n\n"


def _wall_ms() -> int:
    from processor.subscriptions.current_records import wall_ms  # noqa: PLC0415

    return wall_ms()
