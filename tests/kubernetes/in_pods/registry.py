"""A schema registry that has one schema for any id, and can be told not to answer."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from served import PORTS, serve

REGISTRY_PORT = 8085
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "long", "default": 0}],
}

answers = threading.Event()
"""While it is not set, requests wait."""
answers.set()


class Handler(BaseHTTPRequestHandler):
    """Answers what workers ask."""

    def answer(self) -> None:
        """Give the schema."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answers.wait()
        body = json.dumps({"id": 1, "version": 1, "subject": "any", "schema": json.dumps(SCHEMA)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    registry = ThreadingHTTPServer(("", REGISTRY_PORT), Handler)
    threading.Thread(target=registry.serve_forever, daemon=True).start()
    serve(PORTS["registry"], {"silence": lambda _: answers.clear(), "answer": lambda _: answers.set()})
