"""The life of a session, and its end: renewed tokens, places, bookmarks of others, slow clients, and the log."""

import contextlib
import gc
import json
import socket
import urllib.request
import warnings
from functools import partial

import pytest
import structlog
from websockets.exceptions import ConnectionClosed

from processor.config.gateway import GatewayLimits
from processor.errors import Stop
from processor.gateway import server, websocket
from processor.gateway.access import allowances
from processor.gateway.access.requests import BadRequest
from tests.gateway.memory import TOKENS, Guarded, MemoryWorld
from tests.gateway.running import RunningGateway
from tests.programs.gateway.target import UPGRADE, masked
from tests.waiting import until


def test_a_renewed_token_brings_its_roles_and_keeps_the_user(guarded):
    """A second logon with other roles acts on running subscriptions; the token of another user is refused."""
    tokens = {**TOKENS, "t-bob-2": {"user": "bob", "roles": []}}
    guarded.write(guarded.tokens, tokens)
    guarded.world.gateway.call(guarded.world.gateway.gateway.authenticator.read_tokens)
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options={"oof": True})
    client.until(lambda: sub in client.ready)
    answer = client.ask("logon", token="t-ann")
    assert (answer["status"], "cannot change" in answer["detail"]) == ("failure", True)
    assert set(client.held(sub)) == {"1"}
    assert client.ask("logon", token="t-bob-2")["status"] == "success"
    client.until(lambda: any(message.get("op") == "ended" for message in client.messages))
    assert client.held(sub) == {}
    assert client.ask("sow", topic="orders")["reason"] == "not_entitled"
    client.close()


@pytest.mark.parametrize("name", ["desk~once-0f3c9a1e", f"key/k/{'0f' * 16}"])
def test_a_client_may_not_choose_a_name_that_is_forgotten(guarded, name):
    """Names of the form that idempotency keys and random clients have are refused; others that look random are not."""
    client = guarded.world.connect("t-ann")
    answer = client.ask("logon", token="t-ann", client=name)
    assert (answer["reason"], "forgotten after a day" in answer["detail"]) == ("bad_request", True)
    assert client.ask("logon", token="t-ann", client="ledger-20261127")["status"] == "success"
    client.close()


def test_the_bookmark_of_another_user_is_not_resumed(guarded):
    """A bookmark under other rights leads to a refetch: the client gets what its own rights show alone."""
    ann = guarded.world.connect("t-ann")
    sub = ann.subscribe("sow_and_delta_subscribe", "orders", options={"oof": True})
    ann.until(lambda: sub in ann.ready and sub in ann.bookmarks)
    guarded.world.put(2, desk="y", secret=22, qty=3)
    guarded.world.put(1, desk="x", secret=11, qty=4)
    bob = guarded.world.connect("t-bob")
    name = bob.send("sow_and_delta_subscribe", topic="orders", options={"oof": True}, resume=ann.bookmarks[sub])
    bob.until(lambda: name in bob.ready)
    assert [one for one, _ in bob.refetches] == [name]
    assert bob.held(name) == {"1": {"id": 1, "desk": "x", "qty": 4}}
    assert {message.get("sow_key") for message in bob.messages} <= {None, "1"}
    for client in (ann, bob):
        client.close()


def test_neither_tokens_nor_data_are_logged(guarded):
    """A refused logon, a refused publish and malformed requests are logged without a token and without data."""
    with structlog.testing.capture_logs() as lines:
        client = guarded.world.connect("t-bob")
        assert client.ask("publish", topic="orders", data={"id": 9, "desk": "hush"})["reason"] == "not_entitled"
        assert client.ask("logon", token="t-hush")["status"] == "failure"
        for text in ('{"op": "sow", "id": "x", "topic": {"hush": 1}}', '{"op": {"hush": 1}, "id": "y"}', '["hush"]'):
            client.socket.send(text)
        client.ask("sow", topic="orders", filter="/desk = 'hush' AND")
        guarded.world.gateway.get("/v1/topics/orders/sow?filter=hush", {"Authorization": "Bearer t-hush"})
        client.close()
    [refused] = [line for line in lines if line["event"] == "a command was refused"]
    assert (refused["user"], refused["topic"], refused["log_level"]) == ("bob", "orders", "warning")
    assert "hush" not in json.dumps(lines, default=str)


