"""A member of a share group without a Kafka that answers: it waits, ends in limited time, and hides no defect."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from processor.errors import Stop
from processor.queues.transport import share_member
from processor.queues.transport.share_member import ShareReader

# kafka-python leaves the socket of a failed connection to Python, which may close it in the midst of a test.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

CLOSE_MAX_S = 60.0
"""Less than the limit of these tests for a member that has something to say."""


@pytest.fixture
def listener(failed_connections: None) -> Iterator[socket.socket]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def reader_of(server: socket.socket) -> ShareReader:
    """A member whose only broker has this port."""
    kafka = {"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}
    return ShareReader(kafka, group="g", topic="t", leases_max=1, absence_max_s=60, on_lost=lambda *_: None)


@pytest.mark.parametrize("is_silent", [False, True], ids=["absent", "silent"])
def test_a_member_without_a_broker_waits_and_closes_at_once(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, is_silent: bool
):
    """An absent or silent Kafka is no error: nothing comes, and the end of the member waits for nothing."""
    monkeypatch.setattr(share_member, "_CLOSE_TIMEOUT_S", 10 * CLOSE_MAX_S)
    threads = set(threading.enumerate())
    reader = reader_of(listener)
    if not is_silent:
        listener.close()
    assert reader.poll(0.2) == []
    began_s = time.monotonic()
    reader.close()
    assert time.monotonic() - began_s < CLOSE_MAX_S
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("kafka-io")]


def test_the_end_of_the_network_thread_is_an_error(listener: socket.socket, monkeypatch: pytest.MonkeyPatch):
    """A defect that ended the thread is raised by the next call: it does not look like an empty queue."""
    reader = reader_of(listener)
    monkeypatch.setattr(reader._member._network._loop, "_exception", RuntimeError("a defect"))
    with pytest.raises(Stop, match="the network thread has ended: RuntimeError: a defect"):
        reader.poll(1)
    monkeypatch.undo()
    reader.close()
