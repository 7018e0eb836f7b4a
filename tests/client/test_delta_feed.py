"""A feed of written deltas, and a view that finds a gap in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from processor.client import ViewChange
from processor.client.feeds.continuity import RereadRecords
from processor.client.feeds.delta_feed import DeltaFeed, DeltaMessages
from processor.client.feeds.snapshot_boundary import FetchedBatches
from processor.client.subscribe.subscription import Subscription
from processor.client.subscribe.view import View
from processor.codec.json import JsonCodec
from processor.errors import PositionLost, Stop
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Message, Options, Topic
from tests.client.family import Framed, Whole

if TYPE_CHECKING:
    from collections.abc import Sequence


def deltas(codec: JsonCodec, **options: bool) -> DeltaMessages:
    """The messages of a plain delta subscription."""
    return DeltaMessages(Topic("orders", codec, KeyFields(("/id",))), Options(**options))


def record(value: bytes | None, **headers: str) -> Record:
    """A record of key 1 as a worker writes it to the delta topic."""
    return Record(b"1", value, [(name, text.encode()) for name, text in headers.items()], 0, 0)


def test_a_delta_is_read_with_its_headers():
    """If the message type puts part of a delta in headers, as Avro does, the subscriber's codec gets them."""
    message = deltas(Framed()).message(record(b"[1,2]", fields='["id","n"]', version="2"), 0)
    assert message is not None
    assert (message.data, message.delta, message.version) == ({"id": 1, "n": 2}, True, 2)


def test_full_records_are_marked_as_full():
    """A delta subscription to a message type without deltas gets full messages, marked as full."""
    message = deltas(Whole()).message(record(b'{"id":1,"n":2}', version="2"), 0)
    assert message is not None
    assert (message.data, message.delta, message.removed) == ({"id": 1, "n": 2}, False, ())


@pytest.mark.parametrize(
    ("headers", "base"),
    [
        ({"version": "5"}, 4),
        ({"version": "5", "delta_base": "2"}, 2),
        ({"version": "1", "kind": "insert"}, None),
        ({}, None),
    ],
)
def test_a_delta_has_its_base_version(headers: dict[str, str], base: int | None):
    """The base is the worker's, or the previous version; a full record has none."""
    message = deltas(JsonCodec()).message(record(b'{"id":1}', **headers), 0)
    assert message is not None
    assert message.delta_base == base


def test_a_written_delta_has_the_metadata_of_its_record():
    """Publisher headers, conflation and expiry are those of the record on the delta topic."""
    headers = {"version": "9", "conflated": "3", "first_timestamp": "1700000000000", "expires_at": "1700000000001"}
    message = deltas(JsonCodec()).message(record(b'{"id":1}', **headers, traceparent="00-4b", source="t/0/1"), 0)
    assert message is not None
    assert (message.headers, message.conflated) == ({"traceparent": "00-4b"}, 3)
    assert message.first_timestamp == "2023-11-14T22:13:20.000Z"
    assert message.expires_at == "2023-11-14T22:13:20.001Z"


@pytest.mark.parametrize("kind", ["expire", "delete"])
def test_a_deleted_record_makes_no_delta(kind: str):
    """A delete or an expiry makes no message for a plain delta subscription: only `oof` would."""
    assert deltas(JsonCodec()).message(record(b'{"id":1}', kind=kind), 0) is None


def test_an_empty_delta_is_left_out_if_asked():
    """`no_empties` uses the worker's header; without the option the key fields are delivered."""
    empty = record(b'{"id":1}', empty="true", version="3")
    assert deltas(JsonCodec(), no_empties=True).message(empty, 0) is None
    delivered = deltas(JsonCodec(), no_sowkey=True).message(empty, 0)
    assert delivered is not None
    assert (delivered.data, delivered.sow_key, delivered.version) == ({"id": 1}, None, 3)


def unread(*_: object) -> RereadRecords:
    """Reads no record again, as no delta is missing."""
    raise AssertionError("no delta is missing")


class Written:
    """A fake boundary with some later records, in one partition."""

    def __init__(self, *records: Record) -> None:
        self.ends = {2: 0}
        self._arrived = FetchedBatches([(2, list(records))], {})

    def follow(self) -> None:
        """Do nothing: the records are there."""

    def after(self, _wait_s: float) -> FetchedBatches:
        """The records, once."""
        fetched, self._arrived = self._arrived, FetchedBatches([], {})
        return fetched


@pytest.mark.parametrize(
    ("value", "headers", "why"),
    [
        (b"{", {}, "undecodable: not JSON"),
        (b"[1]", {}, "not_an_object: a delta is an object"),
        (b"{}", {"removed": b"{}"}, "bad_header: removed is '{}', not a JSON array of JSON Pointers"),
        (b"{}", {"removed": b"[1]"}, "bad_header: removed"),
        (b"{}", {"removed": b"["}, "bad_header: removed"),
        (b"{}", {"removed": b"[" * 100_000}, "bad_header: removed"),
        (b"{}", {"kind": b"\xff"}, "'utf-8' codec can't decode"),
    ],
)
def test_an_invalid_delta_ends_the_subscription(value: bytes, headers: dict[str, bytes], why: str):
    """An invalid record ends the subscription after earlier messages, with its place; one without a key is ignored."""
    good = Record(b"1", b'{"id":1}', [], 6, 0)
    bad = Record(b"1", value, list(headers.items()), 7, 0)
    topic = Topic("orders", JsonCodec(), KeyFields(("/id",)))
    feed = DeltaFeed(topic, Written(good._replace(key=None), good, bad, good), Options(), unread)  # type: ignore[arg-type]
    assert [message.data for message in feed.fetch(0)] == [{"id": 1}]
    place = "orders: partition 2, offset 7 of its delta topic, key '1', is not what a worker writes: "
    with pytest.raises(Stop, match=place + why):
        feed.fetch(0)


