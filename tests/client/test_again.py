import threading
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from processor.client import Client, Subscription
from processor.errors import ConfigurationError, PositionLost
from processor.topics.family import family_specs
from processor.trial.broker import EmbeddedBroker
from tests.client.family import PARTITIONS, Family
from tests.waiting import PATIENCE_S, until

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
