"""The three ways to consume a queue, and the outcome of a message in each (queues.md, rule 3)."""

from __future__ import annotations

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry

from processor.client import QueueMetrics
from processor.queues.consumer import FATES, Queue
from tests.queues.fake_leases import FakeLeases
from tests.queues.test_lease_backlog import backlog_of, values


class Bad(Exception):
    """An error of a handler."""


def queue_of(leases: FakeLeases, **arguments) -> Queue:
    """A queue on these leases, which ends when nothing is left."""
    arguments = {"timeout_s": 0.0, "on_message": None, "on_close": lambda _: None} | arguments
    return Queue(backlog_of(leases), **arguments)


def test_leaving_the_loop_body_acknowledges():
    """Each message whose body was left normally is acknowledged; the end of the loop closes the queue."""
    leases = FakeLeases(values(1, 2, 3))
    assert [message.data["id"] for message in queue_of(leases)] == [1, 2, 3]
    assert set(leases.verdicts.values()) == {"accept"}
    assert leases.is_closed


def test_continue_acknowledges():
    """`continue` leaves the body normally."""
    leases = FakeLeases(values(1, 2))
    for message in queue_of(leases):
        if message.data["id"] == 1:
            continue
    assert leases.verdicts == {0: "accept", 1: "accept"}


def test_an_exception_releases():
    """An exception that leaves the loop, and the queue's `with`, releases the message in hand."""
    leases = FakeLeases(values(1, 2, 3))

    def consume() -> None:
        with queue_of(leases) as queue:
            for message in queue:
                if message.data["id"] == 2:
                    raise Bad

    with pytest.raises(Bad):
        consume()
    assert leases.verdicts == {0: "accept", 1: "release", 2: "release"}


def test_an_exception_releases_also_where_the_loop_begins_again():
    """A handler that catches around the loop and goes on gets the failed message again."""
    leases, seen = FakeLeases(values(1, 2)), []
    queue = queue_of(leases)
    for _ in range(2):
        try:
            for message in queue:
                seen.append((message.data["id"], message.deliveries))
                if message.deliveries == 1 and message.data["id"] == 1:
                    raise Bad
        except Bad:
            continue
    assert sorted(seen) == [(1, 1), (1, 2), (2, 1)]
    assert leases.verdicts == {0: "accept", 1: "accept"}


def test_break_in_the_with_of_the_queue_acknowledges():
    """A `break` leaves the body normally, which the `with` of the queue can tell."""
    leases = FakeLeases(values(1))
    with queue_of(leases) as queue:
        for _ in queue:
            break
    assert leases.verdicts == {0: "accept"}


def test_break_elsewhere_releases_what_was_not_acknowledged():
    """Without a `with` a `break` is not told from an exception: the message is released, unless it has an outcome."""
    leases = FakeLeases(values(1, 2))
    queue = queue_of(leases)
    for message in queue:
        message.ack()
        break
    for _ in queue:
        break
    queue.close()
    assert leases.verdicts == {0: "accept", 1: "release"}


def test_a_message_may_be_released_or_rejected_in_the_body():
    """A decision in the body counts, and leaving the body does not change it."""
    leases = FakeLeases(values(1, 2))
    for message in queue_of(leases):
        if message.data["id"] == 2:
            message.reject("bad")
        elif message.deliveries == 1:
            message.release()
    assert leases.verdicts == {0: "accept", 1: "reject"}


def test_a_callback_acknowledges_by_returning():
    """A callback gets each message on a thread of its own; returning acknowledges."""
    leases, threads = FakeLeases(values(1, 2)), set()
    queue = queue_of(leases, on_message=lambda _: threads.add(threading.current_thread().name))
    assert queue.wait(60)
    assert threads == {"sowstream-queue"}
    assert leases.verdicts == {0: "accept", 1: "accept"}


def test_a_callback_that_raises_releases_and_ends_the_queue():
    """The message is released at once, and `wait` raises the exception."""
    leases = FakeLeases(values(1, 2))

    def fail(message):
        raise Bad

    queue = queue_of(leases, on_message=fail)
    with pytest.raises(Bad):
        queue.wait(60)
    assert leases.verdicts == {0: "release"}
    assert leases.is_closed


def test_a_callback_may_close_the_queue():
    """A callback that closes its queue has its message acknowledged, and gets no further one."""
    leases, seen = FakeLeases(values(1, 2)), []
    begun = threading.Event()

    def once(message):
        begun.wait(60)
        seen.append(message.data["id"])
        queue.close()

    queue = queue_of(leases, on_message=once)
    begun.set()
    assert queue.wait(60)
    assert seen == [1]
    assert leases.verdicts == {0: "accept"}


def test_awaited_messages_are_acknowledged_and_an_exception_releases():
    """`async for` acknowledges as `for` does, and an exception that leaves the `async with` releases."""

    async def consume(leases, fails):
        async with queue_of(leases) as queue:
            async for message in queue:
                if fails and message.data["id"] == 2:
                    raise Bad

    good, bad = FakeLeases(values(1, 2)), FakeLeases(values(1, 2, 3))
    asyncio.run(consume(good, fails=False))
    assert good.verdicts == {0: "accept", 1: "accept"}
    with pytest.raises(Bad):
        asyncio.run(consume(bad, fails=True))
    assert bad.verdicts == {0: "accept", 1: "release", 2: "release"}


def test_a_message_that_no_reader_took_is_released():
    """A message that comes after its reader was cancelled is released when the queue is closed."""
    leases = FakeLeases()

    async def consume():
        queue = queue_of(leases, timeout_s=None)
        messages = aiter(queue)
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        leases.append(b'{"id":1}')
        await asyncio.wrap_future(queue._fetching)
        await queue.aclose()

    asyncio.run(consume())
    assert leases.verdicts == {0: "release"}


def test_a_queue_is_read_in_one_way():
    """A second way of reading would take the first one's messages, so it is an error."""
    queue = queue_of(FakeLeases(values(1)), on_message=lambda _: None)
    with pytest.raises(RuntimeError, match="called already"):
        next(iter(queue))
    queue.close()


def test_prometheus_sees_the_messages_of_a_consumer_by_fate():
    """Of three messages one is released and comes again; all are acknowledged, and nothing is held at the end."""
    queue = Queue(backlog_of(FakeLeases(values(1, 2, 3))), timeout_s=0, on_message=None, on_close=lambda _: None)
    registry = CollectorRegistry()
    registry.register(QueueMetrics(queue))

    def figure(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sowstream_queue_{name}", {"queue": "jobs"} | labels)

    first = queue.next_within(0)
    assert first is not None
    assert figure("leased_messages") == 1
    first.release()
    assert figure("leased_messages") == 0
    for _ in queue:
        pass
    found = {fate: figure("messages_total", fate=fate) for fate in FATES}
    assert found == dict.fromkeys(FATES, 0) | {"delivered": 4, "delivered_again": 1, "acknowledged": 3, "released": 1}
    assert figure("leased_messages") == 0
