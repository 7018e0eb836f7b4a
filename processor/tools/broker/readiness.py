"""Waits until a started broker is ready, by requests in Kafka's own protocol, without a client library.

A broker answers long before it can do its work, so the requests are those that fail until then: the metadata lists the
broker once the controller has unfenced it; asked for coordinators, it creates its internal topics; asked for a producer
id, it requests its first block of them.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

from processor.errors import BrokerUnavailable
from processor.tools.broker.server import HOST, Server

_LOOK_S = 0.05
_METADATA, _FIND_COORDINATOR, _INIT_PRODUCER_ID = 3, 10, 22
_VERSION = 1
_GROUP, _TRANSACTION = 0, 1
_NAME = b"sowstream-probe"
_STRING = f"h{len(_NAME)}s"


def is_ready(host: str, port: int, *, timeout_s: float = 2.0) -> bool:
    """Return whether the Kafka broker at this address accepts topics, groups and transactions."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            return (
                _is_unfenced(connection)
                and _has_coordinator(connection, _GROUP)
                and _has_coordinator(connection, _TRANSACTION)
                and _gives_producer_ids(connection)
            )
    except (OSError, struct.error):
        return False


def _is_unfenced(connection: socket.socket) -> bool:
    """Metadata v1 for an empty array of topics; the answer begins with the array of brokers."""
    answer = _ask(connection, _METADATA, struct.pack(">i", 0))
    brokers: int = struct.unpack_from(">i", answer)[0]
    return brokers > 0


def _has_coordinator(connection: socket.socket, kind: int) -> bool:
    """FindCoordinator v1 for a name and a kind."""
    return _succeeds(_ask(connection, _FIND_COORDINATOR, struct.pack(f">{_STRING}b", len(_NAME), _NAME, kind)))


def _gives_producer_ids(connection: socket.socket) -> bool:
    """InitProducerId v1 without a transactional id, which leaves nothing behind; its time limit is then ignored."""
    return _succeeds(_ask(connection, _INIT_PRODUCER_ID, struct.pack(">hi", -1, 60_000)))


def _succeeds(answer: bytes) -> bool:
    """Return whether an answer that begins with a throttle time and an error code has no error."""
    error: int = struct.unpack_from(">ih", answer)[1]
    return error == 0


def _ask(connection: socket.socket, api: int, body: bytes) -> bytes:
    """Send one request with header v1; returns the answer after the correlation id."""
    request = struct.pack(f">hhi{_STRING}", api, _VERSION, 0, len(_NAME), _NAME) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    size_bytes: int = struct.unpack(">i", _read(connection, 4))[0]
    return _read(connection, size_bytes)[4:]


def _read(connection: socket.socket, size_bytes: int) -> bytes:
    """Read so many bytes; fewer if the connection ends first, which unpacking then rejects."""
    content = b""
    while len(content) < size_bytes and (more := connection.recv(size_bytes - len(content))):
        content += more
    return content


def await_ready(server: Server, *, has_ended: Callable[[], bool], timeout_s: float) -> None:
    """Return as soon as the broker is ready.

    Raises:
        BrokerUnavailable: its process ended, or it is not ready after `timeout_s`; with the end of its logs.
    """
    deadline_s = time.monotonic() + timeout_s
    while not is_ready(HOST, server.port):
        if has_ended():
            raise BrokerUnavailable(f"the embedded broker ended while it started:\n{_evidence(server)}")
        if time.monotonic() > deadline_s:
            raise BrokerUnavailable(f"the embedded broker is not ready after {timeout_s:.0f} s:\n{_evidence(server)}")
        time.sleep(_LOOK_S)


def _evidence(server: Server) -> str:
    log = server.last_words()
    return log or f"  it logged no error; its heap was {server.heap}"
