"""Bytes of clients that keep no rule: what a connection may send, keep and hold up before a limit ends it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.exceptions import ConnectionClosed

from processor.gateway import uvicorn_http, uvicorn_websocket
from processor.gateway.uvicorn_http import HEAD_BYTES_MAX, PIPELINE_MAX, SILENT_MAX, GuardedHttp
from processor.gateway.uvicorn_websocket import LOGON_BYTES_MAX, AbortableWebSocket
from tests.certificates import Authority
from tests.gateway.memory import MemoryWorld
from tests.waiting import PATIENCE_S, until

UPGRADE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: sowstream.v1\r\n"
)
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
EVENTS = b"GET /v1/topics/orders/subscribe HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t-ann\r\n\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
MASK = b"\0\0\0\0"


def stream(guarded):
    """A connection on which Server-Sent Events have begun."""
    client = socket.create_connection(("127.0.0.1", guarded.world.gateway.port), timeout=PATIENCE_S)
    client.sendall(EVENTS)
    assert client.recv(15) == b"HTTP/1.1 200 OK"
    return client


def end_of(client):
    """Read until a connection ends; returns what came."""
    text = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(100_000):
            text += part
    return text


@pytest.mark.parametrize("key", [KEY, b""], ids=["whole", "wrong"])
def test_an_upgrade_behind_a_request_that_is_not_answered_ends_both(guarded, key):
    """A connection with Server-Sent Events that asks for a WebSocket is cut off, and leaves no session."""
    with stream(guarded) as client:
        client.sendall(UPGRADE + key + b"\r\n")
        end_of(client)
    until(lambda: not guarded.world.gateway.gateway.sessions, "the session has ended")


def test_requests_that_wait_behind_another_one_are_limited(guarded):
    """A connection with more requests behind its Server-Sent Events than may wait there is cut off."""
    with stream(guarded) as client:
        client.sendall(LIVE * (2 * PIPELINE_MAX))
        end_of(client)
    until(lambda: not guarded.world.gateway.gateway.sessions, "the session has ended")


@pytest.mark.parametrize("fields", [b"".join(b"x%d: 1\r\n" % number for number in range(200)), b"x: %09000d\r\n" % 1])
def test_an_upgrade_with_too_large_a_head_is_answered(memory_world, fields):
    """An upgrade with more fields, or a longer one, than a WebSocket's head may have gets 431, and ends."""
    with socket.create_connection(("127.0.0.1", memory_world.gateway.port), timeout=PATIENCE_S) as client:
        client.sendall(UPGRADE + KEY + fields + b"\r\n")
        assert end_of(client).startswith(b"HTTP/1.1 431 ")


def test_a_message_before_the_logon_is_small(guarded):
    """A message of 128 KB closes a socket without an identity with 1009, and is read from one that has logged on."""
    text = '[{"op": "ping", "id": "a"}' + " " * (2 * LOGON_BYTES_MAX) + "]"
    client = guarded.world.connect()
    client.socket.send(text)
    with pytest.raises(ConnectionClosed):
        client.ask("ping")
    assert client.socket.close_code == 1009
    client = guarded.world.connect("t-ann")
    client.socket.send(text)
    client.until(lambda: "a" in client.acks)
    client.close()


def test_a_large_message_may_follow_the_logon_at_once(guarded):
    """A client that sends its logon of 40 KB, and a message of 128 KB, without waiting for an answer gets both."""
    filling = " " * LOGON_BYTES_MAX
    client = guarded.world.connect()
    logon = '{"op": "logon", "id": "l", "token": "t-ann"' + filling[:40_000] + "}"
    for text in (logon, '[{"op": "ping", "id": "a"}' + filling * 2 + "]"):
        client.socket.send(text)
    client.until(lambda: "l" in client.acks and "a" in client.acks)
    client.close()


class _Transport(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.is_reading, self.is_closed = True, False

    def write(self, data):
        self.written += data

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def can_write_eof(self):
        return False

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True

    abort = close


def connected(kind, application):
    """A protocol of a kind for an application, and its transport."""
    config = uvicorn.Config(application, log_config=None, ws_max_size=1 << 20, ws_per_message_deflate=False)
    config.load()
    protocol, transport = kind(config, ServerState(), {}), _Transport()
    protocol.connection_made(transport)
    return protocol, transport


async def turns_until(condition):
    """Let an event loop go on until a condition holds; returns the number of its turns."""
    for turns in range(1_000_000):
        if condition():
            return turns
        await asyncio.sleep(0)
    raise AssertionError("it did not come true")


async def websocket(messages):
    """A WebSocket whose application takes each message at once."""

    async def application(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "sowstream.v1"})
        while (event := await receive())["type"] == "websocket.receive":
            messages.append(event["text"])

    protocol, transport = connected(AbortableWebSocket, application)
    protocol.data_received(UPGRADE + KEY + b"\r\n")
    await turns_until(lambda: protocol.handshake_complete)
    transport.written = b""
    return protocol, transport