class WrittenTopic:
    """A feed of one topic: a snapshot of its records, then deltas, some of which are withheld."""

    is_live = True
    is_over = False
    healed = 0
    unchecked = 0

    def __init__(self, *deltas: Message | None) -> None:
        self.records = {"1": (1, {"id": 1, "a": 0})}
        self.next = self.snapshot()
        self.deltas = list(deltas)
        self.reasons: list[str] = []

    def snapshot(self) -> list[Message]:
        """A group of all records."""
        sows = [
            Message("sow", "orders", key, dict(record), version=version)
            for key, (version, record) in self.records.items()
        ]
        return [Message("group_begin", "orders"), *sows, Message("group_end", "orders")]

    def fetch(self, wait_s: float) -> list[Message]:
        """The next messages: a snapshot, or all deltas together."""
        if self.next:
            messages, self.next = self.next, []
            return messages
        messages, self.deltas = [delta for delta in self.deltas if delta is not None], []
        return messages

    def begin_again(self, reason: str) -> None:
        """Deliver the current records as a snapshot."""
        self.reasons.append(reason)
        self.next = self.snapshot()

    def add(self, _request: object, _sub_id: str | None) -> str:
        """Fail: it is never called."""
        raise NotImplementedError

    def remove(self, sub_id: str) -> None:
        """Fail: it is never called."""

    def close(self, *, delivered: bool) -> None:
        """Do nothing."""


def view_of(topic: WrittenTopic) -> View:
    """A view of the feed."""
    subscription = Subscription(topic, lambda *_: None, timeout_s=None, on_message=None, on_close=lambda _: None)  # type: ignore[arg-type, return-value]
    return View(subscription)


def gap_delta(version: int, base: int | None, removed: Sequence[str] = (), **fields: object) -> Message:
    """A delta of key 1."""
    return Message(
        "publish",
        "orders",
        "1",
        {"id": 1, **fields},
        delta=True,
        version=version,
        removed=tuple(removed),
        delta_base=base,
    )


def test_a_delta_that_does_not_fit_has_the_topic_read_again():
    """The view stays unchanged until the snapshot is complete; then it reports the changes and applies deltas."""
    topic = WrittenTopic(gap_delta(2, 1, a=1), gap_delta(4, 3, c=3), gap_delta(5, 4, a=5))
    view = view_of(topic)
    topic.records["1"] = (5, {"id": 1, "a": 5, "b": 2, "c": 3})
    changes = view.refresh()
    assert [change.changed for change in changes] == [("/a",), ("/a", "/b", "/c")]
    assert dict(view) == {"1": {"id": 1, "a": 5, "b": 2, "c": 3}}
    assert view.healed == 1
    assert topic.reasons == ["a delta of key '1' applies to version 3, the view has version 2"]
    topic.deltas = [gap_delta(6, 5, removed=["/b"])]
    assert [change.removed for change in view.refresh()] == [("/b",)]
    assert view.healed == 1


def test_deltas_that_fit_are_applied_also_where_versions_jump():
    """A delta over several versions has a base, one of a topic without versions has none: both are applied."""
    topic = WrittenTopic(gap_delta(7, 1, a=1), gap_delta(8, 7, a=2), gap_delta(9, None, a=3))
    view = view_of(topic)
    view.refresh()
    assert dict(view) == {"1": {"id": 1, "a": 3}}
    assert view.healed == 0


def test_a_record_that_left_and_came_back_begins_with_its_own_version():
    """An `oof` forgets the version; a full record sets it."""
    gone = Message("oof", "orders", "1", {"id": 1}, reason="deleted", version=2)
    back = Message("publish", "orders", "1", {"id": 1, "a": 9}, version=1)
    view = view_of(WrittenTopic(gone, back, gap_delta(2, 1, b=1)))
    view.refresh()
    assert dict(view) == {"1": {"id": 1, "a": 9, "b": 1}}
    assert view.healed == 0


def test_the_changes_of_a_snapshot_that_broke_off_and_began_again_are_those_since_the_last_state():
    """A snapshot that breaks off changes no state; the next one reports all changes since the last state."""
    topic = WrittenTopic()
    topic.records |= {"1": (1, {"id": 1}), "2": (1, {"id": 2})}
    topic.next = topic.snapshot()
    view = view_of(topic)
    topic.records = {"1": (2, {"id": 1, "a": 1})}
    begin, record, end = topic.snapshot()
    topic.next = [begin, record, begin, record, end]
    assert sorted(view.refresh()) == [ViewChange("1", {"id": 1, "a": 1}, ("/a",)), ViewChange("2", None)]
    assert dict(view) == {"1": {"id": 1, "a": 1}}


def test_a_feed_without_a_snapshot_is_an_error():
    """A feed without a snapshot raises, and the error reaches the reader of the view."""

    class Plain(WrittenTopic):
        """A feed without a snapshot."""

        def begin_again(self, reason: str) -> None:
            raise PositionLost(reason)

    view = view_of(Plain(gap_delta(4, 3, c=3)))
    with pytest.raises(PositionLost, match="applies to version 3"):
        view.refresh()
