"""Sockets, names and files: health pages, connections without an identity, odd paths, limits, and compressed files."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import itertools
import json
import socket
import threading

import pytest
import structlog
from websockets.exceptions import ConnectionClosed, InvalidStatus

from processor.config.gateway import GatewayLimits
from processor.gateway import uvicorn_http, websocket
from processor.gateway.access.allowances import Allowance, Allowances
from processor.gateway.access.identity import Identity
from processor.gateway.access.requests import BadRequest
from processor.gateway.application import WEB
from processor.gateway.commands.turns import BoundedExecutor
from processor.gateway.uvicorn_http import SILENT_MAX
from tests.gateway.memory import Guarded, MemoryWorld
from tests.waiting import until


@pytest.fixture
def guarded(tmp_path):
    """A gateway with tokens, for 50 connections."""
    made = Guarded(tmp_path, limits={"connections": 50, "words_per_s": 1_000_000})
    yield made
    made.world.close()


def test_users_have_places_whatever_sockets_without_an_identity_do(guarded):
    """Of 50 connections 5 may be without an identity; users log on beside them, and health pages answer."""
    held = [guarded.world.connect() for _ in range(5)]
    with pytest.raises(InvalidStatus, match="503"):
        guarded.world.connect()
    held.pop().close()
    until(lambda: len(guarded.world.gateway.gateway.sessions) == 4, "the end of the closed one")
    user = guarded.world.connect("t-ann")
    assert user.ask("ping")["status"] == "success"
    assert guarded.world.gateway.get("/livez")[0] == 200
    for one in (*held, user):
        one.close()


def test_other_frames_do_not_put_off_the_end_of_a_socket_without_an_identity(guarded, monkeypatch):
    """A socket is closed at its time though it sends frames, and is gone though it does not answer the end."""
    monkeypatch.setattr(websocket, "LOGON_TIMEOUT_S", 0.5)
    client = guarded.world.connect()
    with contextlib.suppress(ConnectionClosed):
        while True:
            client.ask("ping")
    assert client.socket.close_code == 4401
    with socket.create_connection(("127.0.0.1", guarded.world.gateway.port), timeout=60) as mute:
        mute.sendall(
            b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Sec-WebSocket-Protocol: sowstream.v1\r\n\r\n"
        )
        with contextlib.suppress(ConnectionResetError):
            while mute.recv(1000):
                pass


def test_a_burst_of_clients_is_served(memory_world, monkeypatch):
    """Far more clients that come at one moment than connections may be silent: each is answered, none is closed."""
    monkeypatch.setattr(uvicorn_http, "_MOMENT_S", 60.0)  # A busy machine accepts them slowly.
    held, released = threading.Event(), threading.Event()
    memory_world.gateway._loop.call_soon_threadsafe(lambda: (held.set(), released.wait(60)))
    held.wait(60)
    clients = []
    for _ in range(2 * SILENT_MAX):
        clients.append(socket.create_connection(("127.0.0.1", memory_world.gateway.port), timeout=60))
        clients[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    released.set()
    assert {client.recv(15) for client in clients} == {b"HTTP/1.1 200 OK"}
    for client in clients:
        client.close()


def test_silent_connections_make_room_for_others(memory_world, monkeypatch):
    """More connections without a request than there may be: the oldest are closed, and health pages answer."""
    monkeypatch.setattr(uvicorn_http, "_MOMENT_S", 0.0)
    silent = [
        socket.create_connection(("127.0.0.1", memory_world.gateway.port), timeout=60) for _ in range(SILENT_MAX + 20)
    ]
    assert memory_world.gateway.get("/livez")[0] == 200
    with contextlib.suppress(ConnectionResetError):
        assert silent[0].recv(1) == b""
    for one in silent:
        one.close()


def sent_all(gateway, *parts):
    """An HTTP connection whose client sends all of its parts before it reads; with the first answer."""
    connection = http.client.HTTPConnection(gateway.address, timeout=60)
    connection.connect()
    for part in parts:
        connection.sock.sendall(part)
    answer = http.client.HTTPResponse(connection.sock)
    answer.begin()
    return connection, answer


POST = b"POST /v1/topics/orders/publish HTTP/1.1\r\nHost: localhost\r\n"
PIECE = b"x" * 1_000_000


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_sender_of_too_large_a_body_reads_its_answer(memory_world, is_chunked):
    """A client that sends 8 MB before it reads gets 413, and its connection serves the next request."""
    if is_chunked:
        chunk = b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
        parts = [POST + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 8, b"0\r\n\r\n"]
    else:
        parts = [POST + b"Content-Length: 8000000\r\n\r\n", *[PIECE] * 8]
    connection, answer = sent_all(memory_world.gateway, *parts)
    assert (answer.status, json.loads(answer.read())["reason"]) == (413, "too_large")
    connection.sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = http.client.HTTPResponse(connection.sock)
    answer.begin()
    assert answer.read() == b"ok\n"
    connection.close()


def test_a_sender_that_asks_first_is_not_told_to_go_on(memory_world):
    """A client that waits for `100 Continue` before a body that is too large gets 413 in its place."""
    head = b"Expect: 100-continue\r\nContent-Length: 8000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", memory_world.gateway.port), timeout=60) as client:
        client.sendall(POST + head)
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_sender_of_too_large_a_head_reads_its_answer(memory_world):
    """A client that sends a head of 1 MB before it reads gets 431, and the connection ends."""
    connection, answer = sent_all(memory_world.gateway, b"GET /livez HTTP/1.1\r\nX: ", PIECE, b"\r\n\r\n")
    assert (answer.status, json.loads(answer.read())["status"]) == (431, 431)
    assert connection.sock.recv(1) == b""
    connection.close()


@pytest.mark.parametrize("first", ["body", "head", "events"])
def test_what_is_thrown_away_is_bounded(memory_world, monkeypatch, first):
    """A client that goes on after its answer, or with a head behind a request that is not answered, is cut off."""
    monkeypatch.setattr(uvicorn_http, "REST_BYTES_MAX", 3 * len(PIECE))
    head = {
        "body": POST + b"Content-Length: 800000000\r\n\r\n",
        "head": b"GET /livez HTTP/1.1\r\nX: " + PIECE,
        "events": b"GET /v1/topics/orders/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\nGET /livez HTTP/1.1\r\nX: ",
    }[first]
    with socket.create_connection(("127.0.0.1", memory_world.gateway.port), timeout=60) as client:
        client.sendall(head)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.sendall(PIECE * 100)


def test_a_request_behind_another_one_has_all_the_time(memory_world):
    """No time runs for the head of a second request that was read before the first one was answered."""
    events = b"GET /v1/topics/orders/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection, answer = sent_all(memory_world.gateway, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" + events)
    assert answer.read() == b"ok\n"
    memory_world.put(1, qty=7)
    text = b""
    while b'"qty":7' not in text:
        text += connection.sock.recv(10_000)
    until(lambda: memory_world.gateway.call(lambda: not uvicorn_http._silent), "no connection waits for a head")
    connection.close()


@pytest.mark.parametrize(
    "path",
    ["/%00", f"/{'x' * 300}", f"/{'x' * 5000}/y", "/%ff", "/..%2f..%2fgateway.py", "/adapters", "/index.html%00"],
)
def test_a_path_that_no_file_has_is_not_found(memory_world, path):
    """Names with a null, names that are too long and folders are 404."""
    assert memory_world.gateway.get(path)[0] == 404


def test_without_tokens_another_name_is_refused_at_every_address(monkeypatch):
    """A gateway that listens everywhere without tokens answers to listed names, and says what to do about others."""
    memory_world = MemoryWorld(auth="none", listen="0.0.0.0:0", hosts=["gateway"])
    try:
        for host in ("gateway:8080", "localhost:8080", "10.0.0.7:8080"):
            assert memory_world.gateway.get("/v1/topics", {"Host": host})[0] == 200
        status, _, body = memory_world.gateway.get("/v1/topics", {"Host": "evil.example"})
        assert status == 403
        assert "gateway.hosts" in json.loads(body)["detail"]
    finally:
        memory_world.close()


def test_publishes_over_http_are_limited_by_their_records(tmp_path):
    """The records of an identity count, over WebSocket and HTTP together: the next request gets 429."""
    guarded = Guarded(tmp_path, limits={"publishes_per_s": 1})
    try:
        bearer = {"Authorization": "Bearer t-ann"}
        lines = b"\n".join(b'{"id": %d}' % number for number in range(1000))
        assert guarded.world.gateway.get("/v1/topics/orders/publish", bearer, lines)[0] == 200
        status, headers, body = guarded.world.gateway.get("/v1/topics/orders/publish", bearer, b'{"id": 1}')
        assert (status, headers["retry-after"], json.loads(body)["reason"]) == (429, "1", "too_many")
        client = guarded.world.connect("t-ann")
        assert client.ask("publish", topic="orders", data={"id": 1})["reason"] == "too_many"
        client.close()
    finally:
        guarded.world.close()


def test_a_body_of_many_lines_gives_way_to_others(guarded):
    """Of a body whose lines are all refused a hundred are taken in a turn; few log lines count them all."""
    gateway, refused = guarded.world.gateway, []

    async def watch():
        while True:
            refused.append(gateway.gateway.metrics.refused_publishes)
            await asyncio.sleep(0)

    watching = asyncio.run_coroutine_threadsafe(watch(), gateway._loop)
    with structlog.testing.capture_logs() as lines:
        bearer = {"Authorization": "Bearer t-eve"}
        assert gateway.get("/v1/topics/orders/publish", bearer, b"1\n" * 2_000)[0] == 422
        watching.cancel()
        gateway.call(gateway.gateway.publishing.log_refusals)
    assert max(after - before for before, after in itertools.pairwise(refused)) <= 100
    logged = [line for line in lines if "refused" in line["event"]]
    assert sum(line.get("count", 1) for line in logged) == refused[-1] == 2_000
    assert len(logged) < 10


def test_the_lines_of_a_body_are_limited(memory_world):
    """A body of 10,001 lines gets 413, and publishes none; a record of as many lines is published."""
    for body, status in ((b'{"id": 1}\n' * 10_001, 413), (b'{"id": 1, "n": [1' + b",\n1" * 10_001 + b"]}", 200)):
        assert memory_world.gateway.get("/v1/topics/orders/publish", data=body)[0] == status
    assert memory_world.feeds["orders"].versions == {b"1": 1}


def test_an_allowance_grows_with_time_and_is_the_identitys():
    """Requests beyond a second's share wait, on all connections of the identity together."""
    now_s = [0.0]
    allowance = Allowance(GatewayLimits(requests_per_s=10), clock_s=lambda: now_s[0])
    allowance.requests.take(30)
    assert allowance.requests.wait_s() == pytest.approx(2.1)
    with pytest.raises(BadRequest, match="10 requests in a second"):
        allowance.requests.spend(1)
    now_s[0] = 2.2
    allowance.requests.spend(1)
    now_s[0] = 100.0
    allowance.requests.spend(10)
    assert allowance.requests.wait_s() > 0
    allowances = Allowances(GatewayLimits())
    assert allowances.of(Identity("ann")) is allowances.of(Identity("ann", ("desk",)))
    assert allowances.of(Identity("ann")) is not allowances.of(Identity("bob"))


