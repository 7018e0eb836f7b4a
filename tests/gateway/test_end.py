"""The end of a gateway that is embedded in another program: nothing of it is left."""

import contextlib
import gc
import socket
import warnings

import pytest

from processor.errors import Stop
from processor.gateway import server
from tests.gateway.memory import MemoryWorld
from tests.gateway.running import RunningGateway
from tests.programs.gateway.target import UPGRADE, masked

RECORD_BYTES = 20_000_000
"""More than the buffers of two sockets hold."""
GET = "GET /v1/topics/orders/{path} HTTP/1.1\r\nHost: {{host}}\r\n\r\n"
SOW = masked('{"op":"sow_and_subscribe","id":"1","topic":"orders"}')


def leaks():
    """The warnings of Python about objects that were not closed."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    return [str(warning.message) for warning in found]


@pytest.mark.parametrize(
    ("head", "rest"),
    [(GET.format(path="records/1"), b""), (GET.format(path="subscribe?sow=1"), b""), (UPGRADE, SOW)],
    ids=["record", "events", "websocket"],
)
def test_a_client_that_takes_nothing_is_cut_off_at_the_end(monkeypatch, head, rest):
    """A gateway that ends waits some time for a client that takes nothing, and closes its socket then."""
    monkeypatch.setattr(server, "_CUT_OFF_S", 0.5)
    world = MemoryWorld()
    world.put(1, note="n" * RECORD_BYTES)
    with socket.socket() as slow:
        slow.settimeout(60)
        slow.connect(("127.0.0.1", world.gateway.port))
        slow.sendall(head.format(host="127.0.0.1").encode())
        taken = len(slow.recv(1024))
        if rest:
            slow.sendall(rest)
            taken = len(slow.recv(1024))
        world.close()
        with contextlib.suppress(ConnectionResetError):
            while data := slow.recv(65536):
                taken += len(data)
        assert taken < RECORD_BYTES
    del world
    assert not leaks()


def test_a_gateway_that_cannot_start_raises_and_leaves_no_socket():
    """A gateway whose feed cannot start raises Stop, and its port is free again."""
    world = MemoryWorld()
    world.close()

    def fails():
        raise RuntimeError("no feed")

    world.feeds["orders"].start = fails
    gateway = RunningGateway(world.config, feeds=world.feeds, wait=False)
    gateway._thread.join(60)
    assert isinstance(gateway.error, Stop)
    assert gateway.socket.fileno() == -1