def test_many_frames_that_come_at_once_are_read_in_turns():
    """Of a megabyte of empty pings some are answered, and others have their turn; nothing more comes meanwhile."""

    async def main():
        protocol, transport = await websocket([])
        count = 170_000
        protocol.data_received(b"\x89\x80%s" % MASK * count)
        assert not transport.is_reading
        assert await turns_until(lambda: len(transport.written) == 2 * count) > 5
        assert transport.is_reading

    asyncio.run(main())


def test_messages_that_come_at_once_wait_unread_for_the_application():
    """Of many messages that come at once few are queued; each is taken in its order."""

    async def main():
        messages = []
        protocol, transport = await websocket(messages)
        sent = [f"{number:05d}" for number in range(20_000)]
        protocol.data_received(b"".join(b"\x81\x85%s%s" % (MASK, text.encode()) for text in sent))
        assert protocol.queue.qsize() < 1_000
        await turns_until(lambda: len(messages) == len(sent))
        assert messages == sent
        assert transport.is_reading

    asyncio.run(main())


def test_messages_of_a_client_that_is_lost_are_taken():
    """Messages that came before the loss of a connection are taken, also those that are not parsed yet."""

    async def main():
        messages = []
        protocol, transport = await websocket(messages)
        sent = [f"{number:05d}" for number in range(20_000)]
        protocol.data_received(b"".join(b"\x81\x85%s%s" % (MASK, text.encode()) for text in sent))
        transport.close()
        protocol.connection_lost(ConnectionResetError())
        await turns_until(lambda: protocol.is_served)
        assert messages == sent

    asyncio.run(main())


def test_pings_of_a_client_that_takes_nothing_are_answered_once():
    """While its client takes nothing a WebSocket keeps the answer to the last ping alone, and then sends it."""

    async def main():
        protocol, transport = await websocket([])
        protocol.pause_writing()
        for number in range(1_000):
            protocol.data_received(b"\x89\x84%s%04d" % (MASK, number))
        assert transport.written == b""
        protocol.resume_writing()
        assert transport.written == b"\x8a\x040999"
        protocol.data_received(b"\x89\x80" + MASK)
        assert transport.written == b"\x8a\x040999\x8a\x00"

    asyncio.run(main())


def test_fragments_are_one_object():
    """A message in 100,000 fragments is kept as one, empty ones take no memory, and it is taken as it was sent."""

    async def main():
        messages = []
        protocol, _ = await websocket(messages)
        protocol.data_received(b"\x01\x81%sa" % MASK)
        for _ in range(10):
            protocol.data_received((b"\x00\x81%sb" % MASK + b"\x00\x80" + MASK) * 100)
            assert len(protocol.frames) == 1
        protocol.data_received(b"\x80\x81%sc" % MASK)
        await turns_until(lambda: messages)
        assert messages == ["a" + "b" * 1_000 + "c"]

    asyncio.run(main())


def test_a_wrong_frame_before_the_handshake_is_over_ends_the_connection():
    """Bytes that are no frame, which come before the application has accepted the WebSocket, end its connection."""

    async def main():
        accepts = asyncio.Event()

        async def application(_scope, _receive, _send):
            await accepts.wait()

        protocol, transport = connected(AbortableWebSocket, application)
        protocol.data_received(UPGRADE + KEY + b"\r\n")
        protocol.data_received(b"\xff\xff")
        assert transport.is_closed
        accepts.set()
        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_failure_in_a_later_turn_ends_the_connection(monkeypatch):
    """A text that is no UTF-8, with a farewell behind it, ends a connection also after others had a turn."""
    monkeypatch.setattr(uvicorn_websocket, "TURN_S", -1.0)

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        protocol, transport = await websocket([])
        protocol.data_received(b"\x89\x80%s" % MASK * 683 + b"\x81\x81%s\xff\x88\x80%s" % (MASK, MASK))
        assert not transport.is_closed
        await turns_until(lambda: transport.is_closed)

    asyncio.run(main())


async def refusing(_scope, _receive, send):
    """Answers a request before its body."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def waiting(_scope, receive, send):
    """Begins an answer that does not end."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while (await receive())["type"] != "http.disconnect":
        pass


