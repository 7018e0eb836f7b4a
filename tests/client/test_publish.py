import pytest

from processor.client import Client
from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.config import Config
from processor.errors import BrokerUnavailable, ConfigurationError, RecordRejected, Stop
from processor.kafka.partitioner import partition_for
from processor.kafka.producers.publisher import Publisher
from processor.record import Record
from tests.client.family import PARTITIONS, Family


def published(family: Family) -> dict[int, list[Record]]:
    """What is on the input topic, by partition."""
    found: dict[int, list[Record]] = {}
    for partition in range(PARTITIONS):
        topic = f"{family.name}.publish"
        boundary = SnapshotBoundary(
            family.config.kafka, family.admin, topic=topic, partitions=[partition], group="test"
        )
        found[partition] = [record for batch in boundary.before() for record in batch]
        boundary.close()
    return found


@pytest.mark.broker
def test_commands_reach_the_partition_of_their_key(client: Client, family: Family):
    """Each command is a record on the partition that Java's partitioner gives its key, in the order sent."""
    for number in range(20):
        client.publish(family.name, {"id": f"k{number}", "n": 1})
        client.delta_publish(family.name, {"n": 2}, f"k{number}", {"correlation_id": "x"})
        client.sow_delete(family.name, f"k{number}")
    client.flush()
    found = published(family)
    assert sum(len(records) for records in found.values()) == 60
    for partition, records in found.items():
        assert {partition_for(record.key or b"", PARTITIONS) for record in records} <= {partition}
        for first, second, third in zip(records[::3], records[1::3], records[2::3], strict=True):
            assert first.key == second.key == third.key
            assert (first.headers, second.headers) == ([("command", b"publish")], [("correlation_id", b"x")])
            assert (second.value, third.value, third.headers) == (b'{"n":2}', None, None)


@pytest.mark.broker
def test_delivery_is_told(client: Client, family: Family):
    """A callback hears of each record once Kafka has it; `flush` returns after all were told."""
    delivered: list[Stop | None] = []
    for number in range(100):
        client.publish(family.name, {"id": number}, on_delivery=delivered.append)
    client.flush()
    assert delivered == [None] * 100


@pytest.mark.broker
def test_leaving_the_client_sends_what_is_left(family: Family):
    """The end of `with` waits for Kafka to have everything."""
    with Client("test", family.config) as client:
        client.publish(family.name, {"id": 1})
    assert sum(len(records) for records in published(family).values()) == 1


@pytest.mark.broker
def test_a_missing_topic_is_an_error_not_a_new_topic(bootstrap: str, unique: str):
    """Nothing is created behind the user's back, neither by publishing nor by subscribing."""
    from processor.kafka.admin.admin import Admin

    config = Config.model_validate({"kafka": {"bootstrap.servers": bootstrap}, "topics": {unique: {}}})
    with Client("test", config) as client:
        for call in (lambda: client.publish(unique, {"id": 1}), lambda: client.subscribe(unique)):
            with pytest.raises(ConfigurationError, match="sowstream topics apply"):
                call()
    assert not [name for name in Admin(config.kafka).cluster().topics if name.startswith(unique)]


@pytest.mark.broker
def test_another_number_of_partitions_is_refused(family: Family):
    """CommandSender to a topic whose partitions are not those of the settings would send keys to a wrong worker."""
    topic = family.config.topics[family.name].model_copy(update={"partitions": PARTITIONS + 1})
    with (
        Client("test", family.config.model_copy(update={"topics": {family.name: topic}})) as client,
        pytest.raises(ConfigurationError, match="topics check"),
    ):
        client.publish(family.name, {"id": 1})


@pytest.mark.broker
def test_what_kafka_would_not_take_is_rejected(client: Client, family: Family):
    """A message beyond Kafka's size is `too_large` at once, and the next one goes through."""
    with pytest.raises(RecordRejected, match="too_large"):
        client.publish(family.name, {"id": 1, "x": "x" * 17_000_000})
    client.publish(family.name, {"id": 2})
    client.flush()
    assert sum(len(records) for records in published(family).values()) == 1


def test_nobody_publishes_to_a_conflated_topic():
    """No command does, and no Kafka is asked: its worker would read nothing of it. It names where to publish."""
    config = Config.model_validate(
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "topics": {"orders": {}},
            "conflated": {"slow": {"underlying": "orders"}, "slower": {"underlying": "slow"}},
        }
    )
    with Client("test", config) as client:
        for name in ("slow", "slower"):
            commands = (
                lambda name=name: client.publish(name, {"id": 1}),
                lambda name=name: client.delta_publish(name, {"id": 1}, ack="persisted"),
                lambda name=name: client.sow_delete(name, "1"),
            )
            for command in commands:
                with pytest.raises(ConfigurationError, match=f"a worker makes '{name}' of .*; publish to 'orders'"):
                    command()


def test_flush_says_when_kafka_is_not_there():
    """A broker that does not answer is an error of `flush` within the time given, not an endless wait."""
    publisher = Publisher({"bootstrap.servers": "127.0.0.1:1"})
    publisher.send("orders.publish", b"k", b"{}")
    with pytest.raises(BrokerUnavailable, match=r"1 records within 0\.3 s"):
        publisher.flush(0.3)


def test_what_was_not_delivered_is_raised_once():
    """A record that ran out of time is raised by `flush`; the next flush starts afresh."""
    publisher = Publisher({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "200"})
    for _ in range(3):
        publisher.send("orders.publish", b"k", b"{}")
    with pytest.raises(Stop, match="3 records were not delivered"):
        publisher.flush()
    publisher.flush()
