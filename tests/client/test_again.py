"""Topics that are created again, lose records or move, and brokers that restart, under running subscriptions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from processor.client import Client, Subscription
from processor.errors import ConfigurationError, PositionLost, TopicMoved
from processor.kafka.admin.topic_changes import TopicChanges
from processor.topics.family import family_specs
from processor.trial.broker import EmbeddedBroker
from processor.wire.forwarding import MOVED_RETENTION_MS, moved_record
from tests.client.family import PARTITIONS, Family
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.record import Headers


pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check topics every half second, so that tests need not wait."""
    monkeypatch.setattr("processor.client.feeds.snapshot_boundary.INTERVAL_S", 0.5)


def recreate(family: Family) -> None:
    """Delete the SOW topic, and create an empty one of the same name."""
    family.admin.delete([f"{family.name}.sow"])
    specs = family_specs(family.name, ("sow",), partitions=PARTITIONS)
    until(lambda: family.admin.create(specs), "a new topic", pause_s=0.05)


def drop_records(family: Family) -> None:
    """Delete all records of the SOW topic, as an operator may; their offsets are gone."""
    client = AdminClient(dict(family.config.kafka))
    topic = f"{family.name}.sow"
    # Records of a topic that is only compacted cannot be deleted.
    entry = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in client.incremental_alter_configs([changed]).values():
        future.result(PATIENCE_S)
    wanted = [TopicPartition(topic, partition, -1) for partition in range(PARTITIONS)]
    until(
        lambda: not any(each.exception(PATIENCE_S) for each in client.delete_records(wanted).values()),
        "the broker takes the new cleanup.policy", pause_s=0.05,
    )  # fmt: skip


def group(subscription: Subscription) -> dict[str, object]:
    """The next snapshot, after skipping earlier messages."""
    for message in subscription:
        if message.command == "group_begin":
            break
    records: dict[str, object] = {}
    for message in subscription:
        if message.command == "group_end":
            return records
        records[message.sow_key or ""] = message.data
    raise AssertionError("it ended")


@pytest.mark.parametrize("form", ["sow_and_subscribe", "sow_and_delta_subscribe"])
@pytest.mark.parametrize("records_before", [1, 9])
def test_a_recreated_topic_causes_a_new_snapshot(client: Client, family: Family, form: str, records_before: int):
    """A subscription to a recreated topic of any size gets the full new state, and then the updates."""
    for number in range(records_before):
        family.sow(f"old{number}", {"id": "old"})
    subscription = getattr(client, form)(family.name, timeout_s=PATIENCE_S)
    assert len(group(subscription)) == records_before
    recreate(family)
    for number in range(4):
        family.sow(f"new{number}", {"id": "new", "n": 1})
    delivered = group(subscription)
    for _ in range(4 - len(delivered)):
        message = next(subscription)
        delivered[message.sow_key or ""] = message.data
    assert delivered == {f"new{number}": {"id": "new", "n": 1} for number in range(4)}
    family.sow("new0", {"id": "new", "n": 2}, 2)
    assert next(subscription).data == {"id": "new", "n": 2}


def test_a_view_reports_the_changes_of_a_recreated_topic(client: Client, family: Family):
    """A view of a recreated topic reports each record that is gone, new or changed."""
    for key in "ab":
        family.sow(key, {"id": key, "n": 1})
    with client.view(family.name) as view:
        recreate(family)
        with family.transaction():
            for key in "bc":
                family.write(f"{family.name}.sow", key, {"id": key, "n": 2}, version="1")
        last = {}
        for change in view.changes(PATIENCE_S):
            last[change.key] = change.record
            if len(last) == 3 and dict(view) == {"b": {"id": "b", "n": 2}, "c": {"id": "c", "n": 2}}:
                break
    assert last["a"] is None


@pytest.mark.parametrize("form", ["subscribe", "delta_subscribe"])
def test_without_a_snapshot_a_recreated_topic_is_an_error(client: Client, family: Family, form: str):
    """A subscription without a snapshot cannot recover missed updates: it ends with the reason."""
    subscription = getattr(client, form)(family.name, "/n > 0", timeout_s=PATIENCE_S)
    family.sow("a", {"id": "a", "n": 1})
    assert next(subscription).data == {"id": "a", "n": 1}
    recreate(family)
    for number in range(9):
        family.sow(f"new{number}", {"id": "new", "n": 1})
    with pytest.raises((PositionLost, ConfigurationError), match=r"recreated|made anew|does not exist"):
        list(subscription)
    assert list(subscription) == []


def test_records_that_were_deleted_unread(client: Client, family: Family):
    """Records deleted before a slow reader got them cause a new snapshot, or an error without one."""
    with_snapshot = client.sow_and_subscribe(family.name, timeout_s=PATIENCE_S)
    without = client.delta_subscribe(family.name, options="oof", timeout_s=PATIENCE_S)
    for number in range(6):
        family.sow(f"k{number}", {"id": "k"})
    drop_records(family)
    family.sow("after", {"id": "after"})
    with pytest.raises(PositionLost, match="deleted before they were read"):
        list(without)
    delivered = group(with_snapshot) or group(with_snapshot)
    assert delivered == {"after": {"id": "after"}}


