"""Kafka is away for minutes: afterwards each view is right, and no command that was acknowledged is lost.

A real Kafka, a worker and a `sowstream gateway` process, and a client in Python and in Node, each of which publishes
numbered commands and follows a view the whole time. At the end both views are the SOW as an independent reader reads
it, each acknowledged command is in it, and the logs and the memory of worker and gateway have not grown much::

    python -m tests.programs.gateway.away --seconds 600
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from processor.client import Client
from processor.gateway.application import WEB
from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.server import free_port
from tests.endtoend.world import World
from tests.programs.gateway.killed import is_ready, started

PATIENCE_S = 480.0
EVERY_S = 0.5
GROWTH_MAX_MB = 60.0
LINES_A_MINUTE_MAX = 40
"""Lines of a log in each minute without Kafka."""
_BEFORE_S = 5.0
_NODE = """
const { connect } = await import('%s');
const { createInterface } = await import('node:readline');
const [url, topic, every] = process.argv.slice(1);
const say = (fields) => console.log(JSON.stringify(fields));
const client = await connect({ url, name: 'node' });
const view = client.view(topic);
await view.ready;
let number = 0;
const timer = setInterval(() => {
  const n = ++number;
  const id = `node ${n}`;
  client.publish(topic, { id, n }, { ack: 'persisted', sequence: n }).then(
    () => say({ id, n }), (error) => say({ id, n, reason: error.reason, detail: error.message }));
}, Number(every) * 1000);
say({ begun: true });
for await (const line of createInterface({ input: process.stdin })) {
  clearInterval(timer);
  say(line === 'stop' ? { published: number } : { held: Object.fromEntries(view) });
}
process.exit(0);
"""


class NodeClient:
    """The client in Node: a process that publishes, and says what was answered."""

    def __init__(self, url: str, topic: str) -> None:
        script = _NODE % (WEB / "sowstream.js").as_uri()
        self.process = subprocess.Popen(
            ["node", "--experimental-websocket", "--input-type=module", "-e", script, url, topic, str(EVERY_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answers: dict[str, str | None] = {}
        """By id: None for an ack, or the reason of a failure."""
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._said.get(timeout=PATIENCE_S) == {"begun": True}

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line; returns what it says to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self._said.get(timeout=PATIENCE_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            fields = json.loads(line)
            if "id" in fields:
                self.answers[fields["id"]] = fields.get("reason")
            else:
                self._said.put(fields)


class PythonClient:
    """The client in Python: a thread that publishes, and one that follows a view."""

    def __init__(self, url: str, topic: str) -> None:
        self.client, self.topic = Client("python", gateway=url), topic
        self.futures: dict[str, Future[Any]] = {}
        self.held: dict[str, Any] = {}
        self.stopping, self.ending = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=call) for call in (self._publish, self._follow)]
        for thread in self.threads:
            thread.start()

    def _publish(self) -> None:
        number = 0
        while not self.stopping.wait(EVERY_S):
            number += 1
            data = {"id": f"python {number}", "n": number}
            self.futures[data["id"]] = self.client.publish(self.topic, data, ack="persisted", sequence=number)

    def _follow(self) -> None:
        with self.client.view(self.topic) as view:
            while not self.ending.is_set():
                view.refresh(0.2)
                self.held = dict(view)

    @property
    def answers(self) -> dict[str, str | None]:
        """As of `NodeClient`, of the commands that were answered."""
        done = {key: one.exception() for key, one in self.futures.items() if one.done()}
        return {key: None if error is None else type(error).__name__ for key, error in done.items()}

    def close(self) -> None:
        """End both threads."""
        self.stopping.set()
        self.ending.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)
        self.client.close()


def _is_answered(client: NodeClient | PythonClient, published: int) -> bool:
    return len(client.answers) == published


def resident_mb(pid: int) -> float:
    """The memory of a process."""
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


def until(holds: Callable[[], bool], what: str) -> float:
    """Wait until something holds; returns the seconds."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < PATIENCE_S, f"{what} has not happened"
        time.sleep(0.2)
    return time.monotonic() - began_s


