"""A schema registry on the loopback interface, which executors can reach from their own processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SchemaServer:
    """Serves schemas by id and by subject, as Confluent's API does, and records all writes."""

    def __init__(self) -> None:
        self.url = ""
        self.written: list[str] = []
        """The paths of requests that would change something."""
        self._schemas: list[dict[str, Any]] = []
        self._latest: dict[str, tuple[int, int]] = {}

    def register(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        """Register the latest schema of a subject; returns its id."""
        self._schemas.append({"schema": json.dumps(schema), "schemaType": kind})
        version = self._latest.get(subject, (0, 0))[1] + 1
        self._latest[subject] = len(self._schemas), version
        return len(self._schemas)

    def answer(self, path: str) -> dict[str, Any] | None:
        """The answer to a GET; None: not found."""
        parts = path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["schemas", "ids"] and 0 < int(parts[2]) <= len(self._schemas):
            return self._schemas[int(parts[2]) - 1]
        if parts[0] == "subjects" and parts[1] in self._latest:
            number, version = self._latest[parts[1]]
            return self._schemas[number - 1] | {"subject": parts[1], "version": version, "id": number}
        return None


@contextmanager
def schema_server() -> Iterator[SchemaServer]:
    """A registry that runs until the block ends."""
    registry = SchemaServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = registry.answer(self.path)
            self._send(404 if found is None else 200, found or {"error_code": 40401, "message": "not found"})

        def do_POST(self) -> None:
            registry.written.append(self.path)
            self._send(403, {"error_code": 40301, "message": "this one is only read"})

        def log_message(self, *args: object) -> None:
            pass

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
