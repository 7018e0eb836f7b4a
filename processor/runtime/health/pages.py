"""Serves a process's metrics and health pages: `/metrics`, `/livez`, `/readyz` and `/status`."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from processor.telemetry.page_server import Answer, PageServer, metrics_page

if TYPE_CHECKING:
    from processor.runtime.health.health import Health


def serve(port: int, health: Health, *, host: str = "") -> PageServer:
    """Serve the pages; returns their server, which ends with the process.

    Args:
        port: the port; 0: any free one.
        health: the source of the health pages.
        host: the address to listen on; empty: every address, of IPv6 too where there is IPv6.

    Raises:
        OSError: the address cannot be used.
        OverflowError: there is no such port.
    """
    probes = {"/livez": lambda _: _verdict(health.dead()), "/readyz": lambda _: _verdict(health.unready())}
    return PageServer(port, {"/metrics": metrics_page(), "/status": lambda _: _status(health)}, probes, host=host)


def _status(health: Health) -> Answer:
    status = json.dumps(health.status()).encode() + b"\n"
    return Answer(HTTPStatus.OK, status, (("Content-Type", "application/json"),))


def _verdict(reasons: list[str]) -> Answer:
    """A page that is 200 without reasons against it, or else 503 with a line for each."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Answer(status, "".join(f"{line}\n" for line in reasons or ["ok"]).encode())