@pytest.fixture
def impatient():
    """A gateway that waits for 2 s; a busy one finds a slow client before the kernel takes it for gone, after 4 s."""
    made = MemoryWorld(limits={"idle_timeout_s": 2})
    yield made
    made.close()


def test_a_client_that_takes_nothing_is_closed(impatient):
    """A client that does not read while messages wait for it is closed after the limit, and the others are served."""
    gateway = impatient.gateway
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", gateway.port))
        slow.sendall(
            f"GET /v1/ws HTTP/1.1\r\nHost: {gateway.address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Protocol: sowstream.v1\r\n\r\n".encode()
        )
        assert b" 101 " in slow.recv(4096)
        request = json.dumps({"op": "subscribe", "id": "1", "topic": "orders"}).encode()
        slow.sendall(b"\x81" + bytes([0x80 | len(request)]) + b"\0\0\0\0" + request)
        until(lambda: any(session.subscriptions for session in list(gateway.gateway.sessions)))
        keys = iter(range(1_000_000))

        def is_closed():
            impatient.put(next(keys) % 50, note="n" * 200_000)
            return not gateway.gateway.sessions

        until(is_closed)
    assert gateway.gateway.metrics.closed_slow == 1
    client = impatient.connect()
    assert client.ask("ping")["status"] == "success"
    client.close()


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


@pytest.mark.parametrize(("connections", "places"), [(10_000, 2_500), (200, 100), (8, 8)])
def test_an_identity_has_a_quarter_of_the_places_but_enough_at_a_small_gateway(connections, places):
    """An identity has a quarter of the places of a gateway, and of a small one 100, or all."""
    share = allowances.Allowance(GatewayLimits(connections=connections)).places
    for _ in range(places):
        share.take()
    with pytest.raises(BadRequest, match=f"{places} connections and requests at the same time are the limit"):
        share.take()


def test_an_identity_has_a_part_of_the_places(tmp_path):
    """A third connection of an identity that may have two is refused for now, over HTTP too; others are served."""
    guarded = Guarded(tmp_path, limits={"connections_per_identity": 2})
    try:
        bearer = {"Authorization": "Bearer t-ann"}
        events = urllib.request.Request(
            f"http://{guarded.world.gateway.address}/v1/topics/orders/subscribe", headers=bearer
        )
        with urllib.request.urlopen(events, timeout=60):
            first = guarded.world.connect("t-ann")
            third = guarded.world.connect()
            answer = third.ask("logon", token="t-ann")
            assert (answer["status"], answer["reason"]) == ("failure", "too_many")
            with pytest.raises(ConnectionClosed):
                third.ask("ping")
            assert third.socket.close_code == websocket.TRY_AGAIN
            status, _, body = guarded.world.gateway.get("/v1/topics", bearer)
            assert (status, json.loads(body)["reason"]) == (429, "too_many")
            guarded.world.connect("t-bob").close()
            first.close()
            until(lambda: guarded.world.gateway.get("/v1/topics", bearer)[0] == 200, "a place is free")
            assert first.gateway.get("/v1/topics", bearer)[0] == 200
    finally:
        guarded.world.close()


def test_bodies_of_an_identity_that_do_not_come_are_limited(tmp_path, monkeypatch):
    """While as many bodies of an identity are awaited as may be, its next one gets 429, and another one's is taken."""
    monkeypatch.setattr(allowances, "BODIES_MAX", 2)
    guarded = Guarded(tmp_path)
    head = b"POST /v1/topics/orders/publish HTTP/1.1\r\nAuthorization: Bearer t-ann\r\nContent-Length: 9\r\n\r\n"
    try:
        with contextlib.ExitStack() as held:
            for _ in range(2):
                client = socket.create_connection(("127.0.0.1", guarded.world.gateway.port), timeout=60)
                held.enter_context(client).sendall(head)
            publish = partial(guarded.world.gateway.get, "/v1/topics/orders/publish", data=b'{"id": 9, "desk": "x"}')
            until(lambda: publish({"Authorization": "Bearer t-ann"})[0] == 429, "both bodies are awaited")
            assert publish({"Authorization": "Bearer t-bob"})[0] == 200
        until(lambda: publish({"Authorization": "Bearer t-ann"})[0] == 200, "both clients are gone")
    finally:
        guarded.world.close()
