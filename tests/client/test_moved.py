"""Readers of a topic that has moved get an error that names the new one, and no publisher can forge that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from processor.errors import TopicMoved
from processor.kafka.admin.topic_changes import TopicChanges
from processor.wire.forwarding import MOVED_RETENTION_MS, moved_record
from tests.client.family import PARTITIONS, Family
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.record import Headers

pytestmark = pytest.mark.broker

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
