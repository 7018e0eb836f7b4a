"""`Client(gateway=URL)` has the calls of the client on Kafka, and keeps every digit of a value."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import date
from decimal import Decimal
from types import SimpleNamespace

import pytest

from processor.client import Client
from processor.client.gateway import sender as sending
from processor.codec.json import JsonCodec
from processor.errors import (
    AcksMissing,
    BrokerUnavailable,
    ConfigurationError,
    FilterError,
    PublishRejected,
    RecordRejected,
    SowstreamError,
    VersionConflict,
)
from tests.gateway.memory import MemoryWorld
from tests.gateway.test_digits import RECORD, put, stored
from tests.waiting import until

VALUE = JsonCodec().decode(RECORD.encode())


@pytest.fixture(scope="module")
def shared():
    """A gateway with three topics, one with a key of two fields, that takes requests of 10,000 bytes."""
    made = MemoryWorld("orders", "prices", "fills", keys={"fills": ("/k/a", "/k/b")}, limits={"message_bytes": 10_000})
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


def test_a_record_is_published_found_and_deleted(client):
    """A record is published, merged, found by its key and deleted; each command has its ack."""
    assert client.publish("orders", {"id": 1, "qty": 5}, ack="persisted").result(60).status == "success"
    assert client.delta_publish("orders", {"id": 1, "note": "n"}, ack="persisted").result(60).sow_key == "1"
    assert client.get("orders", "1").data == {"id": 1, "qty": 5, "note": "n"}
    assert client.sow_delete("orders", "1", ack="persisted").result(60).status == "success"
    assert client.get("orders", "1") is None
    client.publish("orders", {"id": 2})
    client.flush(60)
    assert [message.sow_key for message in client.sow("orders") if message.command == "sow"] == ["2"]


def test_a_subscription_delivers_the_snapshot_and_then_deltas(world, client):
    """A subscription delivers group marks, records, deltas and oof, and is not named if it is the only one."""
    world.put(1, qty=20)
    subscription = client.sow_and_delta_subscribe("orders", "/qty > 10", "oof", timeout_s=30)
    messages = [next(subscription) for _ in range(3)]
    assert [message.command for message in messages] == ["group_begin", "sow", "group_end"]
    assert messages[1].sub_ids == ()
    world.put(1, qty=20, note="n")
    message = next(subscription)
    assert (message.delta, message.data, message.delta_base) == (True, {"id": 1, "note": "n"}, 1)
    world.put(1, qty=1)
    assert next(subscription).reason == "match"
    subscription.close()


def test_a_window_says_how_many_records_match(world, client):
    """A window of two has the number of all records that match, also when it has changed; without one it is None."""
    for key in range(5):
        world.put(key, qty=key)
    window = client.sow_and_delta_subscribe("orders", "/qty > 0", order_by="/qty", top_n=2, timeout_s=30)
    assert [next(window).command for _ in range(4)] == ["group_begin", "sow", "sow", "group_end"]
    assert window.matching == 4
    world.put(9, qty=0.5)
    next(window)
    assert window.matching == 5
    window.close()
    with client.sow_and_delta_subscribe("orders", timeout_s=30) as everything:
        next(everything)
        assert everything.matching is None


def test_a_subscription_resumes_after_a_lost_connection(world, client):
    """After a lost connection a subscription goes on with what changed, without a snapshot."""
    world.put(1, qty=20)
    subscription = client.sow_and_delta_subscribe("orders", None, "oof", timeout_s=30)
    for _ in range(3):
        next(subscription)
    subscription._topic_feed.fetch(0.5)
    subscription._topic_feed._link._socket.close()
    world.put(1, qty=21)
    message = next(subscription)
    assert (message.command, message.data) == ("publish", {"id": 1, "qty": 21})
    subscription.close()


def test_a_view_and_a_connection_of_several_topics(world, client):
    """A view follows a topic, and a connection carries subscriptions of several topics with their names."""
    world.put(1, "orders", qty=1)
    world.put(2, "prices", px=2)
    with client.view("orders") as view:
        assert dict(view) == {"1": {"id": 1, "qty": 1}}
    with client.connect(timeout_s=30) as connection:
        connection.sow_and_subscribe("orders", sub_id="o")
        connection.sow_and_subscribe("prices", sub_id="p")
        rows = set()
        for message in connection:
            if message.command == "sow":
                rows.add((message.sub_ids, message.sow_key))
            if len(rows) == 2:
                break
    assert rows == {(("o",), "1"), (("p",), "2")}


def test_a_query_next_to_a_subscription_of_its_topic_leaves_it_alive(world, client):
    """A query of a connection ends with its snapshot, and the other subscription of the topic has its updates."""
    world.put(1, "orders", qty=1)
    with client.connect(timeout_s=30) as connection:
        connection.subscribe("orders", sub_id="live")
        connection.sow("orders", sub_id="query")
        commands = []
        for message in connection:
            commands.append((message.command, message.sub_ids))
            if message.command == "group_end":
                world.put(1, "orders", qty=2)
            if message.command == "publish":
                break
    assert commands[-2:] == [("group_end", ("query",)), ("publish", ("live",))]


def test_mistakes_are_reported_at_once(client):
    """A wrong filter, an unknown topic and an option that makes no sense raise at the call."""
    with pytest.raises(FilterError):
        client.subscribe("orders", "/qty >")
    with pytest.raises(ConfigurationError):
        client.subscribe("nowhere")
    with pytest.raises(ConfigurationError):
        client.subscribe("orders", bookmark="epoch")
    with pytest.raises(ConfigurationError):
        Client("x", gateway="nonsense").sow("orders")


def test_a_conditional_publish_fails_with_the_version_that_the_record_has(world, client):
    """A publish that expects another version fails as on Kafka, and one that asks for no ack has a future too."""
    version = world.put(1, qty=1)
    with pytest.raises(VersionConflict) as caught:
        client.delta_publish("orders", {"id": 1, "qty": 2}, expect_version=version + 1).result(60)
    assert caught.value.version == version
    assert (
        client.delta_publish("orders", {"id": 1, "qty": 2}, expect_version=version).result(60).ack_type == "processed"
    )


def test_a_delete_of_several_records_is_answered_once_with_their_number(world, client):
    """The future of a delete by keys is done when all of them are deleted, and says how many."""
    for key in range(3):
        world.put(key, qty=1)
    assert client.sow_delete("orders", keys=["0", "2"], ack="stats").result(60).records_deleted == 2
    assert [message.sow_key for message in client.sow("orders") if message.command == "sow"] == ["1"]


def test_records_keys_and_topics_have_the_forms_of_a_client_on_kafka(world, client):
    """`records`, `record`, `topics` and `publish_many` work over a gateway, and each call takes a key by value."""
    assert client.publish_many("orders", ({"id": number, "qty": number} for number in range(5)), ack="persisted") == 5
    assert [record["id"] for record in client.records("orders", "/qty > 2", order_by="/id")] == [3, 4]
    assert client.record("orders", 4) == {"id": 4, "qty": 4}
    client.publish("orders", {"id": 4, "qty": 40}, key=4, ack="persisted").result(60)
    client.sow_delete("orders", keys=[0, 1], ack="persisted").result(60)
    with client.view("orders") as view:
        assert (view[4], 0 in view, 2 in view) == ({"id": 4, "qty": 40}, False, True)
    assert [(one.name, one.key, one.message_type, one.kind) for one in client.topics()] == [
        ("orders", ("/id",), "json", None),
        ("prices", ("/id",), "json", None),
        ("fills", ("/k/a", "/k/b"), "json", None),
    ]
    assert repr(client) == f"<Client 'py' http://{world.gateway.address}>"


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


def test_a_flush_goes_on_while_answers_come(client, monkeypatch):
    """A flush without a limit ends a minute after the last answer, and not a minute after its begin."""
    sender, waits, answers = client._sender(), threading.Event(), []
    receive = sender._link.receive

    def kept(wait_s):
        waits.set()
        answers.extend(receive(wait_s) or ())

    sender._link.receive = kept
    assert waits.wait(60)
    for qty in range(4):
        client.publish("orders", {"id": "x", "qty": qty}, ack="persisted")
    until(lambda: len(answers) == 4)

    def sleep(_delay_s):
        now_s[0] += 40.0
        if answers and now_s[0] < 160.0:
            sender._take(answers.pop(0))

    now_s = [0.0]
    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    with pytest.raises(AcksMissing, match="1 commands were not answered"):
        client.flush()
    assert now_s == [200.0]
    sender._take(answers.pop())
    client.flush()


def test_the_error_of_a_block_is_not_replaced_by_that_of_a_command(world):
    """An error in a `with` block comes out though the gateway has refused a command, and the connection is closed."""
    client = Client("py", gateway=f"http://{world.gateway.address}")
    sender = client._sender()
    sender._failed = PublishRejected("missing_key", "the message lacks a key field")
    with pytest.raises(ZeroDivisionError), client:
        raise ZeroDivisionError
    assert not sender._thread.is_alive()


async def _given_up(client):
    """Wait for an ack too briefly, as `asyncio.wait_for` does, while the reader of answers is held."""
    future = client.publish("orders", {"id": "x", "qty": 1}, ack="persisted")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.wrap_future(future), 0.01)


@pytest.mark.parametrize("way", ["cancel", "wait_for", "on_ack", "on_delivery"])
def test_what_a_caller_does_with_one_ack_is_no_end_of_the_others(client, way):
    """After a future that was given up, and after a callback that raises, the later commands get their acks."""
    held, waits, receive = threading.Event(), threading.Event(), client._sender()._link.receive

    def late(wait_s):
        waits.set()
        held.wait(60)
        return receive(wait_s)

    def fail(_ack):
        raise RuntimeError

    client._sender()._link.receive = late
    assert waits.wait(60)
    if way == "wait_for":
        asyncio.run(_given_up(client))
    elif way == "cancel":
        client.publish("orders", {"id": "x", "qty": 1}, ack="persisted").cancel()
    else:
        client.publish("orders", {"id": "x", "qty": 1}, ack="persisted", **{way: fail})
    later = client.publish("orders", {"id": "x", "qty": 2}, ack="persisted")
    held.set()
    assert later.result(60).status == "success"
    client.flush(60)


def test_an_answer_that_cannot_be_read_fails_what_waits(client):
    """An answer without a status ends the reading of answers, and so all commands that wait, and later ones."""
    sender = client._sender()
    waits, receive = threading.Event(), sender._link.receive

    def without_status(wait_s):
        waits.set()
        return [{name: value for name, value in one.items() if name != "status"} for one in receive(wait_s) or ()]

    sender._link.receive = without_status
    assert waits.wait(60)
    future = client.publish("orders", {"id": "x", "qty": 1}, ack="persisted")
    with pytest.raises(BrokerUnavailable, match="cannot be read: KeyError"):
        future.result(60)
    with pytest.raises(BrokerUnavailable):
        client.publish("orders", {"id": "x", "qty": 2}, ack="persisted")


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
