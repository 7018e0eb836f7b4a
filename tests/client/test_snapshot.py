"""A snapshot and what follows it: one cut, without a gap and without an overlap."""

import itertools
import threading
import time

import pytest

from processor.client import Client, Message
from processor.errors import ConfigurationError, FilterError, Stop
from processor.wire.subscriber_headers import iso
from tests.client.family import PARTITIONS, Family
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.broker


def records(messages: list[Message]) -> dict[str, object]:
    """The records of a snapshot, by key."""
    return {message.sow_key or "": message.data for message in messages if message.command == "sow"}


def test_an_empty_topic_is_an_empty_group(client: Client, family: Family):
    """Partitions without records do not delay the snapshot."""
    assert [message.command for message in client.sow(family.name)] == ["group_begin", "group_end"]


def test_the_last_value_of_each_key_counts(client: Client, family: Family):
    """Every key occurs once, with its newest record and version."""
    for version in (1, 2, 3):
        for key in ("a", "b", "c", "d"):
            family.sow(key, {"id": key, "n": version}, version)
    messages = list(client.sow(family.name))
    assert [messages[0].command, messages[-1].command] == ["group_begin", "group_end"]
    assert records(messages) == {key: {"id": key, "n": 3} for key in "abcd"}
    assert {message.version for message in messages[1:-1]} == {3}


def test_a_deleted_record_is_not_in_it(client: Client, family: Family):
    """A tombstone removes the record from the snapshot; a later record restores it."""
    for key in ("a", "b"):
        family.sow(key, {"id": key})
        family.sow(key, None, 2, kind="delete")
    family.sow("b", {"id": "b", "again": True}, 1, kind="insert")
    assert records(list(client.sow(family.name))) == {"b": {"id": "b", "again": True}}


def test_aborted_records_are_not_in_a_snapshot(client: Client, family: Family):
    """Records of aborted transactions are not in the snapshot, even if their partition has no others."""
    family.sow("a", {"id": "a", "n": 1})
    with family.transaction(commit=False):
        for number in range(50):
            family.write(f"{family.name}.sow", f"k{number}", {"id": f"k{number}"}, version="1")
        family.write(f"{family.name}.sow", "a", {"id": "a", "n": 2}, version="2")
    assert records(list(client.sow(family.name))) == {"a": {"id": "a", "n": 1}}


def test_an_open_transaction_is_waited_for(client: Client, family: Family):
    """An open transaction's records before the call count by its outcome: the boundary is at the true end."""
    family.sow("a", {"id": "a", "n": 1})
    with family.transaction():
        family.write(f"{family.name}.sow", "a", {"id": "a", "n": 2}, version="2")
        family._producer.flush(PATIENCE_S)
        snapshot = client.sow(family.name)
    assert records(list(snapshot)) == {"a": {"id": "a", "n": 2}}


def test_a_snapshot_ends_at_the_call(client: Client, family: Family):
    """Records written after the call are not in the snapshot, even if it is read later."""
    family.sow("a", {"id": "a", "n": 1})
    snapshot = client.sow(family.name)
    for key in ("a", "b", "c", "d", "e"):
        family.sow(key, {"id": key, "n": 2}, 2)
    assert records(list(snapshot)) == {"a": {"id": "a", "n": 1}}


def test_timestamp_only_if_asked(client: Client, family: Family):
    """The record's time is sent with the option `timestamp` only, as ISO 8601 in UTC."""
    family.sow("a", {"id": "a"}, correlation_id="abc=")
    (_, without, _) = client.sow(family.name)
    (_, stamped, _) = client.sow(family.name, options="timestamp")
    assert without.timestamp is None
    assert stamped.timestamp is not None
    assert stamped.timestamp.endswith("Z")
    assert stamped.correlation_id == "abc="


def test_get_reads_one_record(client: Client, family: Family):
    """`get` returns the newest record of a key on any partition, and None for a missing one."""
    for key in ("a", "b", "c", "d", "e"):
        family.sow(key, {"id": key, "n": 1})
        family.sow(key, {"id": key, "n": 2}, 2)
    family.sow("e", None, 3, kind="delete")
    assert [client.get(family.name, key).data["n"] for key in "abcd"] == [2] * 4  # type: ignore[union-attr]
    assert client.get(family.name, "e") is None
    assert client.get(family.name, "never") is None
    assert PARTITIONS > 1


def test_a_conflated_topic_is_read_like_any_other(client: Client, family: Family):
    """A conflated topic has a state of the world of its own."""
    with family.transaction():
        family.write(f"{family.conflated}.sow", "a", {"id": "a", "slow": 1}, version="1")
    assert records(list(client.sow(family.conflated))) == {"a": {"id": "a", "slow": 1}}


