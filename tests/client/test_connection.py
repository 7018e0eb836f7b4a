"""Several subscriptions of one connection: of different calls and topics, in one stream of messages."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from processor.errors import ConfigurationError, FilterError, SowstreamError
from tests.client.family import Family
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from processor.client import Client, ClientConnection, Message

pytestmark = pytest.mark.broker


def taken(connection: ClientConnection, count: int) -> list[Message]:
    """The next messages."""
    messages = []
    for _ in range(count):
        message = connection.next_within(PATIENCE_S)
        assert message is not None
        messages.append(message)
    return messages


def brief(message: Message) -> tuple[object, ...]:
    """Topic, subscriptions and content of a message."""
    return (message.topic, message.sub_ids, message.command, message.delta, message.data)


def conflated(family: Family, key: str, value: object, version: int = 1) -> None:
    """Write one SOW record to the conflated topic."""
    with family.transaction():
        family.write(f"{family.conflated}.sow", key, value, version=str(version))


def test_calls_and_topics_share_a_stream(client: Client, family: Family) -> None:
    """An update is one message for all matching subscriptions, in full if one of them asks for full records."""
    name, other = family.name, family.conflated
    family.sow("a", {"id": "a", "n": 1, "same": 0})
    with client.connect() as connection:
        assert connection.sow_and_subscribe(name, "/n < 5") == "1"
        assert connection.delta_subscribe(name, sub_id="deltas") == "deltas"
        assert connection.subscribe(other) == "2"
        assert [brief(message) for message in taken(connection, 3)] == [
            (name, ("1",), "group_begin", False, None),
            (name, ("1",), "sow", False, {"id": "a", "n": 1, "same": 0}),
            (name, ("1",), "group_end", False, None),
        ]
        family.sow("a", {"id": "a", "n": 2, "same": 0}, 2)
        assert [brief(message) for message in taken(connection, 1)] == [
            (name, ("1", "deltas"), "publish", False, {"id": "a", "n": 2, "same": 0})
        ]
        conflated(family, "a", {"id": "a", "n": 3})
        assert [brief(message) for message in taken(connection, 1)] == [
            (other, ("2",), "publish", False, {"id": "a", "n": 3})
        ]
        family.sow("a", {"id": "a", "n": 9, "same": 0}, 3)
        assert [brief(message) for message in taken(connection, 1)] == [
            (name, ("deltas",), "publish", True, {"id": "a", "n": 9})
        ]
    assert list(connection) == []


def test_subscriptions_come_and_go_while_others_go_on(client: Client, family: Family) -> None:
    """A removed subscription gets no more messages; its name and its topic may be used again."""
    name, other = family.name, family.conflated
    with client.connect() as connection:
        first = connection.subscribe(name)
        connection.subscribe(other, sub_id="other")
        family.sow("a", {"id": "a", "n": 1})
        assert [message.sub_ids for message in taken(connection, 1)] == [(first,)]
        connection.remove("other")
        conflated(family, "a", {"id": "a", "n": 1})
        family.sow("a", {"id": "a", "n": 2}, 2)
        assert [message.topic for message in taken(connection, 1)] == [name]
        connection.sow_and_delta_subscribe(other, sub_id="other")
        assert [brief(message)[1:] for message in taken(connection, 3)] == [
            (("other",), "group_begin", False, None),
            (("other",), "sow", False, {"id": "a", "n": 1}),
            (("other",), "group_end", False, None),
        ]
        conflated(family, "a", {"id": "a", "n": 4}, 2)
        assert [brief(message)[1:] for message in taken(connection, 1)] == [
            (("other",), "publish", True, {"id": "a", "n": 4})
        ]


def test_a_query_ends_and_its_topic_can_be_subscribed_to(client: Client, family: Family) -> None:
    """`sow` ends with its `group_end`; before and after it, other subscriptions of the topic begin and get updates."""
    name = family.name
    family.sow("a", {"id": "a", "n": 1})
    with client.connect() as connection:
        connection.sow(name, sub_id="query")
        connection.subscribe(name, sub_id="early")
        assert [message.sub_ids for message in taken(connection, 3)] == [("query",)] * 3
        connection.sow(name, sub_id="query")
        assert [message.sub_ids for message in taken(connection, 3)] == [("query",)] * 3
        family.sow("a", {"id": "a", "n": 2}, 2)
        assert [message.sub_ids for message in taken(connection, 1)] == [("early",)]
        connection.remove("early")
        connection.sow(name)
        assert [message.data for message in taken(connection, 3)] == [None, {"id": "a", "n": 2}, None]
        with pytest.raises(ConfigurationError, match="no subscription 'query' on this connection"):
            connection.remove("query")


def test_a_callback_gets_the_messages_of_all(client: Client, family: Family) -> None:
    """With `on_message` one thread reads all topics; a callback may subscribe, and errors end the connection."""
    delivered: list[tuple[str, tuple[str, ...]]] = []
    threads: set[str] = set()
    done = threading.Event()

    def take(message: Message) -> None:
        delivered.append((message.topic, message.sub_ids))
        threads.add(threading.current_thread().name)
        if len(delivered) == 1:
            connection.subscribe(family.conflated, sub_id="second")
            conflated(family, "b", {"id": "b"})
        else:
            done.set()
            raise ValueError("no")

    connection = client.connect(on_message=take)
    connection.subscribe(family.name, sub_id="first")
    family.sow("a", {"id": "a"})
    assert done.wait(PATIENCE_S)
    with pytest.raises(ValueError, match="no"):
        connection.wait(PATIENCE_S)
    assert delivered == [(family.name, ("first",)), (family.conflated, ("second",))]
    assert threads == {"sowstream-subscription"}


def test_messages_of_all_are_awaited(client: Client, family: Family) -> None:
    """`async for` yields the messages of every topic, and `timeout_s` ends it when no more arrive."""

    async def read() -> list[str]:
        topics = []
        async with client.connect(timeout_s=PATIENCE_S) as connection:
            connection.subscribe(family.name)
            connection.subscribe(family.conflated)
            await asyncio.to_thread(family.sow, "a", {"id": "a"})
            await asyncio.to_thread(conflated, family, "a", {"id": "a"})
            async for message in connection:
                topics.append(message.topic)
                if len(topics) == 2:
                    connection.timeout_s = 0.3
        return topics

    assert sorted(asyncio.run(asyncio.wait_for(read(), PATIENCE_S))) == sorted([family.name, family.conflated])


def test_invalid_requests_are_rejected_and_change_nothing(client: Client, family: Family) -> None:
    """An invalid request is an error of its call; existing subscriptions go on."""
    with client.connect() as connection:
        connection.subscribe(family.name, sub_id="x")
        for call, error, match in (
            (lambda: connection.subscribe("nobody"), ConfigurationError, "nobody"),
            (lambda: connection.subscribe(family.name, "/n >"), FilterError, "/n >"),
            (lambda: connection.subscribe(family.conflated, sub_id="x"), ConfigurationError, "'x' on this connection"),
            (lambda: connection.subscribe(family.name, None, "bookmark=now"), ConfigurationError, "stream of its own"),
            (lambda: connection.sow(family.name, None, "oof"), ConfigurationError, "oof"),
            (lambda: connection.remove("y"), ConfigurationError, "no subscription 'y' on this connection"),
        ):
            with pytest.raises(error, match=match):
                call()
        family.sow("a", {"id": "a"})
        assert [message.sub_ids for message in taken(connection, 1)] == [("x",)]
    for late in (lambda: connection.subscribe(family.name), lambda: connection.remove("x")):
        with pytest.raises(SowstreamError, match="closed"):
            late()
    assert connection not in client._opener._open
