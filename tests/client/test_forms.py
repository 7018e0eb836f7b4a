import asyncio
import threading
import time

import pytest

from processor.client import Client, Message
from processor.errors import ConfigurationError, FilterError
from tests.client.family import Family
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.broker


def brief(message: Message) -> tuple[object, ...]:
    """The fields of a message that concern the record."""
    return (message.command, message.sow_key, message.data)


SNAPSHOT = [("group_begin", None, None), ("sow", "a", {"id": "a", "n": 1}), ("group_end", None, None)]
LATER = [("publish", "a", {"id": "a", "n": 2}), ("publish", "b", {"id": "b", "n": 1})]


def write_later(family: Family) -> None:
    """Write two updates, one after the other."""
    family.sow("a", {"id": "a", "n": 2}, 2)
    family.sow("b", {"id": "b", "n": 1})


def test_a_callback_gets_each_message(client: Client, family: Family):
    """With `on_message` a thread reads and calls back; `timeout_s` ends it, and `wait` returns."""
    family.sow("a", {"id": "a", "n": 1})
    delivered: list[Message] = []
    threads: set[str] = set()

    is_opened = threading.Event()

    def take(message: Message) -> None:
        delivered.append(message)
        threads.add(threading.current_thread().name)
        if message.command == "group_end":
            write_later(family)
        if len(delivered) == len(SNAPSHOT + LATER):
            is_opened.wait(PATIENCE_S)
            subscription.timeout_s = 0.3

    subscription = client.sow_and_subscribe(family.name, on_message=take, timeout_s=PATIENCE_S)
    is_opened.set()
    assert subscription.wait(PATIENCE_S)
    assert sorted(map(brief, delivered), key=str) == sorted(SNAPSHOT + LATER, key=str)
    assert threads == {"sowstream-subscription"}
    with pytest.raises(RuntimeError, match="called already"):
        next(subscription)


def test_an_exception_of_a_callback_ends_the_subscription(client: Client, family: Family):
    """The first exception ends the subscription, no message follows, and `wait` or `close` raises it once."""
    for name in ("a", "b"):
        family.sow(name, {"id": name})
    delivered: list[Message] = []

    def fail(message: Message) -> None:
        delivered.append(message)
        if message.command == "sow":
            raise ValueError("no")

    subscription = client.sow_and_subscribe(family.name, on_message=fail)
    with pytest.raises(ValueError, match="no"):
        subscription.wait(PATIENCE_S)
    subscription.close()
    assert [message.command for message in delivered] == ["group_begin", "sow"]
    other = client.sow(family.name, on_message=fail)
    until(lambda: other._is_closed, "the end of the subscription")
    with pytest.raises(ValueError, match="no"):
        other.close()


def test_a_callback_may_close_its_own_subscription(client: Client, family: Family):
    """A close within the callback does not wait for itself; one from outside waits for the callback."""
    family.sow("a", {"id": "a"})
    delivered = []
    ready = threading.Event()

    def take(message: Message) -> None:
        delivered.append(message.command)
        ready.wait(PATIENCE_S)
        subscription.close()

    subscription = client.sow(family.name, on_message=take)
    ready.set()
    assert subscription.wait(PATIENCE_S)
    assert delivered == ["group_begin"]
    entered, done = threading.Event(), []

    def linger(_message: Message) -> None:
        entered.set()
        time.sleep(0.2)
        done.append(True)

    other = client.sow(family.name, on_message=linger)
    assert entered.wait(PATIENCE_S)
    other.close()
    assert done == [True]


def test_messages_are_awaited(client: Client, family: Family):
    """`async for` yields each message on the event loop, which runs meanwhile; leaving `async with` ends it."""
    family.sow("a", {"id": "a", "n": 1})

    async def read() -> list[Message]:
        delivered, tasks = [], []

        async def write() -> None:
            """Write once the loop has run while the next message is awaited."""
            for _ in range(5):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(write_later, family)

        async with client.sow_and_subscribe(family.name) as subscription:
            async for message in subscription:
                delivered.append(message)
                if message.command == "group_end":
                    tasks.append(asyncio.create_task(write()))
                if len(delivered) == 5:
                    break
        await asyncio.gather(*tasks)
        assert [message async for message in subscription] == []
        return delivered

    delivered = asyncio.run(asyncio.wait_for(read(), PATIENCE_S))
    assert sorted(map(brief, delivered), key=str) == sorted(SNAPSHOT + LATER, key=str)


def test_a_cancelled_wait_loses_no_message(client: Client, family: Family):
    """A cancelled wait leaves later messages to the next one, and cancelling the reader ends cleanly."""
    threads = set(threading.enumerate())

    async def read() -> list[object]:
        async with client.subscribe(family.name) as subscription:
            delivered = []
            for number in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(subscription), 0.05)
                await asyncio.to_thread(family.sow, "a", {"id": "a", "n": number})
                delivered.append((await anext(subscription)).data["n"])
            task = asyncio.ensure_future(anext(subscription))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return delivered

    assert asyncio.run(asyncio.wait_for(read(), PATIENCE_S)) == [0, 1, 2, 3, 4]
    ours = set(threading.enumerate()) - threads
    assert not [thread for thread in ours if "sowstream-subscription" in thread.name]


def test_an_error_reaches_the_awaiting_reader(client: Client, family: Family):
    """A read error is raised by the `async for`, and the subscription has ended."""
    client.sow_and_subscribe(family.name).close()
    subscription = client.sow_and_subscribe(family.name)
    with family.transaction():
        family._producer.produce(f"{family.name}.sow", b"no json", b"k", 0, headers=[("version", "1")])

    async def read() -> None:
        async for _ in subscription:
            pass

    with pytest.raises(Exception, match="not JSON"):
        asyncio.run(asyncio.wait_for(read(), PATIENCE_S))
    assert subscription not in client._opener._open


