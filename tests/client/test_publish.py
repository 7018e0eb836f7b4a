"""The commands that a client publishes, and its deletes with their answers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from processor.client import Client, Message
from processor.client import client as client_module
from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.client.publish.deleting import CombinedAcks, DeleteRecord, Selection, check, deletes
from processor.client.publish.outbox import Outbox, PublishOptions
from processor.codec import load_codec
from processor.config import Config, TopicConfig
from processor.errors import (
    BrokerUnavailable,
    ConfigurationError,
    PublishRejected,
    RecordRejected,
    SowstreamError,
    Stop,
)
from processor.kafka.clients.publisher import Publisher
from processor.kafka.partitioner import partition_for
from processor.record import Record
from processor.wire.ack import Ack
from tests.client.family import PARTITIONS, Family
from tests.waiting import PATIENCE_S, until


def published(family: Family) -> dict[int, list[Record]]:
    """The records on the input topic, by partition."""
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
    """Each command is a record on the partition that Java's partitioner selects for its key, in the order sent."""
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
def test_delivery_is_reported(client: Client, family: Family):
    """A callback is called for each record once Kafka has it; `flush` returns after all callbacks."""
    delivered: list[Stop | None] = []
    for number in range(100):
        client.publish(family.name, {"id": number}, on_delivery=delivered.append)
    client.flush()
    assert delivered == [None] * 100


@pytest.mark.broker
def test_leaving_the_client_sends_what_is_left(family: Family):
    """Leaving `with` waits for Kafka to have everything."""
    with Client("test", family.config) as client:
        client.publish(family.name, {"id": 1})
    assert sum(len(records) for records in published(family).values()) == 1


@pytest.mark.broker
def test_what_threads_publish_while_the_client_is_closed_is_sent_or_refused(family: Family):
    """Each record of another thread that was not refused is in Kafka, and they do not keep `close` from ending."""
    client = Client("test", family.config)
    accepted: list[int] = []

    def publish(first: int) -> None:
        with contextlib.suppress(SowstreamError):
            for number in itertools.count(first, 4):
                client.publish(family.name, {"id": number})
                accepted.append(number)

    threads = [threading.Thread(target=publish, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(accepted) > 1_000)
    client.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sum(len(records) for records in published(family).values()) == len(accepted)


@pytest.mark.broker
def test_a_callback_of_a_subscription_may_publish_while_the_client_is_closed(family: Family):
    """The client waits for the callback that is running, and for what it publishes."""
    client, is_called = Client("test", family.config), threading.Event()

    def copy(message: Message) -> None:
        if message.command == "sow":
            is_called.set()
            until(lambda: client._is_closed)
            client.publish(family.name, {"id": 7})

    family.sow("a", {"id": "a"})
    client.sow_and_subscribe(family.name, on_message=copy)
    assert is_called.wait(PATIENCE_S)
    client.close()
    assert sum(len(records) for records in published(family).values()) == 1


class Sender:
    """A sender that notes what it has to do, and in which a test can hold a command back."""

    during_send: Callable[[], object]
    during_flush: Callable[[], object]

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.is_open = threading.Event()
        self.is_calling_back = False
        self.during_send = self.during_flush = lambda: None

    def send(self, *_: object) -> None:
        """Send when the test allows it."""
        self.steps.append("send")
        self.during_send()
        self.is_open.wait(PATIENCE_S)
        self.steps.append("sent")

    def flush(self, timeout_s: float | None) -> None:
        """Wait for what was sent."""
        self.steps.append("flush")
        self.during_flush()

    def deliver(self, timeout_s: float) -> None:
        """Wait until Kafka has what was sent."""
        self.steps.append("deliver")

    def close(self) -> None:
        """End it."""
        self.steps.append("close")


def client_of(sender: Sender) -> Client:
    """A client with this sender."""
    client = Client("test", {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "topics": {"orders": {}}})
    client._command_sender = sender  # type: ignore[assignment]
    return client


def test_closing_waits_for_a_command_that_is_being_sent():
    """A command that another thread has begun is sent before the last flush; a later one is refused meanwhile."""
    client = client_of(sender := Sender())
    sending = threading.Thread(target=client.publish, args=("orders", {"id": 1}))
    sending.start()
    until(lambda: sender.steps)
    closing = threading.Thread(target=client.close)
    closing.start()
    until(lambda: client._closers)
    with pytest.raises(SowstreamError, match="is closed"):
        client.sow_delete("orders", "1")
    assert sender.steps == ["send"]
    sender.is_open.set()
    for thread in (sending, closing):
        thread.join(PATIENCE_S)
    assert sender.steps == ["send", "sent", "flush", "deliver", "close"]


def test_callbacks_may_publish_until_all_acks_have_come():
    """While a client that is closed waits for acks, callbacks may publish, and no other thread."""
    client = client_of(sender := Sender())
    sender.is_open.set()
    outcomes: list[str] = []

    def publish() -> None:
        try:
            client.publish("orders", {"id": 1})
            outcomes.append("sent")
        except SowstreamError:
            outcomes.append("refused")

    def on_another_thread() -> None:
        thread = threading.Thread(target=publish)
        thread.start()
        thread.join(PATIENCE_S)

    def during_flush() -> None:
        on_another_thread()
        sender.is_calling_back = True
        on_another_thread()
        sender.is_calling_back = False
        publish()  # In a callback of a delivery.

    sender.during_flush = during_flush
    client.close()
    publish()
    assert outcomes == ["refused", "sent", "sent", "refused"]


def test_closing_ends_though_another_thread_still_sends(monkeypatch: pytest.MonkeyPatch, caplog):
    """A callback may wait for the thread that closes: the wait for other threads has an end, and the log says so."""
    monkeypatch.setattr(client_module, "_SEND_S", 0.05)
    client = client_of(sender := Sender())
    sending = threading.Thread(target=client.publish, args=("orders", {"id": 1}))
    sending.start()
    until(lambda: sender.steps)
    client.close()
    assert sender.steps == ["send", "flush", "deliver", "close"]
    assert "'test' closes while other threads still send" in caplog.text
    sender.is_open.set()
    sending.join(PATIENCE_S)


def test_two_callbacks_that_close_do_not_wait_for_each_other():
    """Threads that close the client within their commands go on at once."""
    client = client_of(sender := Sender())
    sender.is_open.set()
    together = threading.Barrier(2)

    def close() -> None:
        together.wait(PATIENCE_S)
        client.close()

    sender.during_send = close
    threads = [threading.Thread(target=client.publish, args=("orders", {"id": 1}), daemon=True) for _ in range(2)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert time.monotonic() - began_s < client_module._SEND_S / 2
    assert "close" in sender.steps


def test_a_callback_within_a_flush_may_publish_while_another_thread_closes():
    """The thread that runs a callback makes no difference: that of a `flush` that began before may publish."""
    client = client_of(sender := Sender())
    sender.is_open.set()
    closing = threading.Thread(target=client.close)

    def during_flush() -> None:
        sender.during_flush = lambda: until(lambda: "sent" in sender.steps)
        closing.start()
        until(lambda: client._closers)
        client.publish("orders", {"id": 1})

    sender.during_flush = during_flush
    client.flush()
    closing.join(PATIENCE_S)
    assert sorted(sender.steps) == ["close", "deliver", "flush", "flush", "send", "sent"]


def test_a_signal_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch):
    """An exception of a signal handler right after a command was admitted leaves nothing to wait for."""
    client = client_of(Sender())
    admit = client._admit

    def interrupted() -> None:
        admit()
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "_admit", interrupted)
    for call in (lambda: client.publish("orders", {"id": 1}), lambda: client.sow_delete("orders", "1")):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert client._senders == []


