"""A program that forks with clients alive, for `test_fork`.

python -m tests.client.forking CASE BOOTSTRAP TOPIC DIRECTORY
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import faulthandler
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

from processor.client import Client
from processor.errors import SowstreamError
from processor.kafka.clients.log_reader import LogReader
from tests.queues.fake_leases import FakeLeases
from tests.queues.test_consumer import queue_of
from tests.queues.test_lease_backlog import values

CASE, BOOTSTRAP, TOPIC, DIRECTORY = sys.argv[1:] if __name__ == "__main__" else ("", "", "", "")
LIMIT_S = 100


def client(name: str, **arguments) -> Client:
    """A client with settings for the topic."""
    return Client(name, {"kafka": {"bootstrap.servers": BOOTSTRAP}, "topics": {TOPIC: {"partitions": 3}}}, **arguments)


def forked(run: Callable[[], object]) -> int:
    """Run a function in a fork of this process, which then ends as a program does; returns its exit status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        run()
        sys.exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused(calls: dict[str, Callable[[], object]]) -> None:
    """Print each call that does not refuse to run in this process."""
    for name, call in calls.items():
        try:
            call()
        except SowstreamError as error:
            if "Create a Client in each process" not in str(error):
                print(f"{name} raised {error}")
        else:
            print(f"{name} raised nothing")


def calls() -> None:
    """Make every call in a child; then go on in the parent."""
    parent = client("parent")
    parent.publish(TOPIC, {"id": 1})
    future = parent.publish(TOPIC, {"id": 2}, ack="persisted")
    removal = parent.sow_delete(TOPIC, keys=["8", "9"], ack="persisted")
    subscription, connection, view = parent.sow_and_subscribe(TOPIC), parent.connect(), parent.view(TOPIC)
    called = parent.subscribe(TOPIC, on_message=lambda _: None)
    changes = view.changes()
    with queue_of(FakeLeases(values(1, 2)), timeout_s=None) as queue:
        message = queue.next_within(1)

        def in_child() -> None:
            refused(
                {
                    "publish": lambda: parent.publish(TOPIC, {"id": 3}),
                    "delta_publish": lambda: parent.delta_publish(TOPIC, {"id": 3}, ack="persisted"),
                    "sow_delete": lambda: parent.sow_delete(TOPIC, "3"),
                    "flush": parent.flush,
                    "get": lambda: parent.get(TOPIC, 1),
                    "sow": lambda: parent.sow(TOPIC),
                    "subscribe": lambda: parent.subscribe(TOPIC),
                    "view": lambda: parent.view(TOPIC),
                    "connect": parent.connect,
                    "queue": lambda: parent.queue("to_ship"),
                    "next": lambda: next(subscription),
                    "next_within": lambda: subscription.next_within(1),
                    "add": subscription.add,
                    "remove": lambda: subscription.remove("0"),
                    "begin_again": lambda: subscription.begin_again("test"),
                    "wait": called.wait,
                    "connection.sow": lambda: connection.sow(TOPIC),
                    "connection.remove": lambda: connection.remove("0"),
                    "view.refresh": view.refresh,
                    "view.changes": lambda: next(changes),
                    "result": future.result,
                    "exception": lambda: future.exception(None),
                    "combined result": removal.result,
                    "asyncio": lambda: asyncio.run(awaited(parent)),
                    "async for": lambda: asyncio.run(anext(parent_stream)),
                    "queue iteration": lambda: next(iter(queue)),
                    "queue.next_within": lambda: queue.next_within(1),
                    "ack": message.ack,
                    "reject": lambda: message.reject("bad"),
                }
            )
            for each in (subscription, connection, view, called, queue, parent):
                each.close()
            with contextlib.suppress(ZeroDivisionError), parent, subscription, queue:
                _ = 1 // 0

        parent_stream = parent.sow_and_subscribe(TOPIC)
        print("child", forked(in_child))
        message.ack()
    assert not view
    delivered: list[object] = []
    parent.publish(TOPIC, {"id": 4}, on_delivery=delivered.append)
    parent._sender().deliver(LIMIT_S)
    print("parent", delivered, next(subscription).command, view.refresh())


async def awaited(parent: Client) -> None:
    """Publish from an event loop."""
    async with contextlib.AsyncExitStack():
        await (await parent.__aenter__()).publish(TOPIC, {"id": 3}, ack="persisted")


def use(name: str, bootstrap: str, topic: str) -> str:
    """Publish and read with a client of this process, which has Kafka's address alone or settings."""
    own = Client(name, {"kafka": {"bootstrap.servers": bootstrap}, "topics": {topic: {"partitions": 3}}})
    with own:
        own.publish(topic, {"id": name})
        own.flush(LIMIT_S)
        commands = [message.command for message in own.sow(topic)]
    return f"{name} {commands[0]} {commands[-1]}"


def own_client() -> None:
    """Create a client in a child, while the parent has clients that are used, read, closed, dropped and garbage."""
    kept = client("kept")
    kept.publish(TOPIC, {"id": 1})
    reading = kept.sow_and_subscribe(TOPIC)
    assert next(reading).command == "group_begin"
    use("closed", BOOTSTRAP, TOPIC)
    client("dropped").publish(TOPIC, {"id": 2})
    circle: list[object] = [LogReader({"bootstrap.servers": BOOTSTRAP}, group="test")]
    circle.append(circle)
    stored = client("stored", view_dir=Path(DIRECTORY))
    view = stored.sow_and_subscribe(TOPIC)
    assert next(view).command == "group_begin"
    del circle

    def in_child() -> None:
        nonlocal kept, reading, stored, view
        kept = reading = stored = view = None
        gc.collect()
        print(use("child", BOOTSTRAP, TOPIC))

    print("child", forked(in_child))
    stored.close()
    kept.close()


def pools() -> None:
    """Use a client's process pools: a client of their own works, one of the parent cannot be passed on."""
    parent = client("parent")
    parent.publish(TOPIC, {"id": 1})
    parent.flush(LIMIT_S)
    for method in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            print(pool.submit(use, method, BOOTSTRAP, TOPIC).result(LIMIT_S))
            for each in (parent, parent.sow(TOPIC)):
                print(f"{type(each).__name__}: {pool.submit(id, each).exception(LIMIT_S)}")
    parent.close()


if __name__ == "__main__":
    {"calls": calls, "own_client": own_client, "pools": pools}[CASE]()