def test_invalid_queries_are_rejected_at_once(client: Client, family: Family):
    """A bad filter, select list, order or option, or an unknown topic, raises at once and shows the place."""
    with pytest.raises(FilterError) as caught:
        client.sow(family.name, "/n >> 1")
    assert (caught.value.line, caught.value.column) == (1, 5)
    for wrong in ({"order_by": "/n UP"}, {"select": "id"}, {"top_n": -1}, {"options": "oof"}, {"options": "sorted"}):
        with pytest.raises(ConfigurationError):
            client.sow(family.name, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="did you mean"):
        client.sow(family.name[:-1])


def test_a_snapshot_is_filtered_ordered_and_limited(client: Client, family: Family):
    """A filter selects records, `order_by` orders them, `skip_n` and `top_n` limit them, `select` selects fields."""
    for number in range(10):
        family.sow(f"k{number}", {"id": f"k{number}", "n": number, "x": {"y": number, "z": 0}})
    chosen = client.sow(family.name, "/n < 8", "timestamp", order_by="/n DESC", select="-/,+/x/y", top_n=3, skip_n=1)
    delivered = [message for message in chosen if message.command == "sow"]
    assert [message.data for message in delivered] == [{"id": f"k{number}", "x": {"y": number}} for number in (6, 5, 4)]
    text = "select=[-/,+/x/y],order_by=[/n DESC],top_n=3,skip_n=1,timestamp"
    assert [
        message for message in client.sow(family.name, "/n < 8", options=text) if message.command == "sow"
    ] == delivered


def test_expired_records_are_not_in_a_snapshot(client: Client, family: Family):
    """Expired records are in no snapshot and not found by key, even if no worker runs that removes them."""
    now_ms = int(time.time() * 1000)
    times = {"gone": now_ms - 60_000, "there": now_ms + 3_600_000}
    for key, time_ms in times.items():
        family.sow(key, {"id": key}, expires_at=str(time_ms))
    for messages in (client.sow(family.name), client.sow(family.name, order_by="/id", top_n=9)):
        assert records(list(messages)) == {"there": {"id": "there"}}
    assert client.get(family.name, "gone") is None
    message = client.get(family.name, "there")
    assert message is not None
    assert message.expires_at == iso(times["there"])
    subscription = client.sow_and_subscribe(family.name, options="oof")
    family.sow("gone", None, 2, kind="expire")
    family.sow("there", None, 2, kind="expire")
    delivered = [(message.command, message.sow_key) for message in family.rest(subscription) if message.sow_key]
    assert delivered == [("sow", "there"), ("oof", "there")]


@pytest.mark.parametrize("form", ["sow_and_subscribe", "sow_and_delta_subscribe", "subscribe"])
def test_headers_of_the_publisher_come_with_their_records(client: Client, family: Family, form: str):
    """A snapshot has the headers of each record's last update, and each update has its own."""
    family.sow("a", {"id": "a", "n": 1}, 1, kind="insert", traceparent="one", source="t/0/0")
    subscription = getattr(client, form)(family.name)
    family.sow("a", {"id": "a", "n": 2}, 2, traceparent="two", sequence="7", conflated="2")
    family.sow("a", {"id": "a", "n": 3}, 3)
    messages = [message for message in family.rest(subscription) if message.sow_key]
    delivered = [(message.version, message.headers, message.conflated, message.delta_base) for message in messages]
    bases = (1, 2) if form == "sow_and_delta_subscribe" else (None, None)
    assert delivered[-2:] == [(2, {"traceparent": "two", "sequence": "7"}, 2, bases[0]), (3, {}, None, bases[1])]
    assert form == "subscribe" or delivered[0] == (1, {"traceparent": "one"}, None, None)


def test_an_unreadable_record_ends_a_snapshot_unless_it_is_skipped(family: Family):
    """With the option, other records are delivered and the bad one is listed until its key gets a newer record."""
    for key in ("a", "b", "c"):
        family.sow(key, {"id": key})
    family.sow("b", ["not", "an", "object"], 2)
    with Client("strict", family.config) as strict, pytest.raises(Stop, match="key 'b', is not what a worker writes"):
        list(strict.sow(family.name))
    with Client("skipping", family.config, skip_unreadable=True) as skipping:
        assert skipping.unreadable == {}
        assert records(list(skipping.sow(family.name))) == {"a": {"id": "a"}, "c": {"id": "c"}}
        assert skipping.unreadable == {family.name: {"b": "not_an_object: a SOW record is an object"}}
        live = skipping.sow_and_subscribe(family.name, timeout_s=PATIENCE_S)
        assert records([next(live) for _ in range(4)]) == {"a": {"id": "a"}, "c": {"id": "c"}}
        family.sow("b", {"id": "b"}, 3)
        message = next(live)
        assert (message.sow_key, message.data) == ("b", {"id": "b"})
        assert skipping.unreadable == {}
        live.close()


