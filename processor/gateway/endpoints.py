"""The endpoints below `/v1/topics`, and those of operators."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from processor.codec.json_value import to_json_line
from processor.errors import BrokerUnavailable
from processor.gateway.access.entitlements import NO_RIGHTS, Rights
from processor.gateway.access.identity import Identity
from processor.gateway.access.requests import SOW_OPTIONS, SUBSCRIBE_OPTIONS, BadRequest, check_parameters, openapi
from processor.gateway.access.requests import Request as Asked
from processor.gateway.commands.command_check import CurrentRecord, current_record, wait_for_record, wait_for_step
from processor.gateway.problems import PRIVATE, problem
from processor.gateway.sessions.client_subscription import words_of
from processor.gateway.sessions.host import FrameSender, complete_behind
from processor.gateway.sessions.session import Session
from processor.installation.pipeline_status import status_report
from processor.subscriptions import SubscriptionSpec, parse_options
from processor.subscriptions.request.subscribe_options import FLAGS, FORMS, Options
from processor.subscriptions.request.subscriber_message import MessageBuilder
from processor.values.key_text import spelled_group_key

if TYPE_CHECKING:
    from processor.config import Config
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.gateway import Gateway
    from processor.subscriptions.request.entitlement import Entitlement

MIN_VERSION_TIMEOUT_S: Final = 5.0
"""Longest wait for the version of a record."""
PLACE: Final = "sowstream.place"
"""The key of a request's scope under which its end finds the share whose place it has."""
_STATUS_S: Final = 2.0
"""Age up to which an answer about the installation is given again."""
_CHUNK_MAX: Final = 500
"""Messages in one chunk of a streamed answer."""
_EVENTS_ID: Final = "1"
"""The id of the subscription whose messages are Server-Sent Events."""
_PERSPECTIVE: Final = Path(__file__).parent / "web/adapters/node_modules/@perspective-dev/viewer"
"""The library of *Analyse*, which an installation without `npm ci` has not."""
_SUBSCRIBE_OPS: Final = ("sow_and_subscribe", "subscribe", "delta_subscribe", "sow_and_delta_subscribe")