@pytest.mark.broker
def test_a_missing_topic_is_an_error_not_a_new_topic(bootstrap: str, unique: str):
    """Neither publishing nor subscribing creates a missing topic."""
    from processor.kafka.admin.admin import Admin

    config = Config.model_validate({"kafka": {"bootstrap.servers": bootstrap}, "topics": {unique: {}}})
    with Client("test", config) as client:
        for call in (lambda: client.publish(unique, {"id": 1}), lambda: client.subscribe(unique)):
            with pytest.raises(ConfigurationError, match="sowstream topics apply"):
                call()
    assert not [name for name in Admin(config.kafka).cluster().topics if name.startswith(unique)]


@pytest.mark.broker
def test_another_number_of_partitions_is_refused(family: Family):
    """Publishing to a topic with other partitions than configured would send keys to wrong workers, and is rejected."""
    topic = family.config.topics[family.name].model_copy(update={"partitions": PARTITIONS + 1})
    with (
        Client("test", family.config.model_copy(update={"topics": {family.name: topic}})) as client,
        pytest.raises(ConfigurationError, match="topics check"),
    ):
        client.publish(family.name, {"id": 1})


@pytest.mark.broker
def test_a_message_too_large_for_kafka_is_rejected(client: Client, family: Family):
    """A message beyond Kafka's size limit is `too_large` at once, and the next one is sent."""
    with pytest.raises(RecordRejected, match="too_large"):
        client.publish(family.name, {"id": 1, "x": "x" * 17_000_000})
    client.publish(family.name, {"id": 2})
    client.flush()
    assert sum(len(records) for records in published(family).values()) == 1


def test_publishing_to_a_conflated_topic_or_a_view_is_rejected():
    """Topics that a worker computes reject every command without asking Kafka, and name the topic to publish to."""
    config = Config.model_validate(
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "topics": {"orders": {}},
            "conflated": {"slow": {"underlying": "orders"}, "slower": {"underlying": "slow"}},
            "views": {
                "by_who": {"underlying": "slow", "group_by": ["/who"], "fields": {"/n": "COUNT(*)"}},
                "all": {"underlying": "by_who", "group_by": [], "fields": {"/n": "SUM(/n)"}},
            },
        }
    )
    with Client("test", config) as client:
        for name in ("slow", "slower", "by_who", "all"):
            commands = (
                lambda name=name: client.publish(name, {"id": 1}),
                lambda name=name: client.delta_publish(name, {"id": 1}, ack="persisted"),
                lambda name=name: client.sow_delete(name, "1"),
            )
            for command in commands:
                with pytest.raises(ConfigurationError, match=f"a worker makes '{name}' of .*; publish to 'orders'"):
                    command()


