"""A gateway on a free port in a thread of its own, and a plain client of its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.error
import urllib.request

from websockets.sync.client import connect

from processor.config import Config
from processor.config.gateway import GatewayConfig
from processor.gateway.gateway import Gateway
from processor.gateway.server import bound_socket, serve
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S, until


class RunningGateway:
    """A gateway of a world's topics; `stop` ends it and keeps its view."""

    def __init__(self, config: Config, *, wait=True, feeds=None, publishing=None, state_dir=None, **settings):
        self._feeds, self._publishing = feeds, publishing
        settings = {"listen": "127.0.0.1:0", **settings}
        elsewhere = {} if state_dir is None else {"state_dir": state_dir}
        self.config = config.model_copy(update={"gateway": GatewayConfig(**settings), **elsewhere})
        self.socket = bound_socket(self.config, is_shared=False)
        self.port = self.socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.error = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._started.wait(PATIENCE_S)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        """Wait until every view has caught up."""
        until(lambda: self.error is not None or self._is_ready(), "the gateway is ready")
        assert self.error is None, self.error

    def _is_ready(self):
        with contextlib.suppress(OSError):
            return self.get("/readyz")[0] == 200
        return False

    def get(self, path, headers=None, data=None):
        """The status, headers and body of a request."""
        request = urllib.request.Request(f"http://{self.address}{path}", data=data, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def connect(self, token=None, **kwargs):
        """A connected client; with a token it has logged on."""
        return PlainClient(self, token, **kwargs)

    def call(self, function, *arguments):
        """Call a function on the gateway's event loop, and return its result."""

        async def called():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(PATIENCE_S)

    def stop(self):
        """End it."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self):
        async def main():
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self.gateway = Gateway(self.config, feeds=self._feeds)
            if self._publishing is not None:
                self.gateway.publishing._send = self._publishing
            self._started.set()
            await serve(self.gateway, self.socket, self._stop)

        try:
            asyncio.run(main())
        except Exception as error:  # noqa: BLE001 - `stop` raises it.
            self.error = error
        finally:
            self._started.set()


class PlainClient:
    """A client that keeps the records of each subscription, as the protocol says."""

    def __init__(self, gateway, token=None, **kwargs):
        self.gateway = gateway
        # Without pings of its own: a busy machine may not answer them in the 20 s that the library waits.
        kwargs = {
            "subprotocols": ["sowstream.v1"], "max_size": None, "open_timeout": PATIENCE_S, "ping_interval": None,
            **kwargs,
        }  # fmt: skip
        self._context = connect(f"ws://{gateway.address}/v1/ws", compression=None, **kwargs)
        self.socket = self._context.__enter__()
        self.messages = []
        self.frames = []
        self.acks = {}
        self.records = {}
        self.bookmarks = {}
        self.refetches = []
        self.stale = {}
        self.ready = set()
        self.numbered = 0
        if token is not None:
            assert self.ask("logon", token=token, client="test")["status"] == "success"

    def send(self, op, **fields):
        """Send a request; returns its id."""
        self.numbered += 1
        name = fields.pop("id", f"r{self.numbered}")
        self.socket.send(json.dumps({"op": op, "id": name, **fields}))
        return name

    def ask(self, op, **fields):
        """Send a request and wait for its answer."""
        name = self.send(op, **fields)
        self.until(lambda: name in self.acks)
        return self.acks[name]

    def subscribe(self, op, topic, **fields):
        """Begin a subscription, which must succeed; returns its id."""
        name = self.send(op, topic=topic, **fields)
        self.records.setdefault(name, {})
        self.until(lambda: name in self.acks)
        assert self.acks[name]["status"] == "success", self.acks[name]
        return name

    def until(self, holds, timeout_s=PATIENCE_S):
        """Read until something holds."""
        until_s = time.monotonic() + timeout_s
        while not holds():
            self.read(max(0.01, until_s - time.monotonic()))

    def read(self, timeout_s=PATIENCE_S):
        """Read a frame."""
        tree = json.loads(self.socket.recv(timeout_s))
        messages = tree if isinstance(tree, list) else [tree]
        self.frames.append(messages)
        for message in messages:
            self.hear(message)

    def hear(self, message):
        """Apply a message."""
        self.messages.append(message)
        if message.get("op") == "ack":
            self.acks.setdefault(message["id"], message)
            return
        self.bookmarks.update(message.get("bookmarks", {}))
        command = message.get("command")
        for sub in message.get("subs", ()):
            records = self.records.setdefault(sub, {})
            key = message.get("sow_key")
            if command == "refetch":
                self.refetches.append((sub, message["reason"]))
            elif command == "group_begin":
                self.stale[sub] = set(records)
            elif command == "group_end":
                for gone in self.stale.pop(sub, ()):
                    records.pop(gone, None)
                self.ready.add(sub)
            elif command == "oof":
                records.pop(key, None)
            elif message.get("delta"):
                held, version = records[key]
                assert message["delta_base"] <= version, (message, version)
                merge(held, message["data"])
                for path in message.get("removed", ()):
                    remove(held, path)
                records[key] = (held, message["version"])
            else:
                records[key] = (message["data"], message["version"])
                self.stale.get(sub, set()).discard(key)

    def held(self, sub):
        """The records of a subscription by key."""
        return {key: value for key, (value, _) in self.records[sub].items()}

    def close(self):
        """End it."""
        self._context.__exit__(None, None, None)


def merge(record, delta):
    """Merge objects, in place."""
    for name, value in delta.items():
        if isinstance(value, dict) and isinstance(record.get(name), dict):
            merge(record[name], value)
        else:
            record[name] = value


def remove(record, path):
    """Remove the value at a JSON Pointer."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    for part in parents:
        record = record.get(part, {})
    record.pop(last, None)


class SowWriter:
    """Writes records to the SOW topic, as a worker does."""

    def __init__(self, world: World):
        self.world = world
        self.versions = {}
        self.records = {}

    def put(self, key, **fields):
        """Write a record."""
        self.versions[key] = version = self.versions.get(key, 0) + 1
        self.records[str(key)] = value = {"id": key, **fields}
        kind = {"kind": "insert"} if version == 1 else {}
        self.world.publish([(str(key).encode(), value, {"version": str(version), **kind})], role="sow")

    def delete(self, key):
        """Delete a record."""
        version = self.versions.pop(key) + 1
        del self.records[str(key)]
        self.world.publish([(str(key).encode(), None, {"version": str(version), "kind": "delete"})], role="sow")
