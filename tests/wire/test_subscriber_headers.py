"""The headers of records on the SOW topic, and those that a subscriber sends on."""

from __future__ import annotations

import copy
import json
import pickle
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import RecordRejected
from processor.merge import add_touched, conflated_delta, touch
from processor.record import Record
from processor.runtime.recovery.log_replay import EncodedHeads
from processor.store.layout import decode_record, encode_record
from processor.wire import subscriber_headers
from processor.wire.headers import OUR_HEADERS, Name
from processor.wire.record_headers import stored_from, version_of
from processor.wire.subscriber_headers import touched_header, touched_paths
from tests.merge.test_law import RECORDS, written
from tests.subscriptions.desk import Desk

ALL = {
    "client": b"desk",
    "sequence": b"7",
    "no_conflate": b"true",
    "traceparent": b"00-4bf9",
    "odd": b"\xff",
    "conflated": b"3",
    "first_timestamp": b"1700000000123",
    "expires_at": b"4102444800000",
    "correlation_id": b"c1",
    "source": b"orders/0/7",
}


@pytest.fixture
def desk():
    """A topic without records."""
    return Desk()


def message_of(desk):
    """The only message that waits."""
    [message] = desk.subscriber.take(9)
    return message


@pytest.mark.parametrize("call", ["subscribe", "delta_subscribe", "sow_and_delta_subscribe"])
@pytest.mark.parametrize("options", ["", "conflation=100ms", "select=[-/,+/qty]", "top_n=1"])
def test_an_update_has_all_that_its_record_says(desk, call, options):
    """The publisher's headers, folded updates, base and end are those of the record, in every kind of message."""
    desk.put(1, qty=1)
    desk.subscribe(call, None, options)
    desk.subscriber.take(9)
    desk.take(desk.record(1, b'{"id":1,"qty":2}', **ALL))
    desk.pass_ms(100)
    message = message_of(desk)
    assert message.headers == {
        "client": "desk",
        "sequence": "7",
        "no_conflate": "true",
        "traceparent": "00-4bf9",
        "odd": "\\xff",
    }
    assert (message.version, message.conflated, message.correlation_id) == (2, 3, "c1")
    assert message.first_timestamp == "2023-11-14T22:13:20.123Z"
    assert message.expires_at == "2100-01-01T00:00:00.000Z"
    assert message.delta_base == (1 if message.delta else None)


@pytest.mark.parametrize("call", ["sow", "sow_and_delta_subscribe"])
def test_a_snapshot_has_them_too(desk, call):
    """A record of a snapshot has the headers of its last update."""
    desk.take(desk.record(1, b'{"id":1}', **ALL))
    desk.subscribe(call)
    message = desk.subscriber.take(9)[1]
    assert (message.headers["traceparent"], message.conflated) == ("00-4bf9", 3)
    assert (message.expires_at, message.delta_base) == ("2100-01-01T00:00:00.000Z", None)


def test_an_oof_has_those_of_the_update_that_was_its_cause(desk):
    """An `oof` has the headers of the update that caused it: subscribers want to know who deleted a record."""
    desk.put(1)
    desk.subscribe("sow_and_subscribe", None, "oof")
    desk.subscriber.take(9)
    desk.take(desk.record(1, None, kind=b"delete", client=b"cleaner"))
    assert message_of(desk).headers == {"client": "cleaner"}


def test_a_record_with_its_version_alone_has_nothing_else(desk):
    """The usual record leaves all of these fields empty."""
    desk.subscribe("subscribe")
    desk.put(1)
    message = message_of(desk)
    assert (message.headers, message.conflated, message.first_timestamp) == ({}, None, None)
    assert (message.delta_base, message.expires_at) == (None, None)
    assert json.loads(message.to_json()).keys() == {"command", "topic", "sow_key", "data", "version"}


