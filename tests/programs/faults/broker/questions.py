"""Requests to one certain broker, in Kafka's own protocol: a client would send them on to others.

Most are of its flexible versions: lengths are varints and count from one, and structures end with tagged fields.
"""

from __future__ import annotations

import socket
import struct

from processor.trial.broker.server import HOST

_FIND_COORDINATOR, _LIST_TRANSACTIONS, _DESCRIBE_QUORUM = 10, 66, 55
_METADATA_TOPIC = b"__cluster_metadata"
_TIMEOUT_S = 2.0


def active_controller(port: int) -> int | None:
    """The number of the active controller, according to the broker at a port; None if the broker does not know it.

    Raises:
        OSError, struct.error, IndexError: no answer, or an incomplete one.
    """
    body = b"\x02" + _compact(_METADATA_TOPIC) + b"\x02" + struct.pack(">i", 0) + b"\x00\x00\x00"
    answer = _Answer(_ask(port, _DESCRIBE_QUORUM, body))
    if answer.take("h") != 0 or answer.length() != 1:
        return None
    answer.text()
    answer.length()
    _partition, error, leader = answer.take("i"), answer.take("h"), answer.take("i")
    return leader if error == 0 and leader > 0 else None


def group_coordinator(port: int, group: str) -> int | None:
    """The number of the broker that coordinates a group, according to the broker at a port; None if it does not know.

    Raises:
        OSError, struct.error: no answer, or an incomplete one.
    """
    name = group.encode()
    # Version 1 is not flexible. The answer: throttle int32, error int16, message string or null, node int32.
    body = struct.pack(f">h{len(name)}sb", len(name), name, 0)
    answer = _exchange(port, struct.pack(">hhih", _FIND_COORDINATOR, 1, 0, -1) + body)
    error, length = struct.unpack_from(">hh", answer, 4)
    return int(struct.unpack_from(">i", answer, 8 + max(0, length))[0]) if error == 0 else None


def transactional_ids(port: int) -> list[str]:
    """The transactional ids whose transactions the broker at a port coordinates.

    Raises:
        OSError, struct.error, IndexError: no answer, or an incomplete one.
    """
    answer = _Answer(_ask(port, _LIST_TRANSACTIONS, b"\x01\x01\x00"))
    _throttled_ms, error = answer.take("i"), answer.take("h")
    if error != 0:
        return []
    for _ in range(answer.length()):
        answer.text()  # State filters unknown to the broker: none was sent.
    names = []
    for _ in range(answer.length()):
        names.append(answer.text())
        answer.take("q")
        answer.text()
        answer.length(0)
    return names


class _Answer:
    """A broker's answer, read from its beginning on."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0
        self.length(0)  # The header's tagged fields.

    def take(self, kind: str) -> int:
        """Read a number, by its letter in `struct`."""
        (value,) = struct.unpack_from(f">{kind}", self._content, self._place)
        self._place += struct.calcsize(kind if kind != "q" else "=q")
        return int(value)

    def length(self, offset: int = 1) -> int:
        """Read a varint, less the one by which an encoded length is larger."""
        value = shift = 0
        while True:
            byte = self._content[self._place]
            self._place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return max(0, value - offset)

    def text(self) -> str:
        """Read a text with its length before it."""
        size = self.length()
        self._place += size
        return self._content[self._place - size : self._place].decode()


def _compact(text: bytes) -> bytes:
    return bytes([len(text) + 1]) + text


def _ask(port: int, api: int, body: bytes) -> bytes:
    """Send a request of version 0 with header v2; returns the answer behind its correlation id."""
    return _exchange(port, struct.pack(">hhih", api, 0, 0, -1) + b"\x00" + body)


def _exchange(port: int, request: bytes) -> bytes:
    with socket.create_connection((HOST, port), _TIMEOUT_S) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", answers.read(4))
        return answers.read(size)[4:]
