import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from processor.client import Client
from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.config import Config
from processor.errors import AcksMissing, ConfigurationError, PositionLost, SowstreamError, Stop
from processor.kafka.admin.admin import Admin
from processor.topics.family import family_specs
from processor.wire.ack import Ack, ack_types, read_ack
from processor.wire.headers import header_text
from processor.wire.publisher_mark import is_reserved
from tests.client.family import PARTITIONS, Family
from tests.waiting import PATIENCE_S


def ack(sequence: int, **more: object) -> bytes:
    """A successful `persisted` ack of the client `test`, as a worker writes it."""
    said = {"ack_type": "persisted", "client": "test", "sequence": sequence, "status": "success"}
    return json.dumps(said | more).encode()


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads switch as often as possible."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@contextmanager
def impatient(config: Config) -> Iterator[Client]:
    """A client that waits for Kafka when it is closed, and not for acks: no worker runs here."""
    client = Client("test", config)
    yield client
    assert client._command_sender is not None
    client._command_sender.deliver(PATIENCE_S)
    client._command_sender.close()


@pytest.mark.broker
def test_a_name_that_is_forgotten_is_no_client_s_own(client: Client, family: Family):
    """The name on the wire is random only where the caller gives no number, and no caller may choose one like it."""
    ours = client._sender()._acked_publisher._own_name  # type: ignore[attr-defined]
    assert is_reserved(ours)
    with Client(ours, client.config) as other, pytest.raises(ConfigurationError, match="forgotten after a day"):
        other.publish(family.name, {"id": "a"}, ack="persisted", sequence=1)


@pytest.mark.broker
def test_only_its_own_acks_settle_a_command(client: Client, family: Family):
    """Invalid acks, and those of another client, another partition or an aborted transaction are ignored."""
    future = client.publish(family.name, {"id": "a"}, ack="persisted", sequence=5, command_id="x")
    assert future is not None
    for wrong in (b"rubbish", b"{}", ack(4)):
        family.ack("a", "test", wrong)
    family.ack("a", "other", ack(9, client="other"))
    elsewhere = next(key for key in "bcdefgh" if _partition(key) != _partition("a"))
    family.ack(elsewhere, "test", ack(9))
    with family.transaction(commit=False):
        family.write(f"{family.name}.ack", "a", None)
    # An ack in order after all of those on the partition shows that they were read.
    second = client.publish(family.name, {"id": "a"}, ack="received", sequence=6)
    family.ack("a", "test", ack(6, ack_type="received"))
    assert second is not None
    assert second.result(PATIENCE_S).sequence == 6
    assert not future.done()
    family.ack("a", "test", ack(5))
    assert future.result(PATIENCE_S)[:3] == ("success", None, "persisted")
    assert (future.result().sow_key, future.result().command_id) == ("a", "x")


def _partition(key: str) -> int:
    from processor.kafka.partitioner import partition_for

    return partition_for(key.encode(), PARTITIONS)