def test_only_what_is_there_is_printed(desk):
    """One line of JSON has the fields under their names, and the headers as an object."""
    desk.put(1, qty=1)
    desk.subscribe("delta_subscribe")
    desk.take(desk.record(1, b'{"id":1,"qty":2}', traceparent=b"00-4bf9", expires_at=b"4102444800000"))
    line = json.loads(message_of(desk).to_json())
    assert line == {
        "command": "publish",
        "topic": "orders",
        "sow_key": "1",
        "data": {"id": 1, "qty": 2},
        "delta": True,
        "version": 2,
        "headers": {"traceparent": "00-4bf9"},
        "delta_base": 1,
        "expires_at": "2100-01-01T00:00:00.000Z",
    }


def test_the_headers_of_a_message_cannot_be_changed(desk):
    """Messages share their headers, so they are read-only; copies and pickled messages have equal ones."""
    desk.subscribe("subscribe")
    desk.take(desk.record(1, b"{}", client=b"desk"))
    message = message_of(desk)
    with pytest.raises(TypeError):
        message.headers["client"] = "x"
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message


@pytest.mark.parametrize(
    ("headers", "theirs"),
    [
        ([("version", b"1"), ("a", b"1"), ("b", b"2"), ("a", b"3")], {"a": "3", "b": "2"}),
        ([("version", b"1"), ("a", None)], {"a": ""}),
        ([("version", b"1"), ("a", b"")], {"a": ""}),
        ([("version", b"1"), ("", b"x")], {"": "x"}),
        ([("version", b"1"), ("source", b"t/0/1"), ("sow_key", b"k"), ("command", b"publish")], {}),
        ([], {}),
        (None, {}),
    ],
)
def test_the_last_of_several_headers_of_one_name_counts(headers, theirs):
    """A header without a value is an empty text, and Sowstream's own are left out."""
    assert subscriber_headers.metadata(headers).headers == theirs


def test_none_of_our_headers_is_taken_for_the_publishers():
    """Every header of Sowstream's own is left out of `headers`, those that travel are in it."""
    names = {value for name, value in vars(Name).items() if not name.startswith("_")}
    headers = subscriber_headers.metadata([(name, b"1") for name in sorted(names)]).headers
    assert set(headers) == names - OUR_HEADERS == {"client", "sequence", "no_conflate", "filter"}


@pytest.mark.parametrize("text", [b"", b"x", b"-1", b"9" * 19, "\u0663".encode(), None])
def test_a_number_that_no_worker_wrote_is_none(text):
    """Numbers and times in headers of ours are digits; every other value is none."""
    names = ("version", "conflated", "delta_base", "first_timestamp", "expires_at")
    said = subscriber_headers.metadata([(name, text) for name in names])
    assert [getattr(said, name) for name in names] == [None] * 5
    assert version_of([("version", text)]) is None


def test_a_time_beyond_the_calendar_is_none():
    """An expiry after the year 9999 has no ISO 8601 text, and 0 is never."""
    for text in (b"253402300800000", b"9" * 18, b"0"):
        assert subscriber_headers.metadata([("version", b"1"), ("expires_at", text)]).expires_at is None
    end = subscriber_headers.metadata([("version", b"1"), ("expires_at", b"253402300799999")]).expires_at
    assert end == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize("time_ms", [0, 1, 999, 1000, 1_700_000_000_001, -1, -1001])
def test_a_time_is_iso_8601_in_utc(time_ms):
    """Milliseconds are always written, before 1970 too."""
    from datetime import UTC, datetime, timedelta

    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    assert (
        subscriber_headers.iso(time_ms)
        == expected.strftime("%Y-%m-%dT%H:%M:%S.") + f"{expected.microsecond // 1000:03}Z"
    )


def test_the_base_of_a_delta_is_the_version_that_the_subscriber_has(desk):
    """The base is right also after folded updates, and after empty ones that were left out."""
    desk.put(1, qty=1, note="x")
    desk.subscribe("sow_and_delta_subscribe", None, "no_empties,select=[-/,+/qty]", sub_id="plain")
    folding = desk.engine.connect()
    desk.subscribe("sow_and_delta_subscribe", None, "no_empties,select=[-/,+/qty],conflation=100ms", connection=folding)
    held = {"plain": 1, "folding": 1}
    desk.subscriber.take(9), folding.take(9)
    for qty, note, passes in [
        (1, "y", 1),
        (1, "z", 0),
        (2, "z", 1),
        (3, "z", 0),
        (4, "z", 1),
        (4, "a", 1),
        (5, "a", 1),
    ]:
        desk.put(1, qty=qty, note=note)
        desk.pass_ms(100 * passes)
        for name, connection in (("plain", desk.subscriber), ("folding", folding)):
            for message in connection.take(9):
                assert message.delta_base == held[name]
                held[name] = message.version
    assert held == {"plain": 8, "folding": 8}


