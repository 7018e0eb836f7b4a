"""Every form of subscription with message types that carry full records only."""

from typing import Any

import pytest

from processor.client import Client, Message, Subscription
from processor.codec import codec_of
from processor.config import Config
from processor.kafka.partitioner import partition_for
from tests.client.family import PARTITIONS, Family
from tests.codec.specimens import PROTO_FILE
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.broker

TYPES: dict[str, dict[str, Any]] = {
    "binary": {"message_type": "binary", "key": "explicit"},
    "protobuf": {"message_type": "protobuf", "schema": {"file": str(PROTO_FILE), "message": "test.Order"}},
    "composite-global": {"message_type": "composite-global", "parts": ["json", "binary"], "key": ["/0/id"]},
}
RECORDS: dict[str, list[Any]] = {
    "binary": [b"\x00\xff", b"{", b""],
    "protobuf": [{"id": 7, "big": 1}, {"id": 7, "big": 2}, {"id": 7, "big": 3}],
    "composite-global": [{"0": {"id": "7"}, "1": b"a"}, {"0": {"id": "7", "n": 2}, "1": b"a"}, {"0": {"id": "7"}}],
}
"""One key's successive records, parsed."""

CHANGED = {"binary": ("",), "protobuf": ("/big",), "composite-global": ("/0/n",)}
"""The pointers of the differences in the second record."""


class Typed(Family):
    """A topic family of another message type."""

    def __init__(self, bootstrap: str, name: str, message_type: str) -> None:
        super().__init__(bootstrap, name)
        topic = {"key": ["/id"], "partitions": PARTITIONS, **TYPES[message_type]}
        self.config = Config.model_validate({"kafka": {"bootstrap.servers": bootstrap}, "topics": {name: topic}})
        self._codec = codec_of(self.config, name)
        self.version = 0

    def put(self, value: Any) -> None:
        """Write a record to both topics as a worker does; None deletes."""
        self.version += 1
        data = None if value is None else self._codec.encode(value)
        kind = "delete" if value is None else "update"
        headers = [("version", str(self.version)), ("kind", kind)]
        with self.transaction():
            for role in ("sow", "delta"):
                sent = b"" if data is None and role == "delta" else data
                self._producer.produce(
                    f"{self.name}.{role}", sent, b"7", partition_for(b"7", PARTITIONS), headers=headers
                )


@pytest.fixture(params=TYPES)
def typed(request: pytest.FixtureRequest, bootstrap: str, unique: str) -> Typed:
    """Topics of each of these types."""
    return Typed(bootstrap, unique, request.param)


def delivered(subscription: Subscription, count: int) -> list[tuple[str, Any, bool]]:
    """The next messages."""
    subscription.timeout_s = PATIENCE_S
    messages: list[Message] = [next(subscription) for _ in range(count)]
    subscription.close()
    return [(message.command, message.data, message.delta) for message in messages]


def records(typed: Typed, client: Client) -> list[Any]:
    """The records as they are decoded, with additions of their type."""
    codec = codec_of(client.config, typed.name)
    return [codec.decode_own(codec.encode(value)) for value in RECORDS[client.config.topics[typed.name].message_type]]


def test_delta_subscriptions_give_full_messages(typed: Typed):
    """Each delta form delivers full records, marked as full, without an error; `oof` has the last record."""
    with Client("test", typed.config) as client:
        first, second, third = records(typed, client)
        typed.put(first)
        written = client.delta_subscribe(typed.name)
        computed = client.delta_subscribe(typed.name, options="oof,no_empties")
        both = client.sow_and_delta_subscribe(typed.name, options="oof,send_keys")
        conflated = client.sow_and_delta_subscribe(typed.name, conflation="200ms")
        for value in (second, third, None):
            typed.put(value)
        updates = [("publish", second, False), ("publish", third, False)]
        snapshot = [("group_begin", None, False), ("sow", first, False), ("group_end", None, False)]
        assert delivered(written, 2) == updates
        assert delivered(computed, 3) == [*updates, ("oof", third, False)]
        assert delivered(both, 6) == [*snapshot, *updates, ("oof", third, False)]
        assert delivered(conflated, 3) == snapshot


def test_a_view_replaces_what_it_has(typed: Typed):
    """A view of such a topic has the last full record, and reports differences if the records are objects."""
    with Client("test", typed.config) as client:
        first, second, _ = records(typed, client)
        typed.put(first)
        with client.view(typed.name) as view:
            assert dict(view) == {"7": first}
            typed.put(second)
            (change,) = view.refresh(PATIENCE_S)
            assert (change.key, change.record, change.removed) == ("7", second, ())
            assert change.changed == CHANGED[typed.config.topics[typed.name].message_type]
            assert dict(view) == {"7": second}
            typed.put(None)
            assert [(each.key, each.record) for each in view.refresh(PATIENCE_S)] == [("7", None)]
