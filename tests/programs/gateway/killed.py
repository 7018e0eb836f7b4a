"""The gateway is killed under many clients: all resume, nearly all without a snapshot, and nothing is lost or repeated.

A real Kafka, a real `sowstream gateway` process, and clients in this process. While records are written to the SOW
topic, the gateway is killed (SIGKILL) and started again. Each client checks its messages: deltas apply to the version
that it holds, no version comes twice. At the end each holds the records of the topic::

    python -m tests.programs.gateway.killed --clients 100 --kills 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import yaml
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from processor.trial.broker import EmbeddedBroker
from tests.endtoend.world import World
from tests.gateway.running import SowWriter, merge, remove

KEYS = 50


class Follower:
    """A client that resumes by itself, and counts."""

    def __init__(self, address: str, topic: str, number: int) -> None:
        self.url = f"ws://{address}/v1/ws"
        self.request = {
            "op": "sow_and_delta_subscribe",
            "id": "1",
            "topic": topic,
            "filter": f"/group = {number % 5}",
            "options": {"oof": True},
        }
        self.records: dict[str, tuple[dict[str, Any], int]] = {}
        self.stale: set[str] = set()
        self.bookmark: str | None = None
        self.snapshots = self.resumes = self.repeated = 0
        self.back_s: float | None = None

    async def follow(self) -> None:
        """Follow the topic until the task is cancelled."""
        while True:
            try:
                async with connect(
                    self.url, subprotocols=["sowstream.v1"], compression=None, max_size=None, open_timeout=60
                ) as socket:
                    request = dict(self.request)
                    if self.bookmark is not None:
                        request["resume"] = self.bookmark
                        self.resumes += 1
                    await socket.send(json.dumps(request))
                    async for text in socket:
                        tree = json.loads(text)
                        for message in tree if isinstance(tree, list) else [tree]:
                            self.hear(message)
            except (OSError, WebSocketException, TimeoutError):
                await asyncio.sleep(random.random() * 0.5)

    def hear(self, message: dict[str, Any]) -> None:
        """Apply a message."""
        if message.get("op") == "ack":
            if message.get("reason") == "unavailable":
                raise ConnectionResetError("not now")  # `follow` asks again.
            assert message["status"] == "success", message
            self.back_s = self.back_s or time.monotonic()
            return
        self.bookmark = message.get("bookmarks", {}).get("1", self.bookmark)
        command, key = message.get("command"), message.get("sow_key")
        if command == "group_begin":
            self.snapshots += 1
            self.stale = set(self.records)
        elif command == "group_end":
            for gone in self.stale:
                self.records.pop(gone, None)
            self.stale = set()
        elif command == "oof":
            self.records.pop(str(key), None)
        elif message.get("delta"):
            record, version = self.records[str(key)]
            assert message["delta_base"] <= version, "a gap"
            self.repeated += message["version"] <= version
            merge(record, message["data"])
            for path in message.get("removed", ()):
                remove(record, path)
            self.records[str(key)] = (record, message["version"])
        elif command in ("sow", "publish"):
            self.stale.discard(str(key))
            self.records[str(key)] = (message["data"], message["version"])


def started(world: World, address: str, log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """A gateway process, which logs to a file, or where this one does."""
    command = [sys.executable, "-m", "processor.cli.main", "gateway", "-c", str(world.file), "--listen", address]
    return subprocess.Popen(command, stdout=log, stderr=log)


def is_ready(address: str) -> bool:
    """Return True once the gateway serves all of its views."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def run(world: World, clients: int, kills: int, port: int) -> None:
    """Run the program."""
    address = f"127.0.0.1:{port}"
    writer = SowWriter(world)
    rng = random.Random(1)

    def write(count: int) -> None:
        for _ in range(count):
            key = rng.randrange(KEYS)
            if str(key) in writer.records and rng.random() < 0.1:
                writer.delete(key)
            else:
                writer.put(key, group=rng.randrange(5), n=rng.randrange(1000))

    await asyncio.to_thread(write, KEYS)
    gateway = started(world, address)
    while not await asyncio.to_thread(is_ready, address):  # noqa: ASYNC110 - A state of others.
        await asyncio.sleep(0.1)
    followers = [Follower(address, world.name, number) for number in range(clients)]
    tasks = [asyncio.create_task(follower.follow()) for follower in followers]
    while any(follower.bookmark is None for follower in followers):  # noqa: ASYNC110 - A state of others.
        await asyncio.sleep(0.1)
    first = sum(follower.snapshots for follower in followers)
    for _ in range(kills):
        await asyncio.to_thread(write, 30)
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
        for follower in followers:
            follower.back_s = None
        began_s = time.monotonic()
        await asyncio.to_thread(write, 10)
        gateway = started(world, address)
        while any(follower.back_s is None for follower in followers):  # noqa: ASYNC110 - A state of others.
            await asyncio.sleep(0.05)
        print(f"killed: all {clients:,} clients are back in {time.monotonic() - began_s:.1f} s", flush=True)
    wanted = dict(writer.records)
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        wrong = [
            follower
            for follower in followers
            if {key: record for key, (record, _) in follower.records.items()}
            != {key: one for key, one in wanted.items() if one["group"] == int(follower.request["filter"][-1])}
        ]
        if not wrong:
            break
        await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gateway.terminate()
    code = await asyncio.to_thread(gateway.wait)
    again = sum(follower.snapshots for follower in followers) - first
    resumed = sum(follower.resumes for follower in followers)
    repeated = sum(follower.repeated for follower in followers)
    print(
        f"{resumed:,} resumes, {again:,} of them with a snapshot, {repeated:,} repeated, {len(wrong):,} clients wrong"
    )
    print(f"the gateway ended with exit code {code}")
    assert not wrong
    assert not repeated
    assert again <= resumed * 0.05
    assert code == 0


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--bootstrap")
    parser.add_argument("--port", type=int, default=18_980)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-gateway-")))
        bootstrap = arguments.bootstrap or stack.enter_context(EmbeddedBroker()).bootstrap
        world = World(bootstrap, directory, f"gk{random.randrange(10**6)}")
        tree = yaml.safe_load(world.file.read_text())
        world.file.write_text(yaml.safe_dump(tree | {"gateway": {"topics": [world.name]}}))
        stack.callback(world.close)
        asyncio.run(run(world, arguments.clients, arguments.kills, arguments.port))


if __name__ == "__main__":
    main()