def test_a_record_that_comes_back_is_whole_and_begins_again(desk):
    """A record that comes back is complete, and its next delta is for the version that came back."""
    desk.put(1, qty=1, note="x")
    desk.subscribe("sow_and_delta_subscribe", "/qty > 0", "no_empties,select=[-/,+/qty]")
    desk.subscriber.take(9)
    desk.put(1, qty=1, note="y")
    desk.put(1, qty=0, note="y")
    desk.put(1, qty=2, note="y")
    desk.put(1, qty=3, note="y")
    bases = [(message.delta_base, message.version) for message in desk.subscriber.take(9)]
    assert bases == [(None, 4), (4, 5)]


def test_a_conflated_delta_of_a_record_without_a_version_has_no_base(desk):
    """A record without a version, which no worker wrote, has no version and no base."""
    desk.take(desk.record(1, b'{"id":1,"qty":1}')._replace(headers=None))
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms")
    desk.subscriber.take(9)
    desk.put(1, qty=2)
    desk.pass_ms(100)
    assert message_of(desk).delta_base is None


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (-1, "1969-12-31T23:59:59.999Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-(2**63), "0001-01-01T00:00:00.000Z"),
        (2**63 - 1, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_any_timestamp_of_kafka_has_a_text(timestamp_ms, text):
    """A publisher may give a record any time; one that ISO 8601 has no four digits for is the nearest that it has."""
    assert subscriber_headers.iso(timestamp_ms) == text


PROVED = settings(max_examples=150, deadline=None, print_blob=True)


def fold(delivered, updates):
    """The touched tree of one interval."""
    tree = {}
    for update in updates:
        touch(tree, delivered, [update])
    return tree


def read_back(delivered, final, tree):
    """The tree that a reader of the SOW topic gets."""
    header = touched_header(delivered, final, tree)
    return touched_paths([("version", b"2"), *([] if header is None else [header])], final)


@PROVED
@given(RECORDS, st.lists(st.none() | RECORDS, max_size=4), st.booleans(), RECORDS)
def test_two_sow_records_and_the_header_make_the_delta_of_the_delta_topic(delivered, between, comes_back, other):
    """The delta computed from the header equals the one computed from the interval, for any updates in it."""
    final = deepcopy(delivered) if comes_back else other
    tree = fold(delivered, [*between, final])
    by_header = conflated_delta(delivered, final, read_back(delivered, final, tree) or {})
    assert written(by_header) == written(conflated_delta(delivered, final, tree))


@PROVED
@given(RECORDS, st.lists(RECORDS, max_size=3), st.lists(RECORDS, max_size=3))
def test_trees_of_two_intervals_add_up(delivered, first, second):
    """Two trees joined mark the same paths as one tree of all updates, and the joined one stays as it was."""
    joined, other = fold(delivered, first), fold(delivered, second)
    before = deepcopy(other)
    add_touched(joined, other)
    assert other == before
    assert conflated_delta(delivered, delivered, joined) == conflated_delta(
        delivered, delivered, fold(delivered, [*first, *second])
    )


def test_the_header_names_what_came_back_and_nothing_else():
    """A path that differs at the end is left out, as two SOW records show it; without a returned value no header."""
    delivered = {"id": 7, "state": "open", "note": "-", "ref": 1, "o": {"x/y": 1, "z": 2}}
    held = {"id": 7, "state": "held", "note": "x", "ref": 1, "o": {"x/y": 3, "z": 2}}
    name, text = touched_header(delivered, delivered | {"note": "y"}, fold(delivered, [held]))
    assert (name, json.loads(text)) == ("touched", ["/state", "/o/x~1y"])
    assert touched_header(delivered, held, fold(delivered, [held])) is None


def test_a_list_that_is_too_long_names_the_whole_record(monkeypatch):
    """Beyond the limit the header is the pointer of the record itself, and the delta carries every member."""
    monkeypatch.setattr(subscriber_headers, "TOUCHED_BYTES_MAX", 20)
    delivered = {"id": 7, "first": 1, "second": 2, "third": 3}
    tree = fold(delivered, [{"id": 7, "first": 0, "second": 0}])
    assert touched_header(delivered, delivered, tree) == ("touched", b'[""]')
    assert conflated_delta(delivered, delivered, read_back(delivered, delivered, tree)) == (delivered, [])


@pytest.mark.parametrize("text", [b"{}", b'"/a"', b"[1]", b'["a"]', b'["/~"]', b"[", b"\xff", b"[" * 100_000, b"[[]]"])
def test_a_header_that_no_worker_writes_is_refused(text):
    """Anything but a JSON array of JSON Pointers is `bad_header`."""
    with pytest.raises(RecordRejected, match="bad_header: touched is"):
        touched_paths([("touched", text)], {})


def test_an_object_that_was_a_scalar_in_between_is_named_whole():
    """Its pointer is in the header though a member of it changed: the delta of the delta topic has all its members."""
    delivered, final = {"o": {"x": 1, "y": 2}}, {"o": {"x": 3, "y": 2}}
    tree = fold(delivered, [{"o": 5}, final])
    assert touched_header(delivered, final, tree) == ("touched", b'["/o"]')
    assert conflated_delta(delivered, final, read_back(delivered, final, tree)) == (final, [])


LARGEST = [
    ("version", b"9223372036854775807"),
    ("expires_at", b"9223372036854775807"),
    ("source", b"orders.publish/0/9223372036854775807"),
    ("expiration", b"x" * 65_535),
]


def test_the_largest_headers_come_back_from_a_store():
    """The largest headers that a restore takes over can be written to a store and read back."""
    stored = stored_from(Record(b"7", b"{}", LARGEST, 0, 0))
    assert decode_record(encode_record(stored)) == stored


@pytest.mark.parametrize(
    "header",
    [
        ("version", b"9223372036854775808"),
        ("version", b"9" * 5000),
        ("version", b"-9223372036854775809"),
        ("version", b"one"),
        ("expires_at", b"9223372036854775808"),
        ("source", b"orders.publish/0/9223372036854775808"),
        ("expiration", b"x" * 65_536),
        ("expiration", b"1\x000"),
        ("group_stamps", b"x"),
    ],
    ids=lambda header: f"{header[0]}, {len(header[1])} bytes",
)
def test_headers_that_no_worker_wrote_are_refused(header):
    """They are refused with the record's headers in the error, before a store fails to pack them."""
    with pytest.raises(ValueError, match=r"none that a worker writes: .*version"):
        stored_from(Record(b"7", b"{}", [*LARGEST, header], 0, 0))


NAMES = st.sampled_from(["version", "expires_at", "source", "expiration", "group_stamps", "kind", "anything"])
TEXTS = st.one_of(st.none(), st.integers(0, 2**64).map(b"%d".__mod__), st.binary(max_size=4), st.just(b"t/0/7"))


@given(st.lists(st.lists(st.tuples(NAMES, TEXTS), max_size=4), max_size=6), st.binary(max_size=20))
def test_heads_are_what_encoding_puts_before_a_value(all_headers, value):
    """Encoded heads equal the encoding of records for any headers, also the second time, and notice every expiry."""
    heads = EncodedHeads()
    expires = False
    for headers in all_headers * 2:
        try:
            stored = stored_from(Record(b"7", value, headers, 0, 0))
        except ValueError:
            with pytest.raises(ValueError, match="none that a worker writes"):
                heads[tuple(headers)]
            continue
        expires = expires or stored.expires_at_ms > 0
        assert heads[tuple(headers)] + value == encode_record(stored)
    assert heads.expires is expires