def test_an_identity_numbers_commands_under_a_limited_number_of_names(tmp_path):
    """Workers remember so many publishers only: an identity may not displace others by ever new names of its own."""
    now_s = [0.0]
    names = Allowance(GatewayLimits(publisher_names=2), clock_s=lambda: now_s[0]).names
    for name in ("a", "b", "a"):
        names.use(name)
    now_s[0] = 86_399.0
    names.use("b")
    with pytest.raises(BadRequest, match="2 names"):
        names.use("c")
    now_s[0] = 86_400.0
    names.use("c")
    guarded = Guarded(tmp_path, limits={"publisher_names": 2})
    try:
        answers = []
        for name in ("a", "b", "c", "b"):
            client = guarded.world.connect("t-ann")
            client.ask("logon", token="t-ann", client=name)
            answers += [client.ask("publish", topic="orders", data={"id": 1}, sequence=len(answers) + 1)]
            assert client.ask("publish", topic="orders", data={"id": 1})["status"] == "success"
            client.close()
        assert [one.get("reason") for one in answers] == [None, None, "limit", None]
    finally:
        guarded.world.close()


def test_calls_that_hang_are_bounded():
    """Two calls run, one waits, and a fourth is refused at once; a call whose caller is gone counts until it ends."""
    goes_on = threading.Event()

    async def main():
        executor = BoundedExecutor("questions", threads=2, waiting_max=1)
        tasks = [asyncio.create_task(executor.run(goes_on.wait, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        with pytest.raises(BadRequest, match="3 questions are under way"):
            await executor.run(goes_on.wait, 60)
        goes_on.set()
        await asyncio.wait(tasks)
        assert await executor.run(lambda: 7) == 7
        executor.close()

    asyncio.run(main())


def test_a_call_whose_caller_is_gone_is_dropped_before_it_begins():
    """Of calls that need their caller, those of a caller that is gone make room at once; the one that runs ends."""
    goes_on, begun, calls = threading.Event(), threading.Event(), []

    def running():
        begun.set()
        goes_on.wait(60)

    async def main():
        executor = BoundedExecutor("questions", threads=1, waiting_max=2, needs_caller=True)
        first = asyncio.create_task(executor.run(running))
        waiting = [asyncio.create_task(executor.run(calls.append, number)) for number in range(2)]
        await asyncio.to_thread(begun.wait, 60)
        for task in (first, *waiting):
            task.cancel()
        await asyncio.wait((first, *waiting))
        await asyncio.sleep(0)
        others = [asyncio.create_task(executor.run(calls.append, number)) for number in (7, 8)]
        await asyncio.sleep(0)
        with pytest.raises(BadRequest, match="3 questions are under way"):
            await executor.run(calls.append, 9)
        goes_on.set()
        await asyncio.gather(*others)
        executor.close()

    asyncio.run(main())
    assert calls == [7, 8]


def test_identities_take_turns_where_filters_are_compiled(guarded):
    """A client that has many long filters compiled waits for itself alone: another one's is compiled as the next."""
    gateway, order = guarded.world.gateway.gateway, []

    async def compiled(allowance, name):
        await gateway.compiled(1_000, lambda: order.append(name), allowance)

    async def main():
        mean, good = gateway.allowances.one(), gateway.allowances.one()
        tasks = [asyncio.create_task(compiled(mean, f"mean {number}")) for number in range(5)]
        tasks.append(asyncio.create_task(compiled(good, "good")))
        await asyncio.gather(*tasks)

    asyncio.run_coroutine_threadsafe(main(), guarded.world.gateway._loop).result(60)
    assert order == ["mean 0", "good", *[f"mean {number}" for number in range(1, 5)]]


def test_costly_subscriptions_of_an_identity_are_limited(guarded):
    """Costly live filters count over all connections of an identity, cheap ones do not, and an end makes room."""
    costly = " OR ".join(f"/note = '{number}'" for number in range(600))
    clients = [guarded.world.connect("t-ann") for _ in range(2)]
    answers = []
    for number in range(60):
        answers.append(clients[number % 2].ask("subscribe", topic="orders", filter=f"{costly} OR /n = {number}"))
        if answers[-1]["status"] == "failure":
            break
    assert answers[-1]["reason"] == "limit"
    assert len(answers) > 5
    assert clients[1].ask("subscribe", topic="orders", filter="/note = 'x'")["status"] == "success"
    clients[0].close()
    again = f"{costly} OR /n = -1"
    clients[1].until(lambda: clients[1].ask("subscribe", topic="orders", filter=again)["status"] == "success")
    clients[1].close()


def test_words_to_compile_are_limited(tmp_path):
    """Filters beyond the words of an identity are refused with `too_many`, over HTTP with 429."""
    guarded = Guarded(tmp_path, limits={"words_per_s": 1})
    try:
        client = guarded.world.connect("t-ann")
        text = " OR ".join(f"/note = '{number}'" for number in range(100))
        assert client.ask("sow", topic="orders", filter=text)["status"] == "success"
        assert client.ask("sow", topic="orders", filter=text)["reason"] == "too_many"
        assert client.ask("sow", topic="orders", options={"order_by": "/a"})["reason"] == "too_many"
        bearer = {"Authorization": "Bearer t-ann"}
        assert guarded.world.gateway.get("/v1/topics/orders/sow?order_by=/a", bearer)[0] == 429
        client.close()
    finally:
        guarded.world.close()


def test_a_file_is_sent_compressed_to_those_who_take_it(memory_world):
    """A browser gets a file compressed, and curl as it is."""
    plain = (WEB / "page.js").read_bytes()
    code, headers, body = memory_world.gateway.get("/page.js", {"Accept-Encoding": "gzip, br"})
    assert (code, headers["content-encoding"], headers["vary"]) == (200, "gzip", "Accept-Encoding")
    assert gzip.decompress(body) == plain
    assert len(body) < len(plain) / 2
    code, headers, body = memory_world.gateway.get("/page.js")
    assert (code, headers.get("content-encoding"), body) == (200, None, plain)


def test_a_file_that_a_browser_has_is_not_sent_again(memory_world):
    """A request with the tag of the file is answered with 304, until the file is another one."""
    tag = memory_world.gateway.get("/")[1]["etag"]
    code, headers, body = memory_world.gateway.get("/", {"If-None-Match": tag})
    assert (code, headers["etag"], body) == (304, tag, b"")
    assert memory_world.gateway.get("/page.js", {"If-None-Match": tag})[0] == 200


def test_pages_are_framed_by_their_own_site_alone(memory_world):
    """The panes of a page are frames of its own origin; another site may show none of it."""
    policy = memory_world.gateway.get("/")[1]["content-security-policy"]
    assert "frame-ancestors 'self'" in policy
    assert "unsafe-eval'" not in policy.replace("'wasm-unsafe-eval'", "")


@pytest.mark.parametrize("path", ["/../gateway.py", "/%2e%2e/gateway.py", "/adapters/", "/nosuch.js", "/%00.js"])
def test_nothing_else_is_served(memory_world, path):
    """Files of other folders, folders, and names that no file can have are not found."""
    assert memory_world.gateway.get(path)[0] == 404
