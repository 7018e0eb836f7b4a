"""The Python client over a gateway: values with every digit, and commands that cannot be sent fail at the call."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import date
from decimal import Decimal

import pytest

from processor.client import Client
from processor.codec.json import JsonCodec
from processor.errors import BrokerUnavailable, ConfigurationError, RecordRejected, SowstreamError
from tests.gateway.memory import MemoryWorld
from tests.gateway.test_digits import RECORD, put, stored

VALUE = JsonCodec().decode(RECORD.encode())


@pytest.fixture(scope="module")
def shared():
    """A gateway with two topics, one with a key of two fields, that takes requests of 10,000 bytes."""
    made = MemoryWorld("orders", "fills", keys={"fills": ("/k/a", "/k/b")}, limits={"message_bytes": 10_000})
    yield made
    made.close()


@pytest.fixture
def world(shared):
    """The gateway, whose topics are empty."""
    shared.gateway.call(
        lambda: [feed.write(key.decode(), None) for feed in shared.feeds.values() for key in list(feed.records)]
    )
    return shared


@pytest.fixture
def client(world):
    """A client of the gateway."""
    with Client("py", gateway=f"http://{world.gateway.address}") as made:
        yield made


@pytest.mark.parametrize("command", ["publish", "delta_publish"])
@pytest.mark.parametrize("data", [VALUE, RECORD.encode()])
def test_a_publish_keeps_every_digit(world, client, command, data):
    """Decimals and long integers are sent with their digits, and so are bytes that are JSON."""
    getattr(client, command)("orders", data, ack="persisted").result(60)
    assert stored(world) == RECORD


def test_records_have_every_digit(world, client):
    """A record that is read has the values that the client on Kafka reads."""
    put(world)
    text = JsonCodec().encode(client.get("orders", "x").data).rstrip().decode()
    assert text == RECORD
    assert client.get("orders", "x").data == VALUE
    [row] = [message for message in client.sow("orders", "/long = 0.1234567890123456789") if message.data]
    assert row.data == VALUE
    with client.view("orders") as view:
        assert view["x"] == VALUE
        assert str(view.to_pandas()["price"][0]) == "12345678901234567890.12"
    assert str(client.sow("orders").to_arrow()["long"][0]) == "0.1234567890123456789"


def test_the_calls_of_an_event_loop_keep_every_digit(world):
    """The calls for an event loop send and read the same values."""

    async def main():
        async with Client("loop", gateway=f"http://{world.gateway.address}") as client:
            await client.publish("orders", VALUE, ack="persisted")
            return await client.get("orders", "x")

    assert asyncio.run(main()).data == VALUE
    assert stored(world) == RECORD


def deep(levels):
    """A record of so many levels."""
    value = {"id": "x"}
    for _ in range(levels - 1):
        value = {"id": "x", "in": value}
    return value


def test_a_deep_record_is_sent_as_deep_as_it_may_be(world, client):
    """A record of 64 levels is sent."""
    client.publish("orders", deep(64), ack="persisted").result(60)
    assert client.get("orders", "x").data == deep(64)


CYCLE: dict = {"id": "x"}
CYCLE["in"] = CYCLE

BAD = {
    "nan": {"id": "x", "px": float("nan")},
    "infinity": {"id": "x", "px": [1, float("-inf")]},
    "no number": {"id": "x", "px": Decimal("NaN")},
    "date": {"id": "x", "day": date(2026, 1, 1)},
    "bytes": {"id": "x", "raw": b"abc"},
    "set": {"id": "x", "all": {1, 2}},
    "object": {"id": "x", "what": object()},
    "name": {"id": "x", 7: 8},
    "surrogate": {"id": "x", "text": "\ud800"},
    "surrogate name": {"id": "x", "\udc00": 1},
    "deep": deep(65),
    "cycle": CYCLE,
    "large": {"id": "x", "text": "a" * 10_000},
    "large by bytes": {"id": "x", "text": "\N{EURO SIGN}" * 4_000},
    "text": b"{",
    "not UTF-8": b'{"id":"\xff"}',
    "NaN in bytes": b'{"id":NaN}',
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
@pytest.mark.parametrize("ack", [None, "persisted"])
def test_a_record_that_cannot_be_sent_is_refused_at_the_call(client, data, ack):
    """A record that JSON does not have, or that is too large, raises with the reason, and nothing stays pending."""
    for call in (client.publish, client.delta_publish):
        with pytest.raises(RecordRejected):
            call("orders", data, ack=ack)
    with pytest.raises(RecordRejected):
        client.sow_delete("orders", data=data)
    client.flush(60)


@pytest.mark.parametrize(
    "arguments",
    [{"expiration": float("nan")}, {"expiration": -1}, {"correlation_id": "\ud800"}, {"key": "\ud800"}],
    ids=str,
)
def test_an_argument_that_cannot_be_sent_is_refused_at_the_call(client, arguments):
    """An argument that a gateway cannot take raises at the call, as on Kafka."""
    with pytest.raises((RecordRejected, ConfigurationError)):
        client.publish("orders", {"id": "x"}, ack="persisted", **arguments)
    client.flush(60)


def test_a_filter_that_cannot_be_sent_is_refused_at_the_call(client):
    """Half of a surrogate pair in a filter raises at the call, and the client goes on."""
    with pytest.raises(SowstreamError):
        client.sow("orders", "/a = '\ud800'")
    assert client.get("orders", "nothing") is None


def test_a_key_is_given_by_its_value(world, client):
    """`get` takes the value of the key field, an array for several, or an object, as on Kafka."""
    world.put(7, qty=1)
    world.gateway.call(lambda: world.feeds["orders"].write("9007199254740993", {"id": 9007199254740993}))
    assert client.get("orders", 7).data == {"id": 7, "qty": 1}
    assert client.get("orders", {"id": 7}).data == {"id": 7, "qty": 1}
    assert client.get("orders", 9007199254740993).data == {"id": 9007199254740993}
    world.gateway.call(lambda: world.feeds["fills"].write('["1","x"]', {"k": {"a": 1, "b": "x"}}))
    assert client.get("fills", [1, "x"]).data == {"k": {"a": 1, "b": "x"}}
    assert client.get("fills", {"k": {"a": 1, "b": "x"}}).sow_key == '["1","x"]'
    for key in ([1], 1.5, None, {"other": 1}):
        with pytest.raises(ConfigurationError):
            client.get("fills", key)
    with pytest.raises(ConfigurationError):
        client.get("nowhere", 7)


def test_what_a_lost_connection_carried_is_not_awaited(world, client):
    """A command whose answer was lost with its connection fails, though another command notices the loss."""
    sender = client._sender()
    held = threading.Event()
    receive = sender._link.receive

    def late(wait_s):
        held.wait(60)
        return receive(wait_s)

    world.put("x", qty=1)
    sender._link.receive = late
    client.publish("orders", {"id": "x", "qty": 2}, ack="persisted")
    future = client.publish("orders", {"id": "x", "qty": 3}, ack="persisted")
    sender._link.drop()  # As a send does that finds the connection lost, while the reader is elsewhere.
    held.set()
    with pytest.raises(BrokerUnavailable):
        future.result(60)
    client.flush(60)


def test_a_frame_that_the_gateway_cannot_read_fails_what_is_pending(client):
    """An answer without an id fails the commands that wait: one of them was refused, and which is not known."""
    sender = client._sender()
    with sender._lock:
        from processor.client.gateway.sender import _Pending
        from processor.client.publish.outbox import PublishOptions

        pending = _Pending("orders", ("persisted",), PublishOptions(), ("publish", "orders"), time.monotonic() + 60)
        pending.is_sent = True
        sender._pending["p999"] = pending
    sender._link._socket.send("{")
    with pytest.raises(SowstreamError):
        pending.future.result(60)
    client.flush(1)