def sow(world: World) -> dict[str, Any]:
    """The records of the SOW topic."""
    records: dict[str, Any] = {}
    for one in world.read("sow"):
        records[(one.key or b"").decode()] = None if one.value is None else json.loads(one.value)
    return {key: value for key, value in records.items() if value is not None}


def run(seconds: float) -> None:
    """Run the program; raises AssertionError if something is wrong."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-away-")))
        broker = EmbeddedBroker(directory / "broker", free_port())
        broker.start()
        stack.callback(broker.stop)
        world = World(broker.bootstrap, directory, f"away{random.randrange(10**6)}")
        tree = yaml.safe_load(world.file.read_text())
        world.file.write_text(yaml.safe_dump(tree | {"gateway": {"topics": [world.name]}}))
        worker = world.start()
        stack.callback(worker.kill)
        address = f"127.0.0.1:{free_port()}"
        log = stack.enter_context((directory / "gateway.log").open("wb"))
        gateway = stack.enter_context(started(world, address, log))
        stack.callback(gateway.terminate)
        until(lambda: is_ready(address), "the gateway's start")
        node = NodeClient(f"http://{address}", world.name)
        stack.enter_context(node.process)
        stack.callback(node.process.kill)
        python = PythonClient(f"http://{address}", world.name)
        stack.callback(python.close)
        until(lambda: bool(python.answers and node.answers), "the first ack")
        time.sleep(_BEFORE_S)

        logs = {"gateway": (directory / "gateway.log").read_text, "worker": worker.log}
        pids = {"gateway": gateway.pid, "worker": worker.process.pid}
        before = {name: (resident_mb(pid), len(logs[name]().splitlines())) for name, pid in pids.items()}
        broker.stop()
        time.sleep(seconds)  # The time without a broker is the fault.
        for name, pid in pids.items():
            lines = logs[name]().splitlines()[before[name][1] :]
            memory = f"{before[name][0]:.0f} MB before, {resident_mb(pid):.0f} MB after"
            print(f"{name}: {memory}; {len(lines)} lines of log")
            print("".join(f"    {line[:300]}\n" for line in [*lines[:12], *lines[-5:]]), end="", flush=True)
            assert resident_mb(pid) - before[name][0] < GROWTH_MAX_MB, f"{name} has grown"
            assert len(lines) <= LINES_A_MINUTE_MAX * max(1.0, seconds / 60), f"{name} has logged {len(lines)} lines"
        broker.start()
        time.sleep(_BEFORE_S)
        python.stopping.set()
        python.threads[0].join(PATIENCE_S)
        count = node.ask("stop")["published"]

        clients: dict[str, tuple[NodeClient | PythonClient, int]] = {
            "python": (python, len(python.futures)),
            "node": (node, count),
        }
        for name, (client, published) in clients.items():
            took_s = until(partial(_is_answered, client, published), f"an answer for each command of {name}")
            failed = [reason for reason in client.answers.values() if reason is not None]
            kinds = {reason: failed.count(reason) for reason in failed}
            done = f"{published} commands, {published - len(failed)} acknowledged"
            print(f"{name}: {done}, {kinds}, after {took_s:.1f} s", flush=True)
        world.settle()
        records = sow(world)
        until(lambda: python.held == records, "the Python view as the SOW")
        until(lambda: node.ask("state")["held"] == records, "the view in Node as the SOW")
        answers = [answer for client, _ in clients.values() for answer in client.answers.items()]
        acknowledged = [key for key, reason in answers if reason is None]
        lost = [key for key in acknowledged if records.get(key) != {"id": key, "n": int(key.split()[1])}]
        assert not lost, f"{len(lost)} acknowledged commands are lost: {lost[:10]}"
        assert len(acknowledged) > len(records) / 2
        print(f"{len(records)} records, {len(acknowledged)} acknowledged commands, none is lost; both views are right")


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    run(parser.parse_args().seconds)


if __name__ == "__main__":
    main()
