"""A hundred requests of one hostile client, one by one, on a large topic: how long others wait meanwhile.

The gateway is a process of its own over a view on disk, as in `sowstream gateway`; the worker that carries out its
deletes is another one. While each request runs, `/livez` is asked and another client takes updates; the longest wait of
both is a column, and the longest turn of the event loop by processor time another one, with the part of Python's
collector. A request goes on for some seconds behind its first answer, for which one alone is waited longer.

The machine may be busy with other programs. So a wait is the time on the clock less the time in which threads of the
gateway and of its clients could run and had no processor; but at least the processor time that the gateway took
meanwhile::

    python -m tests.programs.gateway.hostile --records 200000 --numbers 79-88
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from asyncio.events import Handle
from pathlib import Path
from typing import Any, NamedTuple

from websockets.exceptions import ConnectionClosed, WebSocketException

from processor.filter import compile_filter
from tests.gateway.running import PlainClient
from tests.programs.gateway.hostile_requests import HTTP, Hostile, requests

WAIT_MAX_S = 1.0
"""Longest wait of others."""
TURN_MAX_S = 0.05
"""Longest turn of the event loop, of processor time."""
STATES = ("new", "open", "done", "void")


class Turns:
    """The longest turn of the event loop since the last look, by the processor time of its thread.

    Of a turn in which Python's collector ran longest, most is not work of a request.
    """

    def __init__(self) -> None:
        self.longest_s = self.collector_s = 0.0
        run, clock = Handle._run, time.thread_time
        collects_s = 0.0

        def collecting(phase: str, _: dict[str, int]) -> None:
            nonlocal collects_s
            if phase == "start":
                collects_s = clock()
            elif threading.current_thread() is not main:
                self.collector_s = max(self.collector_s, clock() - collects_s)

        def timed(handle: Any) -> None:
            began_s = clock()
            run(handle)
            if (took_s := clock() - began_s) > self.longest_s and threading.current_thread() is not main:
                self.longest_s = took_s

        main = threading.main_thread()
        gc.callbacks.append(collecting)
        Handle._run = timed  # type: ignore[method-assign]

    def take(self) -> tuple[float, float]:
        """The longest turn, and the longest run of the collector; the next ones begin."""
        longest = self.longest_s, self.collector_s
        self.longest_s = self.collector_s = 0.0
        return longest


class Times(NamedTuple):
    """The clocks that decide how long others waited, in seconds."""

    wall_s: float
    """The wall clock."""
    used_s: float
    """The processor time of the gateway."""
    queued_s: float
    """The time in which its threads could run, and had no processor."""

    @classmethod
    def of(cls, process: int) -> Times:
        """The times of the gateway with a process id."""
        # The clock of another process, as clock_getcpuclockid(3) names it.
        return cls(time.time(), time.clock_gettime((~process << 3) | 2), queued_s(process))

    def wait_since(self, asked: Times, own_queued_s: float = 0.0) -> float:
        """The time since a client asked; `own_queued_s` is the time in which that client had no processor."""
        wall_s, used_s, starved_s = (now - then for now, then in zip(self, asked, strict=True))
        return max(used_s, wall_s - max(0.0, starved_s) - own_queued_s)


def queued_s(process: int) -> float:
    """The time in which the threads of a process could run, and had no processor."""
    nanoseconds = 0
    for path in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # A thread that has ended.
            nanoseconds += int((path / "schedstat").read_text().split()[1])
    return nanoseconds / 1e9


def worker_process(records: int, pipe: Any) -> None:
    """The worker: finds the keys of the records that a filter selects, as it would in its state."""
    every = {str(number): record(number) for number in range(records)}
    while (text := pipe.recv()) is not None:
        selection = compile_filter(text)
        pipe.send([key for key, value in every.items() if selection.matches(value)])


def record(number: int) -> dict[str, Any]:
    """One of the records."""
    return {
        "id": str(number),
        "qty": number * 7919 % 100_003,
        "state": STATES[number % 4],
        "desk": f"d{number % 50}",
        "note": f"note {number} " + "abcdefgh" * 8,
        "px": number * 31 % 1000 / 8,
    }


def gateway_process(directory: Path, records: int, pipe: Any, worker: Any) -> None:
    """A gateway over a view on disk with records; it writes an update to `probe` and others to random keys."""
    from processor.client.feeds.stored_view import WRITE_BACK_INTERVAL_S, StoredView
    from processor.gateway.feeds.intake import Intake
    from processor.gateway.server import tune_interpreter
    from tests.gateway import memory

    turns = Turns()
    tune_interpreter()

    class DiskFeed(memory.MemoryFeed):
        """A feed whose view is on disk, and follows, and whose updates go through an intake, as those of Kafka do."""

        def begin(self) -> None:
            super().begin()
            engine = self.engine
            self._intake = Intake(
                lambda partition, part: engine.take(partition, part, time.monotonic_ns() // 1_000_000)
            )

        def append(self, update: Any) -> None:
            """Take an update of `write`."""
            self._intake.add(update[0], [update[1]])

        def punctuate(self, now_ms: int) -> None:
            """Let the view on disk follow, too."""
            super().punctuate(now_ms)
            if now_ms / 1000 - self._written_s > WRITE_BACK_INTERVAL_S:
                self._written_s = now_ms / 1000
                self.engine._records._view.write_behind()

        def view(self) -> Any:
            self._written_s = time.monotonic()
            return StoredView(directory / "view", self.topic.name, "AAAA", memory.PARTITIONS, keeps=True)

    class World(memory.MemoryWorld):
        """A world whose worker is another process."""

        def _publish(self, name: Any, op: str, topic: str, arguments: dict[str, Any]) -> Any:
            text = arguments.pop("filter", None)
            if text is not None:
                with asks_worker:
                    worker.send(text)
                    arguments["keys"] = worker.recv()
            if arguments.get("keys") is not None:
                held = self.feeds[topic].records
                arguments["keys"] = [key for key in arguments["keys"] if key.encode() in held]
            return super()._publish(name, op, topic, arguments)

    asks_worker = threading.Lock()
    memory.MemoryFeed, plain = DiskFeed, memory.MemoryFeed  # type: ignore[misc]
    (directory / "tokens.yaml").write_text("t-mean: {user: mean}\nt-good: {user: good}\nt-narrow: {user: narrow}\n")
    everything = "{orders: {read: true, publish: true, delete: true}}"
    narrow = '{orders: {read: "/qty >= 0", delete: true}}'
    (directory / "rights.yaml").write_text(f"users: {{mean: {everything}, good: {everything}, narrow: {narrow}}}\n")
    world = World(auth={"tokens_file": directory / "tokens.yaml"}, entitlements=directory / "rights.yaml")
    memory.MemoryFeed = plain  # type: ignore[misc]
    feed = world.feeds["orders"]
    for begin in range(0, records, 1_000):
        world.gateway.call(
            lambda begin=begin: [
                feed.write(str(number), record(number)) for number in range(begin, min(records, begin + 1_000))
            ]
        )
    for _ in range(2):  # It stays behind by one call.
        world.gateway.call(feed.engine._records._view.write_behind)
    feed.records = dict.fromkeys(feed.records)  # A gateway has the view on disk alone: its collector finds no others.
    feed.behind = feed
    ends = threading.Event()

    def update() -> None:
        number, process = 0, os.getpid()
        while not ends.wait(0.05):
            number += 1

            asked = Times.of(process)

            def write(number: int = number, asked: Times = asked) -> None:
                feed.write("probe", {"id": "probe", "at": [repr(one) for one in asked], "qty": -1})
                for other in range(5):
                    key = str((number * 5 + other) * 7 % records)
                    feed.write(key, record(int(key)) | {"qty": number})

            world.gateway._loop.call_soon_threadsafe(write)

    threading.Thread(target=update, daemon=True).start()
    turns.take()
    pipe.send(world.gateway.port)
    while pipe.recv() is not None:
        pipe.send(turns.take())
    ends.set()
    world.close()


class Others:
    """Asks `/livez`, and takes the updates of `probe`: the longest waits of other clients."""

    def __init__(self, address: str, process: int) -> None:
        self.address = address
        self._process = process
        self._live_s = self._update_s = 0.0
        self._asked: tuple[Times, float] | None = None
        self._seen = self._now()
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._ask, self._take)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ask no more: a process that has ended has no clocks."""
        self._ends.set()
        for thread in self._threads:
            thread.join(30)

    def take(self) -> tuple[float, float]:
        """The longest waits since the last look, also of what has not come yet."""
        live_s = max(self._live_s, 0.0 if self._asked is None else self._wait_since(self._asked))
        waits = live_s, max(self._update_s, self._wait_since(self._seen) - 0.05)
        self._live_s = self._update_s = 0.0
        return waits

    def _now(self) -> tuple[Times, float]:
        return Times.of(self._process), queued_s(os.getpid())

    def _wait_since(self, asked: tuple[Times, float]) -> float:
        now, own_s = self._now()
        return now.wait_since(asked[0], own_s - asked[1])

    def _ask(self) -> None:
        while not self._ends.wait(0.02):
            self._asked = asked = self._now()
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://{self.address}/livez", timeout=120) as answer:
                    answer.read()
                self._live_s, self._asked = max(self._live_s, self._wait_since(asked)), None

    def _take(self) -> None:
        while not self._ends.is_set():
            with contextlib.suppress(OSError, WebSocketException):
                client = PlainClient(self, "t-good")
                client.subscribe("subscribe", "orders", filter="/id = 'probe'")
                while not self._ends.is_set():
                    tree = json.loads(client.socket.recv())
                    for message in tree if isinstance(tree, list) else [tree]:
                        if message.get("sow_key") == "probe" and "at" in message["data"]:
                            asked = Times(*map(float, message["data"]["at"])), self._seen[1]
                            self._update_s = max(self._update_s, self._wait_since(asked))
                            self._seen = self._now()


