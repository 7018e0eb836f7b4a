"""Quiet subscriptions live behind a proxy that ends idle connections, as nginx does after 60 s.

A gateway over a topic in memory, a proxy, and four subscriptions without an update: WebSocket and Server-Sent Events,
in Python and in Node. At the end each of them gets an update over the connection with which it began::

    python -m tests.programs.gateway.idle --idle 60 --seconds 300
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import subprocess
import threading
import time
from contextlib import closing
from typing import Any

from processor.client import Client
from processor.client.gateway.gateway_http import LinkTimes
from processor.gateway.application import WEB
from tests.gateway.memory import MemoryWorld
from tests.gateway.proxy import FaultyProxy

PATIENCE_S = 60.0
KINDS = ("events in Node", "events in Python", "WebSocket in Node", "WebSocket in Python")
_EVENTS = "/v1/topics/orders/subscribe?op=subscribe"
_NODE = """
const { connect } = await import('%s');
const [url, events, silence] = process.argv.slice(1);
const client = await connect({ url, ...(Number(silence) ? { silence: Number(silence) } : {}) });
const view = client.view('orders');
await view.ready;
view.addEventListener('change', () => console.log('WebSocket in Node'));
const answer = await fetch(url + events);
console.log('begun');
let text = '';
for await (const part of answer.body) {
  text += new TextDecoder().decode(part);
  if (text.includes('"qty":1')) break;
}
if (text.includes('"qty":1')) console.log('events in Node');
"""


def run(idle_s: float, seconds: float, silence_s: float | None = None) -> dict[str, Any]:
    """Follow a quiet topic for some time behind a proxy.

    Args:
        idle_s: the proxy ends a connection after so long without a byte from the gateway.
        seconds: the time without an update.
        silence_s: the time between two signs of life; None: as they are in use.

    Returns:
        The connections that were made until all had begun, those afterwards, and the kinds that got the update.
    """
    world = MemoryWorld("orders")
    if silence_s is not None:
        world.gateway.gateway.comment_interval_s = silence_s
    proxy = FaultyProxy(world.gateway.port, idle_s=idle_s)
    heard: queue.Queue[str] = queue.Queue()
    try:
        with Client("idle", gateway=f"http://{proxy.address}") as client:
            if silence_s is not None:
                client._reader.times = LinkTimes(silence_s=silence_s)  # type: ignore[union-attr]
            with _in_node(proxy.address, silence_s) as node:
                calls = ((_follow_node, node), (_follow, client), (_follow_events, proxy.address))
                threads = [threading.Thread(target=call, args=(of, heard), daemon=True) for call, of in calls]
                for thread in threads:
                    thread.start()
                begun = {heard.get(timeout=PATIENCE_S) for _ in threads}
                assert begun == {"begun", "view", "events"}, begun
                before = len(proxy.requests)
                time.sleep(seconds)  # The silence is what is tried.
                world.put(1, qty=1)
                got = sorted(heard.get(timeout=PATIENCE_S) for _ in KINDS)
                after = len(proxy.requests) - before
                node.kill()
                for thread in threads:
                    thread.join(PATIENCE_S)
    finally:
        proxy.close()
        world.close()
    return {"connections": before, "reconnects": after, "got": got}


def _in_node(address: str, silence_s: float | None) -> subprocess.Popen[str]:
    script = _NODE % (WEB / "sowstream.js").as_uri()
    silence = str(0 if silence_s is None else int(silence_s * 1000))
    return subprocess.Popen(
        [
            "node",
            "--experimental-websocket",
            "--input-type=module",
            "-e",
            script,
            f"http://{address}",
            _EVENTS,
            silence,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def _follow_node(node: subprocess.Popen[str], heard: queue.Queue[str]) -> None:
    assert node.stdout is not None
    for line in node.stdout:
        heard.put(line.strip())


def _follow(client: Client, heard: queue.Queue[str]) -> None:
    with client.view("orders") as view:
        heard.put("view")
        while not dict(view):
            view.refresh(0.5)
    heard.put("WebSocket in Python")


def _follow_events(address: str, heard: queue.Queue[str]) -> None:
    with closing(http.client.HTTPConnection(address)) as connection:
        connection.request("GET", _EVENTS)
        with connection.getresponse() as answer:
            heard.put("events")
            is_there = any(b'"qty":1' in line for line in answer)
    heard.put("events in Python" if is_there else "the events in Python ended")


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=300.0)
    arguments = parser.parse_args()
    outcome = run(arguments.idle, arguments.seconds)
    print(json.dumps(outcome))
    assert (outcome["reconnects"], outcome["got"]) == (0, sorted(KINDS))


if __name__ == "__main__":
    main()