def test_a_request_that_is_answered_ends_with_its_connection():
    """A request with another one behind it learns that the connection is lost, as the last one does."""

    async def main():
        ended = []

        async def application(scope, receive, send):
            await waiting(scope, receive, send)
            ended.append(scope["path"])

        protocol, _ = connected(GuardedHttp, application)
        protocol.data_received(EVENTS + LIVE)
        await asyncio.sleep(0)
        protocol.connection_lost(None)
        await turns_until(lambda: ended)
        assert ended == ["/v1/topics/orders/subscribe"]

    asyncio.run(main())


@pytest.mark.parametrize("application", [refusing, waiting])
@pytest.mark.parametrize("part", [b"a:\r\n", b"ab", b"1;" + b"x" * 1_000], ids=["fields", "one field", "extension"])
def test_what_comes_around_the_parts_of_a_body_is_limited(application, part):
    """Trailers, or one without an end, end a connection behind 64 KiB; the request has none of them."""

    async def main():
        protocol, transport = connected(GuardedHttp, application)
        protocol.data_received(b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.01)
        scope = protocol.cycle.scope
        protocol.data_received(b"3\r\nabc\r\n" + (b"" if part.startswith(b"1;") else b"0\r\n"))
        sent = 0
        while not transport.is_closed and sent < 10 * HEAD_BYTES_MAX:
            protocol.data_received(part * 100)
            sent += len(part) * 100
        assert transport.is_closed
        assert len(scope["headers"]) == 2
        protocol.connection_lost(None)
        await asyncio.sleep(0.01)

    asyncio.run(main())


async def counting(_scope, receive, send):
    """Answers a request with the number of bytes in its body."""
    size, more = 0, True
    while more:
        event = await receive()
        size, more = size + len(event["body"]), event["more_body"]
    text = b"%d bytes" % size
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


@pytest.mark.parametrize("size", [0, 2_000, 10_000])
@pytest.mark.parametrize("part", [100, 50_000])
def test_an_offer_of_another_protocol_is_ignored(size, part):
    """A request that offers HTTP/2 is an ordinary one: its body arrives, and so do the requests behind it."""

    async def main():
        protocol, transport = connected(GuardedHttp, counting)
        offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
        head = b"POST /x HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n" % (offer, size)
        sent = (head + b"z" * size) * 2 + b"GET /x HTTP/1.1\r\nHost: a\r\n%s\r\n" % offer + LIVE
        for begin in range(0, len(sent), part):
            protocol.data_received(sent[begin : begin + part])
        await turns_until(lambda: transport.written.count(b" bytes") == 4 or transport.is_closed)
        assert transport.written.count(b"%d bytes" % size) >= 2
        assert not transport.is_closed
        protocol.end()

    asyncio.run(main())


def test_many_small_fields_are_a_large_head():
    """A head of 20 KB in 5,000 fields is refused: each takes 120 bytes of memory."""

    async def main():
        protocol, transport = connected(GuardedHttp, refusing)
        protocol.data_received(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 5_000)
        assert transport.written.startswith(b"HTTP/1.1 431 ")
        protocol.end()

    asyncio.run(main())


@pytest.fixture
def encrypted(tmp_path):
    """A gateway with a certificate; with the context of a client that trusts it."""
    authority = Authority(tmp_path)
    authority.issue("gateway", "DNS:localhost")
    tls = {"certificate": tmp_path / "gateway.pem", "key": tmp_path / "gateway.key"}
    made = MemoryWorld(tls=tls, wait=False)
    yield made, ssl.create_default_context(cafile=str(authority.file))
    made.close()


def test_connections_count_before_their_handshake(encrypted, monkeypatch):
    """More connections without a TLS handshake than may be silent: the oldest are closed, and health pages answer."""
    monkeypatch.setattr(uvicorn_http, "_MOMENT_S", 0.0)
    world, context = encrypted
    silent = [socket.create_connection(("127.0.0.1", world.gateway.port), PATIENCE_S) for _ in range(SILENT_MAX + 20)]
    connection = http.client.HTTPSConnection("localhost", world.gateway.port, timeout=PATIENCE_S, context=context)
    connection.request("GET", "/livez")
    assert connection.getresponse().read() == b"ok\n"
    assert end_of(silent[0]) == b""
    connection.close()
    for one in silent:
        one.close()


def test_a_handshake_has_the_time_of_a_head(encrypted, monkeypatch):
    """A connection that does not begin its TLS handshake is closed after the time that the head of a request has."""
    monkeypatch.setattr("processor.gateway.uvicorn_http.HEAD_TIMEOUT_S", 0.2)
    world, _ = encrypted
    with socket.create_connection(("127.0.0.1", world.gateway.port), PATIENCE_S) as silent:
        assert end_of(silent) == b""
    until(lambda: world.gateway.call(lambda: not uvicorn_http._silent), "no connection waits")
