"""Asks a broker whether it is ready, in Kafka's own protocol and without a client library.

A broker answers before it may lead a partition: `Metadata` lists only brokers that the controller has unfenced. Asking
for coordinators then makes the broker create its internal topics, so that the first group and the first transaction
find them.
"""

from __future__ import annotations

import socket
import struct

_FIND_COORDINATOR, _METADATA = 10, 3
_VERSION = 1
_GROUP, _TRANSACTION = 0, 1
_NAME = b"sowstream-probe"
_STRING = f"h{len(_NAME)}s"


def is_ready(host: str, port: int, *, timeout_s: float = 2.0) -> bool:
    """Whether a Kafka broker at this address takes topics, groups and transactions."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            return _is_unfenced(connection) and all(
                _has_coordinator(connection, kind) for kind in (_GROUP, _TRANSACTION)
            )
    except (OSError, struct.error):
        return False


def _is_unfenced(connection: socket.socket) -> bool:
    """Metadata v1 for an empty array of topics; the answer begins with the array of brokers."""
    answer = _ask(connection, _METADATA, struct.pack(">i", 0))
    brokers: int = struct.unpack_from(">i", answer)[0]
    return brokers > 0


def _has_coordinator(connection: socket.socket, kind: int) -> bool:
    """FindCoordinator v1 for a name and a kind; the answer begins with a throttle time and the error code."""
    answer = _ask(connection, _FIND_COORDINATOR, struct.pack(f">{_STRING}b", len(_NAME), _NAME, kind))
    error: int = struct.unpack_from(">ih", answer)[1]
    return error == 0


def _ask(connection: socket.socket, api: int, body: bytes) -> bytes:
    """Send one request with header v1; what follows the correlation id in the answer."""
    request = struct.pack(f">hhi{_STRING}", api, _VERSION, 0, len(_NAME), _NAME) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    size_bytes: int = struct.unpack(">i", _read(connection, 4))[0]
    return _read(connection, size_bytes)[4:]


def _read(connection: socket.socket, size_bytes: int) -> bytes:
    """Read so many bytes; fewer where the connection ends first, which unpacking then finds."""
    content = b""
    while len(content) < size_bytes and (more := connection.recv(size_bytes - len(content))):
        content += more
    return content
