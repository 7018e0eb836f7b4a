"""Serves functions as JSON over HTTP, and has the settings of Kafka's administrator."""

from __future__ import annotations

import json
import os
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TOPIC = "orders"
PORTS = {"load": 8081, "observer": 8082, "account": 8083, "registry": 8084}


def kafka(**more: Any) -> dict[str, Any]:
    """The settings of a client."""
    return {
        "bootstrap.servers": "kafka:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": os.environ["KAFKA_USER"],
        "sasl.password": os.environ["KAFKA_PASSWORD"],
        "ssl.ca.location": "/etc/kafka/ca.crt",
        # A broker that has moved is found at once: this program measures workers, not itself.
        "socket.connection.setup.timeout.ms": 1000,
        "reconnect.backoff.max.ms": 500,
    } | {name.replace("_", "."): value for name, value in more.items()}


def serve(port: int, functions: Mapping[str, Callable[[dict[str, str]], Any]]) -> None:
    """Serve each function at its path, for ever; its argument is the query."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            try:
                status, answer = 200, functions[address.path.strip("/")](dict(parse_qsl(address.query)))
            except Exception:  # noqa: BLE001 # The caller gets it.
                status, answer = 500, traceback.format_exc()
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer(("", port), Handler).serve_forever()
