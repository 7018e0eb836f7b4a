"""A gateway under attack: a process of its own, over topics in memory, with tokens and rights of many users."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import resource
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jwt
import uvloop
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from websockets.sync.client import connect

IDLE_S = 3
"""The gateway's limit for clients that take nothing."""
DESKS = [f"d{number}" for number in range(10)]
UPGRADE = (
    "GET /v1/ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: sowstream.v1\r\n\r\n"
)


def gateway_process(directory: Path, commands: Any) -> None:
    """A gateway with tokens; it writes the records that `commands` bring, and answers each."""
    from tests.gateway.memory import MemoryWorld

    raise_limit()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # The loop of `sowstream gateway`.
    auth = {
        "tokens_file": directory / "tokens.yaml",
        "jwt": {"public_key_file": directory / "key.pem", "issuer": "us", "audience": "gateway"},
    }
    limits = {"idle_timeout_s": IDLE_S, "connections": 20_000, "connections_per_identity": 20_000}
    world = MemoryWorld(auth=auth, entitlements=directory / "entitlements.yaml", limits=limits)
    commands.send(world.gateway.port)
    feed = world.feeds["orders"]
    while (records := commands.recv()) is not None:
        world.gateway.call(lambda records=records: [feed.write(key, value) for key, value in records])
        commands.send(len(world.gateway.gateway.sessions))
    world.close()


def raise_limit() -> None:
    """Allow as many open files as the system lets a process have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))


class Target:
    """The gateway under attack, and the users that it knows."""

    def __init__(self, directory: Path, users: int, rng: random.Random) -> None:
        self.rng = rng
        self.key, self.other = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
        public = self.key.public_key()
        form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        (directory / "key.pem").write_bytes(public.public_bytes(*form))
        self.desks = {f"u{number}": rng.choice(DESKS) for number in range(users)}
        self.hidden = {user: rng.choice(["secret", "px"]) for user in self.desks}
        self.rights: dict[str, Any] = {
            "users": {
                user: {"orders": {"read": f"/desk = '{desk}'", "select": f"-/{self.hidden[user]}"}}
                for user, desk in self.desks.items()
            },
            "revoked": ["revoked-1"],
        }
        self.rights["users"]["root"] = {"orders": {"read": True, "publish": True, "delete": True}}
        (directory / "entitlements.yaml").write_text(yaml.safe_dump(self.rights))
        tokens = {f"t-{user}": {"user": user} for user in [*self.desks, "root"]}
        (directory / "tokens.yaml").write_text(yaml.safe_dump(tokens))
        context = multiprocessing.get_context("spawn")
        self.commands, theirs = context.Pipe()
        self.process = context.Process(target=gateway_process, args=(directory, theirs), daemon=True)
        self.process.start()
        self.host = f"127.0.0.1:{self.commands.recv()}"
        self.port = int(self.host.rpartition(":")[2])

    def write(self, count: int) -> int:
        """Write random records; returns the number of the gateway's sessions."""
        rng = self.rng
        self.commands.send(
            [
                (key, {"id": key, "desk": rng.choice(DESKS), "qty": rng.randrange(9), "px": 1, "secret": "hush"})
                for key in (rng.randrange(300) for _ in range(count))
            ]
        )
        return int(self.commands.recv())

    def rss_mb(self) -> float:
        """The resident memory of the gateway, MB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the gateway has ended")

    def get(self, path: str, token: str) -> tuple[int, bytes]:
        """The status and the body of a request."""
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://{self.host}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def connect(self, token: str | None = "t-root", **arguments: Any) -> Any:
        """A WebSocket that has logged on."""
        options = {"subprotocols": ["sowstream.v1"], "compression": None, "max_size": None} | arguments
        client = connect(f"ws://{self.host}/v1/ws", **options).__enter__()
        if token is not None:
            client.send(json.dumps({"op": "logon", "id": "1", "token": token}))
            answer = json.loads(client.recv(30))
            assert answer["status"] == "success", answer
        return client

    def raw(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def token(self, key: Any = None, algorithm: str = "RS256", **changes: Any) -> str:
        """A JSON Web Token of the user root."""
        claims = {"sub": "root", "iss": "us", "aud": "gateway", "exp": time.time() + 60, **changes}
        return jwt.encode(claims, None if algorithm == "none" else key or self.key, algorithm=algorithm)

    def is_well(self) -> None:
        """Check that the gateway serves others."""
        with self.connect() as client:
            client.send(json.dumps({"op": "ping", "id": "2"}))
            assert json.loads(client.recv(30))["status"] == "success"


def masked(text: str) -> bytes:
    """A text frame as clients send it, with a mask of zeros."""
    data = text.encode()
    length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0xFE]) + len(data).to_bytes(2, "big")
    return b"\x81" + length + b"\0\0\0\0" + data