def test_the_end_of_a_client_ends_its_subscriptions(family: Family):
    """Closing the client ends an iteration in another thread, a callback and an `async for`."""
    client = Client("test", family.config)
    ends: list[str] = []

    def iterate() -> None:
        for _ in client.subscribe(family.name):
            pass
        ends.append("iterated")

    async def wait_for_it() -> None:
        async for _ in client.subscribe(family.name):
            pass
        ends.append("awaited")

    threads = [threading.Thread(target=iterate), threading.Thread(target=lambda: asyncio.run(wait_for_it()))]
    for thread in threads:
        thread.start()
    called = client.subscribe(family.name, on_message=print)
    until(lambda: len(client._opener._open) == 3, "three subscriptions")
    client.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(ends) == ["awaited", "iterated"]
    assert called.wait(PATIENCE_S)


def test_several_subscriptions_share_a_stream(client: Client, family: Family):
    """An update for two subscriptions is sent once, lists both, and is full if either asks for full records."""
    family.sow("a", {"id": "a", "n": 1, "same": 0})
    first = client.sow_and_delta_subscribe(
        family.name, "/n > 0 OR /id = 'end'", "oof", sub_id="some", timeout_s=PATIENCE_S
    )
    opened = [next(first) for _ in range(3)]
    assert {message.sub_ids for message in opened} == {("some",)}
    assert first.add("/n > 1", "oof") == "1"
    assert [next(first).sub_ids for _ in range(2)] == [("1",)] * 2  # Its own snapshot, which is empty.
    family.sow("a", {"id": "a", "n": 2, "same": 0}, 2)
    both = next(first)
    assert (both.sub_ids, both.delta, both.data) == (("some", "1"), False, {"id": "a", "n": 2, "same": 0})
    family.sow("a", {"id": "a", "n": 1, "same": 0}, 3)
    delivered = [next(first), next(first)]
    assert sorted((message.command, message.sub_ids, message.delta) for message in delivered) == [
        ("oof", ("1",), False),
        ("publish", ("some",), True),
    ]
    first.remove("1")
    family.sow("a", {"id": "a", "n": 5, "same": 0}, 4)
    assert [(message.sub_ids, message.data) for message in family.rest(first)] == [(("some",), {"id": "a", "n": 5})]
    first.close()


def test_invalid_additions_are_rejected(client: Client, family: Family):
    """A bad filter, a taken name, and a subscription that needs state that is not read, raise at once."""
    first = client.sow_and_subscribe(family.name, sub_id="x")
    with pytest.raises(FilterError):
        first.add("/n >")
    with pytest.raises(ConfigurationError, match="'x' already"):
        first.add(sub_id="x")
    with pytest.raises(ConfigurationError, match="no subscription 'y'"):
        first.remove("y")
    plain = client.subscribe(family.name)
    plain.add("/n > 1")
    with pytest.raises(ConfigurationError, match="give the first one a sub_id"):
        plain.add("/n > 1", "oof")
    with pytest.raises(ConfigurationError, match="sub_id when"):
        client.delta_subscribe(family.name).add("/n > 1")


def test_a_slow_reader_gets_the_newest_state(client: Client, family: Family):
    """With `conflation=auto`, an update of a record replaces an earlier one that still waits."""
    subscription = client.sow_and_subscribe(family.name, options="conflation=auto", timeout_s=PATIENCE_S)
    assert [next(subscription).command for _ in range(2)] == ["group_begin", "group_end"]
    keys = [f"k{number}" for number in range(50)]
    for n in range(2):
        with family.transaction():
            for key in keys:
                family.write(f"{family.name}.sow", key, {"id": key, "n": n}, version=str(n + 1))
        if n == 0:
            assert next(subscription).data["n"] == 0
    delivered: dict[str, list[int]] = {key: [] for key in keys}
    while sum(numbers[-1:] == [1] for numbers in delivered.values()) < len(keys):
        message = next(subscription)
        delivered[message.data["id"]].append(message.data["n"])
        time.sleep(0.05)  # A reader that is slower than the updates.
    # Most of them, unless a busy machine needs long to fetch the second ones.
    assert [1] in delivered.values()


def test_without_conflation_nothing_is_folded(client: Client, family: Family):
    """A slow reader without conflation gets every update: untaken records stay in Kafka."""
    subscription = client.sow_and_delta_subscribe(family.name, options="oof,conflation=none", timeout_s=PATIENCE_S)
    assert [next(subscription).command for _ in range(2)] == ["group_begin", "group_end"]
    with family.transaction():
        for number in range(12_000):
            family.write(f"{family.name}.sow", "a", {"id": "a", "n": number}, version=str(number + 1))
    assert [message.data["n"] for message in family.rest(subscription)] == list(range(12_000))


def test_an_interval_conflates_a_burst_into_one_delta(client: Client, family: Family):
    """With `conflation=300ms` a burst is one delta at the end of its interval, and nothing follows."""
    family.sow("a", {"id": "a", "n": 0, "m": 0})
    subscription = client.sow_and_delta_subscribe(family.name, conflation=0.3, timeout_s=PATIENCE_S)
    assert [next(subscription).command for _ in range(3)][-1] == "group_end"
    with family.transaction():
        family.write(f"{family.name}.sow", "a", {"id": "a", "n": 1, "m": 0}, version="2")
        family.write(f"{family.name}.sow", "a", {"id": "a", "n": 1, "m": 1}, version="3")
    message = next(subscription)
    assert (message.data, message.delta, message.version) == ({"id": "a", "n": 1, "m": 1}, True, 3)
