"""The gateway as an ASGI application: routes, the WebSocket endpoint, the page, and headers for browsers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from processor.errors import SowstreamError
from processor.gateway.access.identity import is_own_name
from processor.gateway.endpoints import PLACE, Endpoints
from processor.gateway.gateway import Gateway
from processor.gateway.problems import on_error, problem
from processor.gateway.publishes import PublishEndpoint
from processor.gateway.transport import Transport
from processor.gateway.websocket import Receive, Scope, Send, WebSocketEndpoint

WEB: Final = Path(__file__).parent / "web"
"""The folder of the page and the JavaScript client."""
REQUESTS_MAX: Final = 1_000
"""Requests under way, besides those of `limits.connections`."""
_HEALTH: Final = frozenset(("/livez", "/readyz", "/metrics"))
"""Pages that are never refused."""
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}
_POLICY: Final = (
    "default-src 'self'; connect-src 'self' ws: wss: data: blob:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'wasm-unsafe-eval'{scripts}; img-src 'self' data:; font-src 'self' data:; "
    "worker-src 'self' blob:; frame-ancestors 'self'"
)
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": _POLICY.format(scripts=""),
    "Cache-Control": "no-cache",
}
_PERSPECTIVE: Final = _HEADERS | {"Content-Security-Policy": _POLICY.format(scripts=" blob:")}
"""Perspective loads its own modules from addresses that it makes; no other page may."""


class Application:
    """The ASGI application of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        """Make the routes.

        Args:
            gateway: started and stopped with the application.
        """
        self.gateway: Final = gateway
        """Its gateway."""
        self._guards_name = not gateway.authenticator.is_required
        self._requests = 0
        """Requests under way, except those for health pages."""
        self._websocket = WebSocketEndpoint(gateway)
        self._http = _http(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, one WebSocket, or the life of the application."""
        if self._guards_name and scope["type"] != "lifespan" and not self._is_own_name(scope):
            await _refuse_name(scope, receive, send)
            return
        if scope["type"] == "websocket":
            if scope["path"] == "/v1/ws":
                await self._websocket(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._http(scope, receive, send)
            return
        send = self._patient(scope, send)
        if scope["path"] in _HEALTH:
            await self._http(scope, receive, send)
        elif self._requests >= self.gateway.limits.connections + REQUESTS_MAX:
            self.gateway.metrics.refused_connections += 1
            await problem(503, "so many requests are under way that no more begin; try again later")(
                scope, receive, send
            )
        else:
            self._requests += 1
            try:
                await self._http(scope, receive, send)
            finally:
                self._requests -= 1
                if PLACE in scope:
                    scope[PLACE].give_back()

    def _is_own_name(self, scope: Scope) -> bool:
        """Return whether each header `Host` of a request is a name of this gateway."""
        settings = self.gateway.settings
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        return all(is_own_name(host, settings.origins, settings.hosts) for host in hosts)

    def _patient(self, scope: Scope, send: Send) -> Send:
        """Sends the parts of an answer; a client that takes nothing for too long is closed."""
        gateway = self.gateway
        transport = Transport.of(scope)

        async def send_in_time(message: MutableMapping[str, Any]) -> None:
            try:
                async with asyncio.timeout(gateway.limits.idle_timeout_s):
                    await send(message)
            except TimeoutError:
                gateway.metrics.closed_slow += 1
                if transport is not None:
                    transport.abort()

        return send_in_time


def _http(gateway: Gateway) -> Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]:
    ends = Endpoints(gateway)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            await gateway.start()
            yield
        finally:
            await gateway.stop()

    routes = [
        Route("/livez", ends.live),
        Route("/readyz", ends.ready),
        Route("/metrics", ends.metrics),
        Route("/v1/openapi.json", ends.openapi),
        Route("/v1/status", ends.status),
        Route("/v1/topics", ends.topics),
        Route("/v1/topics/{topic}/records/{key:path}", ends.record),
        Route("/v1/topics/{topic}/sow", ends.sow),
        Route("/v1/topics/{topic}/subscribe", ends.subscribe),
        Route("/v1/topics/{topic}/{op}", PublishEndpoint(gateway).publish, methods=["POST"]),
        Route("/{path:path}", _file, methods=["GET", "HEAD"]),
    ]
    middleware = []
    if gateway.settings.origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(gateway.settings.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type", "idempotency-key", "last-event-id"],
                expose_headers=["etag"],
            )
        )
    return Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={SowstreamError: on_error, HTTPException: _http_error},
    )


async def _refuse_name(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request to a name that may be another site's."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = (
        "this gateway needs no tokens, so it answers to addresses, to localhost and to the names in gateway.hosts alone"
    )
    await problem(403, text)(scope, receive, send)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, error.detail)


async def _file(request: Request) -> Response:
    """A file of the page; a browser that has it gets 304. There are no directory listings."""
    path = request.path_params["path"] or "index.html"
    try:
        file = (WEB / path).resolve()
        is_page = file.is_relative_to(WEB.resolve()) and file.suffix in _TYPES and file.is_file()
    except (OSError, ValueError):  # A name that no file can have.
        is_page = False
    if not is_page:
        return problem(404, "there is no such page")
    headers = _PERSPECTIVE if path == "adapters/perspective.html" else _HEADERS
    body, tag = await asyncio.to_thread(_compressed, file, file.stat().st_mtime_ns)
    headers = headers | {"ETag": tag, "Vary": "Accept-Encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(file, headers=headers, media_type=_TYPES[file.suffix])
    return Response(body, headers=headers | {"Content-Encoding": "gzip"}, media_type=_TYPES[file.suffix])


@lru_cache(maxsize=256)
def _compressed(file: Path, _changed_ns: int) -> tuple[bytes, str]:
    """A file of the page, compressed, and its tag: the library of the grid is 1.4 MB, and loads with each pane."""
    data = file.read_bytes()
    return gzip.compress(data, mtime=0), f'W/"{hashlib.sha256(data).hexdigest()[:32]}"'