class Endpoints:
    """The HTTP endpoints of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._status = _InstallationStatus(gateway.config)

    async def status(self, request: Request) -> Response:
        """`GET /v1/status`: the status of the installation, for operators."""
        identity = await identity_of(self._gateway, request)
        if not self._gateway.entitlements.is_operator(identity):
            raise BadRequest("not_entitled", f"{identity.user} may not see the status of the installation")
        return JSONResponse(await self._status.read(), headers=PRIVATE)

    async def topics(self, request: Request) -> Response:
        """`GET /v1/topics`: the topics that the client may read or write, and what the page can offer it."""
        identity = await identity_of(self._gateway, request)
        gateway = self._gateway
        rows = []
        for name, feed in gateway.feeds.items():
            rights = gateway.rights(identity, name)
            if rights != NO_RIGHTS:
                rows.append(
                    {
                        "topic": name,
                        "key": list(feed.topic.key.pointers),
                        "groups": gateway.config.has_group_keys(name),
                        "read": rights.read is not None,
                        "publish": rights.may_publish and gateway.config.underlying(name) is None,
                        "delete": rights.delete and gateway.config.underlying(name) is None,
                        "message_type": gateway.config.topic(name).message_type,
                        "ready": feed.is_ready,
                    }
                )
        operator = {"operator": True} if gateway.entitlements.is_operator(identity) else {}
        return JSONResponse({"topics": rows, **operator, "perspective": _PERSPECTIVE.exists()}, headers=PRIVATE)

    async def record(self, request: Request) -> Response:
        """`GET /v1/topics/{topic}/records/{key}`: one record; its ETag is the digest of the answer.

        With `min_version` it waits, at most `MIN_VERSION_TIMEOUT_S`, until the view has the record in this version or a
        later one, or knows that the record has ended with one: so a client reads what it has written.
        """
        began_s = asyncio.get_running_loop().time()
        identity = await identity_of(self._gateway, request, "record")
        name, key = request.path_params["topic"], request.path_params["key"]
        self._reading(identity, name)
        min_version = _min_version(request)
        feed = self._gateway.feeds[name]
        if self._gateway.config.has_group_keys(name):
            key = spelled_group_key(key, len(feed.topic.key.pointers))
        else:
            key = feed.topic.key.spelled(key)
        engine = await feed.ready(self._gateway.ready_timeout_s)
        read = self._reading(identity, name).read  # They may have changed meanwhile.
        current = current_record(feed.topic, engine, key)
        if min_version and not _has(current, read, min_version):
            held = partial(_has_or_ended, feed, key, read, min_version)
            current = await wait_for_record(feed, key, held, MIN_VERSION_TIMEOUT_S)
            read = self._reading(identity, name).read
            if not held(current):
                raise BadRequest("not_yet", f"version {min_version} of the record has not come; ask again")
        if read is None or current.record is None or not current.is_visible(read):
            if read is not None and read.filter is not None:
                await wait_for_step(began_s)  # A record that may not be seen takes as long as none.
            raise BadRequest("not_found", "there is no such record")
        builder = MessageBuilder(feed.topic, Options(timestamp=True), delta=False, entitlement=read)
        message = builder.full("sow", current.record, current.value)
        body = to_json_line(
            {"topic": name, "sow_key": message.sow_key, "version": message.version, "timestamp": message.timestamp}
            | ({"expires_at": message.expires_at} if message.expires_at else {})
            | {"data": message.data}
        )
        tag = f'"{hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
        if _is_held(request, tag):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    async def sow(self, request: Request) -> Response:
        """`GET /v1/topics/{topic}/sow`: the records that match, a line of JSON each, streamed."""
        identity, name = await identity_of(self._gateway, request, "sow"), request.path_params["topic"]
        rights = self._reading(identity, name)
        options = _options(request, SOW_OPTIONS)
        gateway, feed = self._gateway, self._gateway.feeds[name]
        text = request.query_params.get("filter") or None
        words = words_of(text, options)
        allowance = gateway.allowances.of(identity)
        allowance.words.spend(words)
        form = FORMS["sow"]

        def compiled() -> SubscriptionSpec:
            parsed = parse_options(None, **form, **options)
            return SubscriptionSpec(feed.topic, text, parsed, **form, entitlement=rights.read)

        spec = await gateway.compiled(words, compiled, allowance)
        engine = await feed.ready(gateway.ready_timeout_s)
        connection = engine.connect(queue_bytes=gateway.limits.queue_bytes)
        build = engine.prepare(spec)
        try:
            if build is not None:
                await gateway.slices.build(build, spec.window_depth, lambda: feed.engine is engine)
            if feed.engine is not engine:
                raise BrokerUnavailable(f"the view of {name} is made again; ask again")
            connection.subscribe(spec, build=build)
        finally:
            if build is not None:
                complete_behind(gateway.slices, feed, engine, build)
                engine.release(build)
        encode = gateway.encoder.message

        def next_lines() -> str:
            connection.begin_turn()
            messages = connection.take(_CHUNK_MAX)
            return "".join(f"{_plain(encode(message))}}}\n" for message in messages if message.command == "sow")

        async def lines() -> AsyncIterator[str]:
            try:
                while connection.has_waiting:
                    if rights.text != gateway.rights(identity, name).text or gateway.is_over(identity):
                        raise BadRequest("not_entitled", "the rights have changed; ask again")
                    if chunk := await gateway.slices.run(next_lines):
                        yield chunk
            finally:
                connection.close()

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers=PRIVATE)

    async def subscribe(self, request: Request) -> Response:
        """`GET /v1/topics/{topic}/subscribe`: Server-Sent Events; `Last-Event-ID` resumes."""
        gateway = self._gateway
        identity, name = await identity_of(gateway, request, "subscribe"), request.path_params["topic"]
        self._reading(identity, name)
        if len(gateway.sessions) >= gateway.limits.connections:  # It has an identity.
            raise BadRequest("unavailable", "the gateway has as many connections as it may have")
        op = request.query_params.get("op", "sow_and_subscribe")
        if op not in _SUBSCRIBE_OPS:
            raise BadRequest("bad_request", f"op is one of {', '.join(_SUBSCRIBE_OPS)}")
        fields: dict[str, Any] = {"topic": name, "options": _options(request, SUBSCRIBE_OPTIONS)}
        texts = {
            "filter": request.query_params.get("filter"),
            "resume": request.headers.get("last-event-id") or request.query_params.get("resume"),
        }
        fields |= {name: text for name, text in texts.items() if text}
        wakes = asyncio.Event()
        gone = asyncio.Event()
        session = Session(gateway, FrameSender(wakes.set, wakes.set, gone.set))
        session.identity, session.allowance = identity, gateway.allowances.of(identity)
        gateway.sessions.add(session)
        try:
            await session.subscribe(Asked(op, _EVENTS_ID, fields))
        except BaseException:
            self._leave(session)
            raise

        async def events() -> AsyncIterator[str]:
            while not gone.is_set():
                while (frame := await session.next_frame()) is not None:
                    yield _event(frame, session.bookmark(_EVENTS_ID))
                    if session.is_waiting:
                        break
                if session.is_closing and not session.has_waiting:
                    return
                try:
                    async with asyncio.timeout(gateway.comment_interval_s):
                        await wakes.wait()
                except TimeoutError:
                    yield ":\n\n"
                    continue
                wakes.clear()

        return _EventStream(events(), lambda: self._leave(session))

    async def openapi(self, _request: Request) -> Response:
        """`GET /v1/openapi.json`: the description of these endpoints."""
        return JSONResponse(openapi())

    async def live(self, _request: Request) -> Response:
        """`GET /livez`: the event loop runs."""
        return PlainTextResponse("ok\n")

    async def ready(self, _request: Request) -> Response:
        """`GET /readyz`: every topic's view has caught up, or the topic has moved, which an answer of 410 says."""
        waiting = [name for name, feed in self._gateway.feeds.items() if not feed.is_ready and feed.moved is None]
        if waiting:
            return problem(503, f"these views have not caught up: {', '.join(waiting)}")
        return PlainTextResponse("ok\n")

    async def metrics(self, _request: Request) -> Response:
        """`GET /metrics`: Prometheus' text format."""
        return Response(self._gateway.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _reading(self, identity: Identity, topic: str) -> Rights:
        rights = self._gateway.rights(identity, topic)
        if topic not in self._gateway.feeds or rights.read is None:
            raise BadRequest("not_entitled", f"there is no topic {topic!r:.100} that {identity.user} may read")
        return rights

    def _leave(self, session: Session) -> None:
        self._gateway.sessions.discard(session)
        self._gateway.metrics.messages += session.sent
        session.end()


class _InstallationStatus:
    """The status of the installation. Kafka is asked once at a time, and its answer is for all who ask within 2 s."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._asked: asyncio.Task[dict[str, Any]] | None = None
        self._asked_s = 0.0

    async def read(self) -> dict[str, Any]:
        """As JSON's values.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        now_s = asyncio.get_running_loop().time()
        if self._asked is None or (self._asked.done() and now_s - self._asked_s > _STATUS_S):
            self._asked_s = now_s
            self._asked = asyncio.create_task(asyncio.to_thread(self._fetched))
            self._asked.add_done_callback(lambda task: task.cancelled() or task.exception())  # Its askers may be gone.
        return await asyncio.shield(self._asked)

    def _fetched(self) -> dict[str, Any]:
        report = status_report(self._config)
        return report.as_json() | {"notes": report.notes({})}


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


async def identity_of(gateway: Gateway, request: Request, endpoint: str | None = None) -> Identity:
    """The identity that the token of a request proves, whose parameters are those of the endpoint; it has a place now.

    Args:
        gateway: the gateway.
        request: the request.
        endpoint: its name in `PARAMETERS`; None: it has no parameters, so that none can be misspelt.

    Raises:
        AccessDenied: it proves none.
        BadRequest: `unavailable`: nothing can be said about it now; `too_many`: it has asked for too much;
            `bad_request`: a parameter is unknown.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    identity = await gateway.verify(token.strip() if kind.lower() == "bearer" else None)
    allowance = gateway.allowances.of(identity)
    allowance.requests.spend(1)
    allowance.places.take()
    request.scope[PLACE] = allowance.places
    if endpoint is not None:
        check_parameters((name for name, _ in request.query_params.multi_items()), endpoint)
    return identity


def _min_version(request: Request) -> int:
    """The parameter `min_version`; 0: any version."""
    text = request.query_params.get("min_version", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadRequest("bad_request", "min_version is the version of a record, as an ack has it")
    return int(text)


def _has(current: CurrentRecord, read: Entitlement | None, version: int) -> bool:
    return current.is_visible(read) and current.version >= version


def _has_or_ended(feed: KafkaFeed, key: str, read: Entitlement | None, version: int, current: CurrentRecord) -> bool:
    """Return whether a record has a version, or has ended with one, which a user with a read filter does not learn."""
    if _has(current, read, version):
        return True
    if current.record is not None or feed.engine is None or read is None or read.filter is not None:
        return False
    return feed.engine.ended_with(key.encode(errors="surrogatepass")) >= version


def _is_held(request: Request, tag: str) -> bool:
    """Return whether the client has the answer with this ETag; proxies that compress make a weak one of it."""
    tags = [text.strip().removeprefix("W/") for text in request.headers.get("if-none-match", "").split(",")]
    return tag in tags or tags == ["*"]


def _options(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    """The options of a query string."""
    options: dict[str, Any] = {}
    for name in names:
        text = request.query_params.get(name)
        if text is None or text == "":
            continue
        if name in FLAGS:
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


def _event(frame: str, bookmark: str | None) -> str:
    """A frame as a Server-Sent Event; its id is the session's bookmark behind it, if one was sent."""
    data = f"data: {frame}\n\n"
    return data if bookmark is None else f"id: {bookmark}\n{data}"