def test_skipping_records_excludes_a_kept_view(family: Family, tmp_path):
    """A later run without the option would not know about the missing records."""
    with pytest.raises(ConfigurationError, match="skip_unreadable leaves records out"):
        Client("skipping", family.config, tmp_path, skip_unreadable=True)


def brief(message: Message) -> tuple[object, ...]:
    """The fields of a message that concern the record."""
    return (message.command, message.data, message.delta)


def test_subscribe_delivers_later_records_only(client: Client, family: Family):
    """A subscription gets no records from before the call, every later full record, and no deletes."""
    family.sow("a", {"id": "a", "n": 1})
    subscription = client.subscribe(family.name)
    family.sow("a", {"id": "a", "n": 2}, 2)
    family.sow("a", None, 3, kind="delete")
    family.sow("a", {"id": "a", "n": 3}, 1, kind="insert")
    assert [brief(message) for message in family.rest(subscription)] == [
        ("publish", {"id": "a", "n": 2}, False),
        ("publish", {"id": "a", "n": 3}, False),
    ]


def test_aborted_records_are_not_delivered(client: Client, family: Family):
    """A subscriber gets committed records only."""
    subscription = client.subscribe(family.name)
    with family.transaction(commit=False):
        family.write(f"{family.name}.sow", "a", {"id": "a", "n": 666}, version="1")
    family.sow("a", {"id": "a", "n": 1})
    assert [message.data["n"] for message in family.rest(subscription)] == [1]


def test_sow_and_subscribe_has_no_gap_and_no_overlap(client: Client, family: Family):
    """With concurrent writes, the snapshot and the updates contain every version of every key once."""
    keys, versions, is_opened = [f"k{number}" for number in range(20)], itertools.count(1), threading.Event()

    def write(version: int) -> None:
        with family.transaction(commit=version % 5 != 0):
            for key in keys:
                family.write(f"{family.name}.sow", key, {"id": key, "n": version}, version=str(version))

    def write_on() -> None:
        while not is_opened.is_set():
            write(next(versions))

    write(next(versions))
    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        subscription = client.sow_and_subscribe(family.name)
    finally:
        is_opened.set()
        writer.join()
    for _ in range(6):
        write(last := next(versions))
    seen: dict[str, list[int]] = {key: [] for key in keys}
    for message in family.rest(subscription):
        if message.sow_key is not None:
            seen[message.sow_key].append(message.data["n"])
    for numbers in seen.values():
        assert numbers == [number for number in range(numbers[0], last + 1) if number % 5 != 0]
        assert len(numbers) > 4


def test_the_snapshot_is_followed_from_its_end(client: Client, family: Family):
    """Records written between the call and the first read are delivered as updates, after the snapshot."""
    family.sow("a", {"id": "a", "n": 1})
    subscription = client.sow_and_subscribe(family.name)
    for key in "abcdefg":
        family.sow(key, {"id": key, "n": 2}, 2)
    got = family.rest(subscription)
    assert [message.command for message in got[:3]] == ["group_begin", "sow", "group_end"]
    assert sorted(message.sow_key or "" for message in got[3:]) == list("abcdefg")
    assert {message.command for message in got[3:]} == {"publish"}


def test_delta_subscribe_delivers_the_delta_topic(client: Client, family: Family):
    """A delta subscription gets the worker's deltas and removed paths; first records are full, deletes left out."""
    family.delta("a", {"id": "a", "old": 1})
    subscription = client.delta_subscribe(family.name)
    family.delta("b", {"id": "b", "n": 1}, 1, kind="insert")
    family.delta("b", {"id": "b", "n": 2}, 2, removed='["/x","/y~1z"]')
    family.delta("b", {"id": "b"}, 3, empty="true")
    family.delta("b", {"id": "b"}, 4, kind="delete")
    got = family.rest(subscription)
    assert [brief(message) for message in got] == [
        ("publish", {"id": "b", "n": 1}, False),
        ("publish", {"id": "b", "n": 2}, True),
        ("publish", {"id": "b"}, True),
    ]
    assert got[1].removed == ("/x", "/y~1z")
    assert [message.version for message in got] == [1, 2, 3]


def test_a_timeout_ends_the_iteration(client: Client, family: Family):
    """`timeout_s` ends the iteration after a silence of that length."""
    began = time.monotonic()
    assert list(client.subscribe(family.name, timeout_s=0.3)) == []
    assert time.monotonic() - began >= 0.3


def test_closed_is_over(client: Client, family: Family):
    """A closed subscription iterates no more; leaving `with` closes it."""
    family.sow("a", {"id": "a"})
    with client.sow_and_subscribe(family.name) as subscription:
        assert next(subscription).command == "group_begin"
    assert list(subscription) == []