def test_flush_raises_without_kafka():
    """Without an answer from the broker, `flush` raises within its timeout."""
    publisher = Publisher({"bootstrap.servers": "127.0.0.1:1"})
    publisher.send("orders.publish", b"k", b"{}")
    # librdkafka's number may have an event of its own besides.
    with pytest.raises(BrokerUnavailable, match=r"[12] records within 0\.3 s"):
        publisher.flush(0.3)


def test_a_failed_delivery_is_raised_once():
    """A record that timed out is raised by one `flush`; the next flush succeeds."""
    publisher = Publisher({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "200"})
    for _ in range(3):
        publisher.send("orders.publish", b"k", b"{}")
    with pytest.raises(Stop, match="3 records were not delivered"):
        publisher.flush()
    publisher.flush()


def commands(selection: Selection, **settings: object) -> list[DeleteRecord]:
    """The records sent for a selection, on a topic of three partitions."""
    topic = TopicConfig.model_validate(settings)
    outbox = Outbox("orders", topic, load_codec("json"))
    return deletes(selection, outbox, lambda: 3, PublishOptions({"trace": "t"}, correlation_id="abc", command_id="c"))


HEADERS = [("trace", b"t"), ("correlation_id", b"abc"), ("command_id", b"c")]


def test_a_key_is_one_tombstone():
    """A delete by key is one tombstone, which needs no command header."""
    assert commands(Selection(key="7")) == [DeleteRecord((b"7", None, HEADERS))]


def test_keys_are_a_tombstone_each():
    """A delete of several keys is one tombstone for each key, in order, without repetitions."""
    assert [command.record[0] for command in commands(Selection(keys=["b", "a", "b"]))] == [b"b", b"a"]
    assert commands(Selection(keys=[])) == []


def test_a_key_that_may_be_anywhere_is_deleted_in_every_partition():
    """Under `foreign_partition: accept` each partition gets the tombstone, as any of them may have the record."""
    outbox = Outbox("orders", TopicConfig(foreign_partition="accept"), load_codec("json"))
    sent = deletes(Selection(keys=["7", "8"]), outbox, lambda: 2, PublishOptions(), is_anywhere=True)
    assert [(command.record[0], command.partition) for command in sent] == [(b"7", 0), (b"7", 1), (b"8", 0), (b"8", 1)]


def test_the_key_is_computed_from_data():
    """The key is computed from the key fields as workers do; all other fields are ignored."""
    assert commands(Selection(data={"id": 7, "n": 1})) == [DeleteRecord((b"7", None, HEADERS))]
    (command,) = commands(Selection(data=b'{"b":{"c":2},"a":1}'), key=["/a", "/b/c"])
    assert command.record[0] == b'["1","2"]'
    with pytest.raises(RecordRejected, match="the message lacks a key field"):
        commands(Selection(data={"n": 1}))


def test_a_filter_goes_to_every_partition():
    """A delete by filter has no key or value; command and filter are headers."""
    headers = [*HEADERS, ("command", b"sow_delete"), ("filter", "/état = 'né'".encode())]
    assert commands(Selection(filter="/état = 'né'")) == [
        DeleteRecord((None, None, headers), number) for number in range(3)
    ]


@pytest.mark.parametrize("selection", [Selection(), Selection("1", ["1"]), Selection(data={}, filter="/a = 1")])
def test_exactly_one_argument_selects_records(selection):
    """No selection, or two of them, is rejected before anything is sent."""
    with pytest.raises(ConfigurationError, match="exactly one of key, keys, data and filter; this call has"):
        check(selection, has_sequence=False)


def answered(*outcomes: int | Exception | None) -> Future[Ack]:
    """The future of commands with these counts or failures; None: an ack without a count."""
    gathered = CombinedAcks("orders", "stats", "c")
    futures: list[Future[Ack]] = [Future() for _ in outcomes]
    for future in futures:
        gathered.add(future)
    done = gathered.sent()
    for number, (future, outcome) in enumerate(zip(futures, outcomes, strict=True)):
        assert not done.done()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(Ack("success", None, "stats", "orders", "k", "desk", number, "c", outcome))
    return done


def test_the_answer_has_the_sum_and_comes_with_the_last_command():
    """The combined ack has neither key nor sequence."""
    assert answered(2, 0, 5).result(0) == Ack("success", None, "stats", "orders", None, "desk", None, "c", 7)
    assert answered(2, None, 5).result(0).records_deleted is None


def test_a_delete_of_no_keys_is_done_at_once():
    """A delete of no keys sends nothing and deletes nothing."""
    assert answered().result(0).records_deleted == 0


def test_a_delete_fails_with_its_first_error_when_all_have_finished():
    """Deletes of other commands remain, so the future fails only after all have finished."""
    first, second = PublishRejected("bad_header", "first"), PublishRejected("bad_header", "second")
    assert answered(1, first, 2, second).exception(0) is first
