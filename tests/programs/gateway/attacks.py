"""Attacks on a running gateway over the network: tokens, origins, frames, slow and many clients; one row for each.

The gateway, over topics in memory, is a process of its own, so that its memory can be measured::

    python -m tests.programs.gateway.attacks --connections 10000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.programs.gateway.target import UPGRADE, Target, masked, raise_limit

RETURNS_S = 10
"""The gateway gives memory back within this time after a wave of closed connections."""


def closing_s(taken: Callable[[], bytes]) -> float:
    """The seconds until the other side closes a connection."""
    began_s = time.monotonic()
    with suppress(ConnectionResetError, BrokenPipeError, ConnectionClosed):
        while taken():
            pass
    return time.monotonic() - began_s


def tokens(target: Target) -> str:
    """Forged, expired and revoked tokens prove nothing, over HTTP and WebSocket."""
    assert target.get("/v1/topics", target.token())[0] == 200
    wrong = {
        "alg none": target.token(algorithm="none"),
        "another key": target.token(target.other),
        "another audience": target.token(aud="other"),
        "another issuer": target.token(iss="them"),
        "expired": target.token(exp=time.time() - 11),  # The leeway is 10 s.
        "revoked": target.token(jti="revoked-1"),
        "none": "",
        "too long": "x" * 20_000,
    }
    for name, token in wrong.items():
        assert target.get("/v1/topics", token)[0] == 401, name
        with target.connect(None) as client:
            client.send(json.dumps({"op": "logon", "id": "1", "token": token}))
            assert json.loads(client.recv(30))["status"] == "failure", name
            with suppress(ConnectionClosed):
                client.recv(30)
            assert client.close_code == 4401, name
    with target.connect(target.token(exp=time.time() + 2)) as client:
        client.send(json.dumps({"op": "sow_and_subscribe", "id": "2", "topic": "orders"}))
        began_s = time.monotonic()
        with suppress(ConnectionClosed):
            while True:
                client.recv(30)
        assert client.close_code == 4401
    return f"{len(wrong)} kinds refused twice; a session ended {time.monotonic() - began_s - 2:.1f} s after its token"


def origins(target: Target) -> str:
    """A page of another site cannot connect."""
    refused = ["https://evil.example", "null", f"https://{target.host}.evil.example", "http://127.0.0.1:1"]
    for origin in refused:
        status = None
        try:
            target.connect(None, origin=origin)
        except InvalidStatus as error:
            status = error.response.status_code
        assert status == 403, origin
    return f"{len(refused)} origins refused with 403"


def frames(target: Target) -> str:
    """Malformed and deeply nested frames are answered with failures, and the connection serves on."""
    rng = random.Random(1)
    texts = ["", "{", "null", "[]", "[1]", '"x"', "{}", '{"op":1,"id":"1"}', "[" * 100_000, '{"a":' * 50_000 + "1"]
    texts += ['{"op":"sow","id":"' + "x" * 500 + '"}', '{"op":"sow","id":"1","topic":{}}', "NaN", "9" * 10_000]
    texts += [
        json.dumps([{"op": "ping", "id": ""}] * 500),
        '{"op":"sow","id":"7","topic":"orders","filter":"' + "(" * 9_000,
    ]
    valid = json.dumps({"op": "sow", "id": "9", "topic": "orders", "filter": "/qty > 3", "options": {"top_n": 3}})
    for _ in range(300):
        broken = list(valid)
        for _ in range(rng.randrange(1, 5)):
            broken[rng.randrange(len(broken))] = chr(rng.randrange(32, 1000))
        texts.append("".join(broken))
    with target.connect() as client:
        for text in texts:
            client.send(text)
        client.send(json.dumps({"op": "ping", "id": "last"}))
        while '"last"' not in client.recv(60):
            pass
    return f"{len(texts)} frames, the connection goes on"


def oversized(target: Target) -> str:
    """A frame that is too large, or whose parts never end, closes its connection, and memory does not grow."""
    before = target.rss_mb()
    with target.connect() as client:
        with suppress(ConnectionClosed):
            client.send("x" * 2_000_000)
            client.recv(30)
        assert client.close_code in (1006, 1009), client.close_code  # A reset may come before the reason.
    client = target.connect()
    sent = 0

    def endless() -> Any:
        nonlocal sent
        while True:
            sent += 60_000
            yield "x" * 60_000

    with suppress(ConnectionClosed, OSError):
        client.send(endless())
    assert sent < 64_000_000
    assert client.protocol.close_code in (1006, 1009), client.protocol.close_code  # As above.
    grown = target.rss_mb() - before
    assert grown < 64
    return f"closed, one after {sent:,} bytes of an endless frame; memory {grown:+.0f} MB"


def slow_heads(target: Target) -> str:
    """A head that comes byte by byte, or never ends, or a body that stops, ends its connection."""
    trickled, endless, silent = target.raw(), target.raw(), target.raw()
    began_s = time.monotonic()
    endless.sendall(b"GET /livez HTTP/1.1\r\n")
    sent = 0
    with suppress(OSError):
        while sent < 60_000_000:
            endless.sendall(b"X-A: " + b"y" * 1000 + b"\r\n")
            sent += 1007
    assert sent < 30_000_000  # 16 MiB are read after its answer, and the system takes some megabytes more.
    trickled.settimeout(0.5)
    for byte in b"GET /livez HTTP/1.1\r\nHost: a\r\nX-Long: " + b"y" * 1000:
        try:
            trickled.sendall(bytes([byte]))
            if trickled.recv(10) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    trickled_s = time.monotonic() - began_s
    assert trickled_s < 20
    closing_s(lambda: silent.recv(10))
    return f"closed after {trickled_s:.0f} s, an endless head after {sent:,} bytes"


def slow_readers(target: Target) -> str:
    """Clients that take nothing are closed, over WebSocket and Server-Sent Events, and memory stays bounded."""
    before = most = target.rss_mb()
    slow = []
    for number in range(40):
        bare = socket.socket()
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bare.settimeout(30)
        bare.connect(("127.0.0.1", target.port))
        slow.append(bare)
        if number % 2:
            path = "/v1/topics/orders/subscribe"
            bare.sendall(f"GET {path} HTTP/1.1\r\nHost: {target.host}\r\nAuthorization: Bearer t-root\r\n\r\n".encode())
            continue
        bare.sendall(UPGRADE.format(host=target.host).encode())
        while not bare.recv(4096).endswith(b"\r\n\r\n"):
            pass
        bare.sendall(masked(json.dumps({"op": "logon", "id": "1", "token": "t-root"})))
        bare.sendall(masked(json.dumps({"op": "sow_and_subscribe", "id": "2", "topic": "orders"})))
    until_s = time.monotonic() + 90
    while (left := target.write(2_000)) and time.monotonic() < until_s:
        most = max(most, target.rss_mb())
        time.sleep(0.05)
    assert not left, f"{left} slow readers are not closed"
    for one in slow:
        one.close()
    assert most - before < 600
    return f"{len(slow)} readers closed; memory at most {most - before:+.0f} MB meanwhile"


def http_and_events(target: Target) -> str:
    """Each user sees its own records and fields in queries, single records, windows, groups and events."""
    checked = 0

    def check(user: str, value: dict[str, Any]) -> None:
        nonlocal checked
        checked += 1
        assert target.hidden[user] not in value, (user, value)
        assert value.get("desk", target.desks[user]) == target.desks[user], (user, value)

    target.write(1_000)
    for user in list(target.desks)[:60]:
        token = f"t-{user}"
        for query in (
            "",
            "?filter=/secret%20%3D%20'hush'",
            "?order_by=/secret&top_n=50",
            "?select=%2B/",
            "?filter=/px=1",
        ):
            status, body = target.get(f"/v1/topics/orders/sow{query}", token)
            assert status == 200, body
            for line in body.splitlines():
                check(user, json.loads(line)["data"])
        for key in range(0, 300, 10):
            status, body = target.get(f"/v1/topics/orders/records/{key}", token)
            assert status in (200, 404)
            if status == 200:
                check(user, json.loads(body)["data"])
        path = "/v1/topics/orders/subscribe?op=sow_and_delta_subscribe&oof=true"
        with target.raw() as events:
            head = f"GET {path} HTTP/1.1\r\nHost: {target.host}\r\nAuthorization: Bearer {token}\r\n\r\n"
            events.sendall(head.encode())
            target.write(300)
            text, until_s = b"", time.monotonic() + 1
            events.settimeout(0.2)
            while time.monotonic() < until_s:
                with suppress(TimeoutError):
                    text += events.recv(1 << 20)
        assert b"hush" not in text or target.hidden[user] != "secret", user
        for line in text.replace(b"\r\n", b"\n").split(b"\n"):
            if line.startswith(b"data: "):
                with suppress(ValueError):  # A chunk's border.
                    tree = json.loads(line[6:])
                    for message in tree if isinstance(tree, list) else [tree]:
                        if message.get("data") is not None and message.get("reason") != "entitlement":
                            check(user, message["data"])
    return f"60 users, {checked:,} records over HTTP and events, none outside their rights"


def many(target: Target, connections: int) -> str:
    """Memory returns after many connections with subscriptions that were dropped without a farewell."""
    request = json.dumps({"op": "sow_and_subscribe", "id": "2", "topic": "orders", "filter": "/qty > 3"})

    async def open_one(gate: asyncio.Semaphore) -> asyncio.StreamWriter:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(UPGRADE.format(host=target.host).encode())
            await reader.readuntil(b"\r\n\r\n")
            for text in (json.dumps({"op": "logon", "id": "1", "token": "t-root"}), request):
                writer.write(masked(text))
            await reader.readuntil(b"group_end")
            return writer

    async def round_trip(count: int) -> float:
        gate = asyncio.Semaphore(100)
        writers = await asyncio.gather(*(open_one(gate) for _ in range(count)))
        held = target.rss_mb()
        for writer in writers:
            writer.transport.abort()
        return held

    def settle() -> float:
        """The least memory in the seconds after the last session has ended: the gateway gives it back in a while."""
        until_s = time.monotonic() + 60
        while target.write(1) and time.monotonic() < until_s:
            time.sleep(0.2)
        least, until_s = target.rss_mb(), time.monotonic() + RETURNS_S
        while time.monotonic() < until_s:
            time.sleep(0.2)
            least = min(least, target.rss_mb())
        return least

    asyncio.run(round_trip(min(connections, 500)))
    before = settle()
    held = asyncio.run(round_trip(connections))
    after = settle()
    assert target.write(1) == 0, "sessions are left"
    each_kb = (held - before) * 1024 / connections
    again = asyncio.run(round_trip(connections))
    last = settle()
    assert again - held < max(16.0, (held - before) * 0.1), (before, held, after, again, last)
    if os.environ.get("PYTHONMALLOC") == "malloc":  # Python's own allocator keeps arenas that are not empty.
        assert last - after < max(16.0, (held - before) * 0.1), (before, held, after, again, last)
        assert after - before < max(16.0, (held - before) * 0.2), (before, held, after, again, last)
    return (
        f"{connections:,} connections: {before:.0f} MB before, {held:.0f} held ({each_kb:.1f} KB each), "
        f"{after:.0f} after, {last:.0f} after a second round"
    )


def run(connections: int, seed: int, *, only_many: bool = False) -> None:
    """Run all attacks, or the many connections alone, and print a row for each."""
    raise_limit()
    with tempfile.TemporaryDirectory(prefix="sowstream-attacks-") as directory:
        target = Target(Path(directory), 200, random.Random(seed))
        try:
            target.write(2_000)
            print(f"{'many connections':<18} {many(target, connections)}", flush=True)
            if only_many:
                return
            for attack in (tokens, origins, frames, oversized, slow_heads, slow_readers, http_and_events):
                outcome = attack(target)
                target.is_well()
                print(f"{attack.__name__.replace('_', ' '):<18} {outcome}", flush=True)
        finally:
            target.commands.send(None)
            target.process.join(30)
            if target.process.is_alive():
                target.process.terminate()


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only-many", action="store_true", help="measure the memory of many connections alone")
    arguments = parser.parse_args()
    run(arguments.connections, arguments.seed, only_many=arguments.only_many)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