def run(address: str, hostile: Hostile, seconds: float, patience_s: float) -> str:
    """Carry out a request until the time behind its first answer is over, and one alone waits longer for that."""
    if hostile.answers > 1:
        patience_s = seconds  # Each slows the others.
    if hostile.way == HTTP:
        request = urllib.request.Request(
            f"http://{address}{hostile.frames[0]}", headers={"Authorization": f"Bearer {hostile.token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=patience_s) as answer:
                size, until_s = 0, time.monotonic() + seconds
                while time.monotonic() < until_s and (part := answer.read1(1 << 20)):
                    size += len(part)
                return f"{answer.status}, {size:,} bytes"
        except urllib.error.HTTPError as error:
            with error:
                return f"{error.code} {error.read()[:150]!r}"
        except OSError as error:
            return f"no answer within {patience_s:.0f} s: {type(error).__name__}"

    class Place:
        """The address, as `PlainClient` takes it."""

    Place.address = address  # type: ignore[attr-defined]
    client = PlainClient(Place(), hostile.token)
    outcomes: dict[str, int] = {}
    messages = 0
    until_s = time.monotonic() + patience_s
    try:
        for frame in hostile.frames:
            client.socket.send(frame)
        while (left_s := until_s - time.monotonic()) > 0:
            tree = json.loads(client.socket.recv(left_s))
            if not outcomes and not messages:
                until_s = time.monotonic() + seconds
            for message in tree if isinstance(tree, list) else [tree]:
                if message.get("op") == "ack":
                    kind = message["status"] if message["status"] == "success" else message["reason"]
                    outcomes[kind] = outcomes.get(kind, 0) + 1
                elif message.get("op") == "ended":
                    outcomes[f"ended: {message['reason']}"] = outcomes.get(f"ended: {message['reason']}", 0) + 1
                else:
                    messages += 1
    except TimeoutError:
        pass
    except ConnectionClosed as error:
        outcomes[f"closed {error}"[:40]] = 1
    finally:
        with contextlib.suppress(Exception):
            client.close()
    acks = ", ".join(f"{count} {kind}" for kind, count in outcomes.items())
    return f"{acks or f'no answer to {hostile.answers:,} within {patience_s:.0f} s'}; {messages:,} messages"


def main(arguments: list[str] | None = None) -> int:
    """Carry out all requests; returns 1 if others waited too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="time of answers to one request")
    parser.add_argument("--patience", type=float, default=60.0, help="longest wait for its first answer, in seconds")
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--numbers", default="1-", help="the first and the last number, such as 79-88")
    asked = parser.parse_args(arguments)
    first, _, last = asked.numbers.partition("-")
    chosen = range(int(first), int(last or sys.maxsize if "-" in asked.numbers else first) + 1)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    to_worker, of_worker = context.Pipe()
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        worker = context.Process(target=worker_process, args=(asked.records, of_worker), daemon=True)
        process = context.Process(
            target=gateway_process, args=(Path(directory), asked.records, theirs, to_worker), daemon=True
        )
        for one in (worker, process):
            one.start()
        address = f"127.0.0.1:{ours.recv()}"
        assert process.pid is not None
        others = Others(address, process.pid)
        time.sleep(1)
        for number, hostile in enumerate(requests(asked.records), 1):
            if asked.only not in hostile.name or number not in chosen:
                continue
            others.take()
            ours.send("take")
            ours.recv()
            try:
                outcome = run(address, hostile, asked.seconds, asked.patience)
            except (OSError, WebSocketException) as error:
                outcome = f"no answer: {type(error).__name__}"
            time.sleep(0.3)
            live_s, update_s = others.take()
            ours.send("take")
            turn_s, collector_s = ours.recv()
            bad = live_s > WAIT_MAX_S or update_s > WAIT_MAX_S or turn_s > TURN_MAX_S
            failed += bad
            print(
                f"{'BAD' if bad else 'ok '} {number:3} {hostile.name:58} livez {live_s * 1000:6.0f} ms  "
                f"updates {update_s * 1000:6.0f} ms  turn {turn_s * 1000:6.0f} ms  "
                f"collector {collector_s * 1000:4.0f} ms  {outcome}",
                flush=True,
            )
        others.close()
        ours.send(None)
        process.join(30)
        to_worker.send(None)
    print(f"{failed} requests held up others")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
