"""The memory of closed connections returns: nothing waits for the collector, and free memory goes to the system."""

import asyncio
import gc
import json
import weakref

import pytest
from websockets.sync.client import connect

from processor.gateway.sessions.memory_keeper import CLOSED_MIN, MemoryKeeper
from processor.gateway.uvicorn_http import GuardedHttp
from processor.gateway.uvicorn_websocket import AbortableWebSocket
from processor.gateway.websocket import _Client
from tests.gateway.memory import MemoryWorld
from tests.waiting import PATIENCE_S, until


def test_memory_returns_when_a_wave_of_closed_connections_is_over():
    """Memory is returned when many connections have closed and the next second brings few more, and then not again."""
    keeper = MemoryKeeper()

    async def second(closed):
        for _ in range(closed):
            keeper.note_closed()
        await keeper.return_memory()
        return keeper.returns

    async def seconds(*closed):
        return [await second(count) for count in closed]

    assert asyncio.run(seconds(CLOSED_MIN - 1, 0, 0)) == [0, 0, 0]
    assert asyncio.run(seconds(CLOSED_MIN, CLOSED_MIN)) == [0, 0]
    assert asyncio.run(seconds(10, 0, 0)) == [1, 1, 1]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_closed_connection_is_freed_without_a_run_of_the_collector(is_dropped):
    """Of a connection that was closed, or dropped without a farewell, no object is left in a reference cycle."""
    world = MemoryWorld("quotes", auth="none")
    try:
        gateway = world.gateway.gateway

        def open_one():
            client = connect(
                f"ws://127.0.0.1:{world.gateway.port}/v1/ws", subprotocols=["sowstream.v1"], compression=None,
                open_timeout=PATIENCE_S, ping_interval=None,
            ).__enter__()  # fmt: skip
            request = {"op": "sow_and_subscribe", "id": "1", "topic": "quotes", "filter": "/qty > 3"}
            client.send(json.dumps(request))
            while "group_end" not in client.recv(60):
                pass
            return client

        def close(client):
            if is_dropped:
                client.socket.shutdown(2)
            client.close()

        close(open_one())  # All code is loaded.
        until(lambda: not gateway.sessions and not world.gateway.call(_connected))
        gc.collect()
        gc.disable()
        client = open_one()
        objects = world.gateway.call(lambda: [weakref.ref(one) for one in _of_one(gateway)])
        close(client)
        other = open_one()  # The gateway's loops over all sessions keep the last one that they came to.
        until(
            lambda: all(one() is None for one in objects),
            lambda: [type(one()).__name__ for one in objects if one() is not None],
        )
        close(other)
    finally:
        gc.enable()
        world.close()


def _of_loop(kind):
    """The connections of the event loop that runs: earlier tests of this process may have left those of others."""
    loop = asyncio.get_running_loop()
    return [one for one in gc.get_objects() if type(one) is kind and one.loop is loop]


def _connected():
    """The WebSockets whose clients are there."""
    return [one for one in _of_loop(AbortableWebSocket) if not one.disconnected]


def _of_one(gateway):
    """The session of the only connection, and the objects of it that the session does not own."""
    [session] = gateway.sessions
    [server] = _connected()
    client = session.sender.wake.__self__
    return [session, server, *_of_loop(GuardedHttp), server.conn, client]


def test_a_client_that_leaves_before_its_answer_was_sent_is_freed_too():
    """Its sender is cancelled before it has begun: neither holds the other."""
    world = MemoryWorld("quotes", auth="none")
    events = [{"type": "websocket.receive", "text": '{"op":"ping","id":"1"}'}, {"type": "websocket.disconnect"}]

    async def receive():
        return events.pop(0)

    async def served():
        client = _Client(world.gateway.gateway, receive, send=None, transport=None)
        await client.run()
        assert not events
        return weakref.ref(client)

    gc.disable()
    try:
        left = asyncio.run_coroutine_threadsafe(served(), world.gateway._loop).result(60)
        until(lambda: left() is None, left)
    finally:
        gc.enable()
        world.close()


class _Reading:
    """A session that reads a snapshot."""

    is_catching_up = True

    def __init__(self):
        self.is_flushed = False

    @property
    def sender(self):
        """It sends by itself."""
        return self

    def flush(self):
        """Note the turn."""
        self.is_flushed = True


@pytest.mark.parametrize("is_reading", [True, False])
def test_a_session_that_had_its_turn_is_kept_by_no_tick(is_reading):
    """The last session that a tick served is freed with its connection, not when another one reads a snapshot."""
    world = MemoryWorld("quotes", auth="none")
    try:
        session = _Reading()
        session.is_catching_up = is_reading
        world.gateway.gateway.waiting.append(session)
        until(lambda: session.is_flushed)
        kept = weakref.ref(session)
        session = None
        until(lambda: kept() is None)
    finally:
        world.close()