@pytest.mark.broker
def test_numbers_grow_within_every_partition_with_many_threads(family: Family, restless: None):
    """Many threads and a queue that is often full do not change the order: each number occurs once, in order."""
    kafka = {**family.config.kafka, "queue.buffering.max.messages": "50"}
    with impatient(family.config.model_copy(update={"kafka": kafka})) as client:

        def publish(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(250):
                client.delta_publish(family.name, {"id": rng.randrange(50)}, ack="received")

        threads = [threading.Thread(target=publish, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    numbers = []
    for partition in range(PARTITIONS):
        topic = f"{family.name}.publish"
        boundary = SnapshotBoundary(
            family.config.kafka, family.admin, topic=topic, partitions=[partition], group="test"
        )
        records = [record for batch in boundary.before() for record in batch]
        boundary.close()
        own = [int(header_text(record.headers, "sequence") or 0) for record in records]
        assert own == sorted(own)
        numbers += own
        names = {header_text(record.headers, "client") for record in records}
        assert len(names) == 1
        assert names != {"test"}
    assert sorted(numbers) == list(range(1, 1001))


@pytest.mark.broker
def test_a_record_that_kafka_rejects_fails_its_future(bootstrap: str, unique: str):
    """A record that the broker refuses fails its own future, without a flush; the next one is sent."""
    settings = {"max.message.bytes": "2000"}
    config = Config.model_validate({"kafka": {"bootstrap.servers": bootstrap}, "topics": {unique: {"partitions": 1}}})
    Admin(config.kafka).create(family_specs(unique, ("publish", "ack"), partitions=1, settings=settings))
    delivered: list[Stop | None] = []
    with impatient(config) as client:
        noise = random.Random(1).randbytes(4000).hex()
        large = client.publish(unique, {"id": 1, "x": noise}, ack="persisted", on_delivery=delivered.append)
        assert large is not None
        error = large.exception(PATIENCE_S)
        assert isinstance(error, Stop)
        assert "refuses a record" in str(error)
        small = client.publish(unique, {"id": 1}, ack="persisted", on_delivery=delivered.append)
    assert small is not None
    assert isinstance(small.exception(0), AcksMissing)
    assert [type(one) for one in delivered] == [type(error), type(None)]


@pytest.mark.broker
def test_a_recreated_ack_topic_fails_its_own_commands_only(family: Family, unique: str):
    """The command that waits for the lost acks fails, those of another topic go on, and a later one gets its ack."""
    other, ack_topic = f"{unique}_other", f"{family.name}.ack"
    family.admin.create(family_specs(other, ("publish", "ack"), partitions=PARTITIONS))
    settings = {"topics": {**family.config.topics, other: family.config.topics[family.name]}}
    with impatient(family.config.model_copy(update=settings)) as client:
        first = client.publish(family.name, {"id": "a"}, ack="persisted", sequence=1)
        family.ack("a", "test", ack(1))
        assert first is not None
        assert first.result(PATIENCE_S).sequence == 1
        lost = client.publish(family.name, {"id": "a"}, ack="persisted", sequence=2)
        waiting = client.publish(other, {"id": "a"}, ack="persisted", sequence=1)
        assert lost is not None
        assert waiting is not None
        family.admin.delete([ack_topic])
        family.admin.create(family_specs(family.name, ("ack",), partitions=PARTITIONS))
        error = lost.exception(PATIENCE_S)
        assert isinstance(error, PositionLost), error
        assert ack_topic in str(error)
        assert not waiting.done()
        again = client.publish(family.name, {"id": "a"}, ack="persisted", sequence=3)
        family.ack("a", "test", ack(3))
        family.ack("a", "test", ack(1), other)
        assert again is not None
        assert again.result(PATIENCE_S).sequence == 3
        assert waiting.result(PATIENCE_S).sequence == 1


@pytest.mark.broker
def test_without_an_ack_topic_nothing_is_sent(bootstrap: str, unique: str):
    """Without an ack topic, as in older families, the error gives advice, and no topic is created by accident."""
    config = Config.model_validate({"kafka": {"bootstrap.servers": bootstrap}, "topics": {unique: {"partitions": 1}}})
    Admin(config.kafka).create(family_specs(unique, ("publish",), partitions=1))
    with Client("test", config) as client:
        with pytest.raises(ConfigurationError, match=rf"{unique}\.ack does not exist; `sowstream topics apply`"):
            client.publish(unique, {"id": 1}, ack="persisted")
        client.publish(unique, {"id": 1}, sequence=1)


@pytest.mark.broker
def test_wrong_arguments_are_rejected_before_anything_is_sent(client: Client, family: Family):
    """A callback without acks, an invalid number and a too long name are rejected with the reason."""
    with pytest.raises(ConfigurationError, match="on_ack receives acks"):
        client.publish(family.name, {"id": 1}, on_ack=print)
    with pytest.raises(ConfigurationError, match="sequence is -1"):
        client.publish(family.name, {"id": 1}, sequence=-1)
    with (
        Client("x" * 1001, family.config) as long,
        pytest.raises(ConfigurationError, match="name has 1001 bytes"),
    ):
        long.publish(family.name, {"id": 1}, ack="received")


@pytest.mark.broker
def test_closing_ends_the_thread_that_reads_acks(family: Family):
    """Closing ends the thread that reads acks; a later command is refused, and starts no other one."""
    client = Client("test", family.config)
    threads = set(threading.enumerate())
    future = client.publish(family.name, {"id": "a"}, ack="persisted", sequence=1)
    family.ack("a", "test", ack(1))
    assert future.result(PATIENCE_S)
    client.close()
    with pytest.raises(SowstreamError, match="closed"):
        client.publish(family.name, {"id": "a"}, ack="persisted", sequence=2)
    assert "sowstream-acks" not in [thread.name for thread in set(threading.enumerate()) - threads]


def test_ack_types_are_read_in_the_order_of_a_commands_way():
    """In any notation, the last type is the one that the future waits for; `none` means no acks."""
    assert ack_types("persisted, received") == ("received", "persisted")
    assert ack_types(None) == ack_types("none") == ack_types("") == ()


def test_other_ack_types_are_refused_with_a_word():
    """`stats` is not supported for publishing; an unknown type is answered with a suggestion."""
    with pytest.raises(ConfigurationError, match="'stats' is not supported"):
        ack_types("persisted,stats")
    with pytest.raises(ConfigurationError, match="did you mean 'persisted'"):
        ack_types("persistent")


def test_an_ack_may_lack_fields():
    """A field without a value is None, whether it is null or missing."""
    said = {"ack_type": "processed", "status": "failure", "reason": "missing_key: none", "client": "c", "sequence": 3}
    ack = read_ack("orders", json.dumps(said | {"sow_key": None}).encode())
    assert ack == Ack("failure", "missing_key: none", "processed", "orders", None, "c", 3, None)


@pytest.mark.parametrize(
    "value",
    [b"", b"1", b"[]", b"{}", b'{"ack_type":"x","status":"success"}', b'{"ack_type":"received","status":"?"}',
     b'{"ack_type":"received","status":"success","sequence":"1"}'],
)  # fmt: skip
def test_an_invalid_ack_is_an_error(value: bytes):
    """A foreign record on the ack topic raises a ValueError, which the reader logs and ignores."""
    with pytest.raises(ValueError, match=r"."):
        read_ack("orders", value)