@pytest.mark.long
def test_a_broker_that_restarts_costs_nothing(tmp_path: Path):
    """Over two broker restarts during a subscription, every update is delivered once, also written deltas."""
    broker = EmbeddedBroker(tmp_path / "kafka")
    broker.start()
    port = int(broker.bootstrap.rpartition(":")[2])
    updates = 600
    try:
        family = Family(broker.bootstrap, "restarts")
        with Client("test", family.config) as client:
            view = client.sow_and_delta_subscribe("restarts", options="oof", timeout_s=PATIENCE_S)
            plain = client.delta_subscribe("restarts", timeout_s=PATIENCE_S)
            assert group(view) == {}
            delivered: dict[str, list[int]] = {"view": [], "plain": []}

            def read(name: str, subscription: Subscription) -> None:
                for message in subscription:
                    delivered[name].append(message.data["n"])
                    if len(delivered[name]) == updates:
                        return

            readers = [threading.Thread(target=read, args=each) for each in (("view", view), ("plain", plain))]
            for reader in readers:
                reader.start()
            for number in range(updates):
                if number in (200, 400):
                    broker.stop()
                    broker = EmbeddedBroker(tmp_path / "kafka", port)
                    broker.start()
                with family.transaction():
                    for role in ("sow", "delta"):
                        family.write(f"restarts.{role}", "a", {"id": "a", "n": number}, version=str(number + 1))
            for reader in readers:
                reader.join(PATIENCE_S)
            assert delivered == {"view": list(range(updates)), "plain": list(range(updates))}
    finally:
        broker.stop()


READERS: dict[str, Callable[[Client, str], Any]] = {
    "sow": lambda client, topic: list(client.sow(topic)),
    "sow with a filter": lambda client, topic: list(client.sow(topic, "/id = 'a'", order_by="/id")),
    "get": lambda client, topic: client.get(topic, "a"),
    "subscribe": lambda client, topic: list(client.subscribe(topic, timeout_s=PATIENCE_S)),
    "a replay": lambda client, topic: list(client.subscribe(topic, bookmark="now", timeout_s=PATIENCE_S)),
    "delta_subscribe": lambda client, topic: list(client.delta_subscribe(topic, timeout_s=PATIENCE_S)),
    "delta_subscribe with a filter": lambda client, topic: list(
        client.delta_subscribe(topic, "/n > 0", timeout_s=PATIENCE_S)
    ),
    "sow_and_subscribe": lambda client, topic: list(client.sow_and_subscribe(topic, timeout_s=PATIENCE_S)),
    "sow_and_delta_subscribe": lambda client, topic: list(client.sow_and_delta_subscribe(topic, timeout_s=PATIENCE_S)),
}


def mark(family: Family, headers: Headers | None = None, *, roles: tuple[str, ...] = ("sow", "delta")) -> None:
    """Write the mark into every partition, with these headers or its own."""
    key, value, own = moved_record("orders_12")
    with family.transaction():
        for role in roles:
            for partition in range(PARTITIONS):
                written = own if headers is None else headers
                family._producer.produce(f"{family.name}.{role}", value, key, partition, headers=written)


@pytest.fixture(params=["of this version", "of an earlier version"])
def moved(request: pytest.FixtureRequest, family: Family) -> Family:
    """A topic that has moved, and that a worker which did not know of it has written to since."""
    is_old = request.param == "of an earlier version"
    family.sow("a", {"id": "a", "n": 1})
    mark(family, [("version", b"1")] if is_old else None)
    # Earlier versions set a time that Kafka cannot add to the present one.
    retention_ms = 2**63 - 1 if is_old else MOVED_RETENTION_MS
    TopicChanges(family.config.kafka).set_config(f"{family.name}.sow", {"delete.retention.ms": str(retention_ms)})
    for version in range(2, 40):
        family.sow("a", {"id": "a", "n": version}, version)
        family.delta("a", {"id": "a", "n": version}, version)
    return family


@pytest.mark.parametrize("name", READERS)
def test_every_reader_gets_the_new_name(moved: Family, client: Client, name: str) -> None:
    """A reader that begins at the first record, at the end, or anywhere, gets it although records stand behind."""
    with pytest.raises(TopicMoved) as moving:
        READERS[name](client, moved.name)
    assert moving.value.moved_to == "orders_12"


@pytest.mark.parametrize("is_delta", [False, True])
def test_a_reader_that_runs_gets_all_updates_and_then_the_new_name(
    client: Client, family: Family, is_delta: bool
) -> None:
    """Updates before the marks are delivered, and none behind them."""
    messages = (client.delta_subscribe if is_delta else client.subscribe)(family.name, timeout_s=PATIENCE_S)
    for version in (1, 2):
        family.sow("a", {"id": "a", "n": version}, version)
        family.delta("a", {"id": "a", "n": version}, version)
    mark(family)
    family.sow("a", {"id": "a", "n": 3}, 3)
    family.delta("a", {"id": "a", "n": 3}, 3)
    seen = []

    def read() -> None:
        for message in messages:
            seen.append(message.data["n"])  # noqa: PERF401 - the error ends a list that is being made

    with pytest.raises(TopicMoved):
        read()
    assert seen == [1, 2]


@pytest.mark.parametrize("headers", [[("version", b"1"), ("kind", b"delete")], [("version", b"3")], []])
def test_a_tombstone_of_that_key_alone_ends_no_reader(client: Client, family: Family, headers: Headers) -> None:
    """A record of a reserved key, which an earlier version took, may be deleted without harm to any reader."""
    family.sow("a", {"id": "a", "n": 1})
    mark(family, headers)
    assert [message.data for message in client.sow(family.name) if message.command == "sow"] == [{"id": "a", "n": 1}]
    messages = client.sow_and_subscribe(family.name, timeout_s=PATIENCE_S)
    family.sow("a", {"id": "a", "n": 2}, 2)
    assert {"id": "a", "n": 2} in [message.data for message in family.rest(messages)]
