"""The gateway's fan-out: messages a second to many connections, next to a plain broadcast of the same bytes.

The gateway, over a topic in memory, and the load generator are processes of their own. Each client asks for the
records of one symbol (an equality filter) as deltas of about 200 bytes. Then a bare `websockets` server sends frames of
the same size to the same load generator, which is the limit of Python here. Ratios and figures are of one run::

    python -m tests.programs.gateway.fanout --clients 1000 --rate 60000 --seconds 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from websockets.asyncio.client import connect
from websockets.asyncio.server import broadcast
from websockets.asyncio.server import serve as serve_plain

SYMBOLS = 50
NOTE = "x" * 100
WARM_CLIENTS = 50
"""Connections after which all code is loaded: the memory of the others is their own."""


def gateway_server(port: Any, stop: Any, rate: float, figures: Any) -> None:
    """A gateway over a topic in memory, with a feed of `rate` updates a second to each of its clients together."""
    from tests.gateway.memory import MemoryWorld

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # As `sowstream gateway` has it.
    world = MemoryWorld("quotes", auth="none")
    port.value = world.gateway.port
    feed = world.feeds["quotes"]

    def delivered() -> int:
        gateway = world.gateway.gateway
        return gateway.metrics.messages + sum(session.sent for session in gateway.sessions)

    warm = (0, resident_kb())
    number, began_s, used_s, reported_s = 0, None, time.process_time(), 0.0
    while not stop.is_set():
        time.sleep(0.01)
        clients = len(world.gateway.gateway.sessions)
        if warm[0] < WARM_CLIENTS:
            figures["warm"] = warm = (clients, resident_kb())
        if began_s is None and not figures["is_sending"]:
            continue
        if began_s is None:
            figures["connected_kb"] = resident_kb()
            began_s, used_s, number = time.monotonic(), time.process_time(), 0
            reported_s = began_s
        each = max(1, clients // SYMBOLS)
        due = int((time.monotonic() - began_s) * rate / each)

        def write(first: int, end: int) -> None:
            for one in range(first, end):
                write_quote(feed, one)

        while number < due and not stop.is_set():
            end = min(due, number + 200)
            world.gateway.call(write, number, end)
            number = end
        if time.monotonic() - reported_s > 1:
            reported_s = time.monotonic()
            figures["updates"], figures["rss_kb"] = number, resident_kb()
            figures["cpu_s"], figures["delivered"] = time.process_time() - used_s, world.gateway.call(delivered)
    world.close()


def resident_kb() -> int:
    """The resident memory of this process, KB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def plain_server(port: Any, stop: Any, rate: float, figures: Any) -> None:
    """A bare broadcast of frames of the same size."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

    async def main() -> None:
        connected: set[Any] = set()

        async def handler(socket: Any) -> None:
            connected.add(socket)
            try:
                await socket.wait_closed()
            finally:
                connected.discard(socket)

        async with serve_plain(handler, "127.0.0.1", 0, compression=None, max_queue=None) as server:
            port.value = server.sockets[0].getsockname()[1]
            number, began_s = 0, None
            while not stop.is_set():
                await asyncio.sleep(0.01)
                if not figures["is_sending"]:
                    continue
                if began_s is None:
                    began_s, used_s, sent = time.monotonic(), time.process_time(), 0
                due = int((time.monotonic() - began_s) * rate / max(1, len(connected)))
                while number < due and not stop.is_set():
                    body = json.dumps({"data": {"at": time.time(), "n": number, "note": NOTE + str(number)}})
                    broadcast(connected, body)
                    sent += len(connected)
                    number += 1
                    await asyncio.sleep(0)
                figures["updates"], figures["delivered"] = number, sent
                figures["cpu_s"] = time.process_time() - used_s

    asyncio.run(main())


async def without_sockets(clients: int, updates: int, rounds: int) -> float:
    """The processor time of a message, µs, of a gateway without sockets: it holds on a busy machine.

    Args:
        clients: their number.
        updates: how many come before each tick.
        rounds: how often.
    """
    from processor.config import Config
    from processor.config.gateway import GatewayConfig
    from processor.gateway.gateway import Gateway
    from processor.gateway.transport import Transport
    from processor.gateway.websocket import _Client
    from tests.gateway.memory import PARTITIONS, MemoryFeed

    feed = MemoryFeed("quotes")
    config = Config(topics={"quotes": {"key": ["/id"], "partitions": PARTITIONS}})
    settings = {"gateway": GatewayConfig(listen="127.0.0.1:0", auth="none")}
    gateway = Gateway(config.model_copy(update=settings), feeds={"quotes": feed})
    await gateway.start()
    transport = Transport(lambda: None, lambda next_frame: next_frame() is not None or True)

    async def send(event: Any) -> None:
        """Drop an answer."""

    async def sent(count: int) -> None:
        while sum(session.sent for session in gateway.sessions) < count:  # noqa: ASYNC110 - as below.
            await asyncio.sleep(0.005)

    tasks = []
    for number in range(clients):
        text = {"op": "delta_subscribe", "id": "1", "topic": "quotes", "filter": f"/symbol = 's{number % SYMBOLS}'"}
        frames: asyncio.Queue[Any] = asyncio.Queue()
        frames.put_nowait({"type": "websocket.receive", "text": json.dumps(text)})
        tasks.append(asyncio.create_task(_Client(gateway, frames.get, send, transport).run()))
    while sum(1 for _ in feed.engine._routes) < clients:  # noqa: ASYNC110 - A count, not an event.
        await asyncio.sleep(0.05)
    used_s = 0.0
    for number in range(-10, rounds):  # The first ones warm up.
        count, began_s = sum(session.sent for session in gateway.sessions), time.process_time()
        for one in range(updates):
            write_quote(feed, (number + 10) * updates + one)
        await sent(count + updates * clients // SYMBOLS)
        used_s += time.process_time() - began_s if number >= 0 else 0.0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await gateway.stop()
    return 1e6 * used_s / (rounds * updates * clients / SYMBOLS)


def write_quote(feed: Any, number: int) -> None:
    """Write the next update of one of the symbols."""
    symbol = f"s{number % SYMBOLS}"
    feed.write(symbol, {"id": symbol, "symbol": symbol, "n": number, "at": time.time(), "note": NOTE + str(number)})


def load(port: int, clients: int, seconds: float, figures: Any, *, is_plain: bool) -> None:
    """The load generator: connects, counts messages, and measures their age."""

    async def main() -> None:
        counted, ages = [0], []
        gate = asyncio.Semaphore(50)

        async def client(number: int) -> None:
            path = "" if is_plain else "/v1/ws"
            protocols = None if is_plain else ["sowstream.v1"]
            async with gate:
                socket = await connect(
                    f"ws://127.0.0.1:{port}{path}",
                    subprotocols=protocols,
                    compression=None,
                    max_queue=None,
                    open_timeout=120,
                    ping_interval=None,
                )
                if not is_plain:
                    symbol = f"s{number % SYMBOLS}"
                    request = {"op": "delta_subscribe", "id": "1", "topic": "quotes", "filter": f"/symbol = '{symbol}'"}
                    await socket.send(json.dumps(request))
                    await socket.recv()
            ready[0] += 1
            if ready[0] == clients:
                figures["is_sending"] = True
            end_s = None
            try:
                while True:
                    text = await socket.recv()
                    now_s = time.time()
                    end_s = end_s or now_s + seconds
                    count = text.count('"at":')
                    counted[0] += count
                    if count and number % 20 == 0:
                        at = text.rindex('"at":') + 5
                        ages.append(now_s - float(text[at : text.index(",", at)]))
                    if now_s > end_s:
                        break
            finally:
                await socket.close()

        ready = [0]
        began_s = time.monotonic()
        tasks = [asyncio.create_task(client(number)) for number in range(clients)]
        while ready[0] < clients:  # noqa: ASYNC110 - A count, not an event.
            await asyncio.sleep(0.05)
        figures["connect_s"] = time.monotonic() - began_s
        began_s, before, used_s = time.monotonic(), counted[0], time.process_time()
        await asyncio.sleep(seconds)
        figures["messages"] = (counted[0] - before) / (time.monotonic() - began_s)
        figures["load_us"] = 1e6 * (time.process_time() - used_s) / max(1, counted[0] - before)
        ages.sort()
        figures["p99_ms"] = 1000 * ages[int(len(ages) * 0.99)] if ages else None
        figures["p50_ms"] = 1000 * ages[len(ages) // 2] if ages else None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def measure(clients: int, rate: float, seconds: float, target: Callable[..., None]) -> dict[str, Any]:
    """One run; returns its figures."""
    is_plain = target is not gateway_server
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        figures = manager.dict({"is_sending": False})
        port, stop = context.Value("i", 0), context.Event()
        server = context.Process(target=target, args=(port, stop, rate, figures))
        server.start()
        while not port.value:
            time.sleep(0.05)
        loader = context.Process(
            target=load, args=(port.value, clients, seconds, figures), kwargs={"is_plain": is_plain}
        )
        loader.start()
        loader.join()
        stop.set()
        server.join(30)
        if server.is_alive():
            server.terminate()
        return dict(figures)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=80_000, help="messages a second that are offered")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--without-sockets", type=int, metavar="UPDATES", help="before each tick; processor time alone")
    arguments = parser.parse_args()
    if arguments.without_sockets:
        each_us = asyncio.run(without_sockets(arguments.clients, arguments.without_sockets, 50))
        print(f"{each_us:.1f} µs of processor time a message, without sockets")
        return
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    offered = (arguments.clients, arguments.rate, arguments.seconds)
    full = measure(*offered, gateway_server)
    half = measure(arguments.clients, full["messages"] / 2, arguments.seconds, gateway_server)
    plain = measure(*offered, plain_server)
    print(
        f"{arguments.clients:,} connections, {arguments.rate:,.0f} messages/s offered, {os.cpu_count()} cores, one run"
    )
    for name, figures in (("gateway", full), ("at half", half), ("broadcast", plain)):
        each_us = 1e6 * figures["cpu_s"] / max(1, figures["delivered"])
        print(
            f"{name:<11}{figures['messages']:>10,.0f} messages/s, p50 {figures['p50_ms']:,.1f} ms, p99 "
            f"{figures['p99_ms']:,.1f} ms, {each_us:.1f} µs of processor time a message"
        )
    print(
        f"load limit {1e6 / full['load_us']:>10,.0f} messages/s of the gateway, {1e6 / plain['load_us']:,.0f} of the "
        "broadcast, by the load generator's processor time, on a core of its own"
    )
    by_time = plain["cpu_s"] / max(1, plain["delivered"]) / (full["cpu_s"] / max(1, full["delivered"]))
    print(
        f"ratio      {full['messages'] / max(1, plain['messages']):.2f} of the broadcast's messages/s, "
        f"{by_time:.2f} by processor time a message; goal 0.5"
    )
    warm_clients, warm_kb = full["warm"]
    idle = (full["connected_kb"] - warm_kb) / (arguments.clients - warm_clients)
    print(f"memory     {idle:.1f} KB a connection with a subscription, {full['rss_kb'] / 1024:.0f} MB at the end")


if __name__ == "__main__":
    main()
