import pytest

from processor.client.feeds.continuity import RereadRecords
from processor.client.feeds.delta_feed import DeltaFeed, DeltaMessages
from processor.client.feeds.snapshot_boundary import FetchedBatches
from processor.codec.json import JsonCodec
from processor.errors import Stop
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Options, Topic
from tests.client.message_types import Framed, Whole


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
