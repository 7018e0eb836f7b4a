"""`Client(gateway=URL)` has the calls of the client on Kafka."""

import pytest

from processor.client import Client
from processor.errors import ConfigurationError, FilterError, VersionConflict
from tests.gateway.memory import MemoryWorld


@pytest.fixture
def world():
    """A gateway with two topics."""
    made = MemoryWorld("orders", "prices")
    yield made
    made.close()


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
    ]
    assert repr(client) == f"<Client 'py' http://{world.gateway.address}>"
