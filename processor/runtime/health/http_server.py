"""Serves a process's metrics and health pages: `/metrics`, `/livez`, `/readyz` and `/status`."""

from __future__ import annotations

import json
import socket
import threading
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.runtime.health.health import Health

_OK: Final = "200 OK"
_UNAVAILABLE: Final = "503 Service Unavailable"
_NOT_FOUND: Final = "404 Not Found"
_TEXT: Final = "text/plain; charset=utf-8"


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, so that a slow one delays no probe."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without a question to the name service, which may take long while the network is ill."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.socket.getsockname()[1]
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = 30  # Seconds; a connection that asks nothing would keep its thread.

    def log_message(self, *_: object) -> None:
        """Log nothing: probes ask every few seconds."""

    def address_string(self) -> str:
        """The address without a question to the name service."""
        return str(self.client_address[0])


def serve(port: int, health: Health, *, host: str = "") -> int:
    """Serve the pages on a thread of its own, until the process ends; returns the port.

    Args:
        port: the port; 0: any free one.
        health: the source of the health pages.
        host: the address to listen on; empty: every address, of IPv6 too where there is IPv6.

    Raises:
        OSError: the address cannot be used.
        OverflowError: there is no such port.
    """
    has_ipv6 = ":" in host or (not host and socket.has_dualstack_ipv6())
    address = (host or "::") if has_ipv6 else host
    server = (_Server6 if has_ipv6 else _Server)((address, port), _Handler)
    server.set_app(pages(health))
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server.server_port


def pages(health: Health) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """Create the WSGI application."""
    metrics: Callable[[dict[str, Any], Any], Iterable[bytes]] = make_wsgi_app()

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start_response)
        status, kind, body = _answer(path, health)
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    return application


def _answer(path: str, health: Health) -> tuple[str, str, bytes]:
    """The status line, content type and body of a page."""
    if path == "/livez":
        return _verdict(health.dead())
    if path == "/readyz":
        return _verdict(health.unready())
    if path == "/status":
        return _OK, "application/json", json.dumps(health.status()).encode() + b"\n"
    return _NOT_FOUND, _TEXT, b"there are /metrics, /livez, /readyz and /status\n"


def _verdict(reasons: list[str]) -> tuple[str, str, bytes]:
    """A page that is 200 without reasons against it, or else 503 with a line for each."""
    return (_UNAVAILABLE if reasons else _OK), _TEXT, "".join(f"{line}\n" for line in reasons or ["ok"]).encode()
