"""The deliveries of one key of a conflated topic, from a publisher to a plain reader and to each call of the client."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from processor.client import Client
from tests.cli.conftest import Cli
from tests.endtoend.copies import INTERVAL_MS, Copies
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processor.client import Message, Subscription
    from tests.endtoend.oracle import Seen


pytestmark = pytest.mark.broker

PUBLISH = {"command": "publish"}


@pytest.fixture(scope="module")
def copies(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    """Create a copy that delivers every 200 ms, `rare` and `few` every hour, and `large` with some of the records."""
    others = {
        "rare": {"interval": "1h"},
        "few": {"interval": "1h", "max_pending": 1},
        "large": {"interval": f"{INTERVAL_MS}ms", "filter": "/qty > 10"},
    }
    made = Copies(bootstrap, tmp_path_factory.mktemp("copies"), others)
    try:
        made.work()
        yield made
    finally:
        made.close()


def bodies(records: list[Seen]) -> list[object]:
    """Decode the records."""
    return [None if record.value is None else json.loads(record.value) for record in records]


def test_the_example_of_the_specification(copies: Copies, unique: str) -> None:
    """State and note change and change back, ref does not: the delta has the touched members and the source updates."""
    record = {"id": unique, "state": "open", "note": "-", "ref": 1}
    copies.at_once((unique, record, PUBLISH))
    copies.deliveries(unique, 1)
    held = record | {"state": "held"}
    states = {"a": held, "b": held | {"note": "x"}, "c": record}
    copies.at_once(*((unique, body, PUBLISH | {"trace": trace}) for trace, body in states.items()))
    sow, delta = copies.deliveries(unique, 2)

    first, second, _, last = copies.of(unique, "sow", copies.name)
    source = f"{copies.name}.sow/0"
    assert bodies(sow) == [record, record]
    assert bodies(delta) == [record, {"id": unique, "state": "open", "note": "-"}]
    begin = int(first.headers["version"])
    inserted = {
        "version": str(begin),
        "kind": "insert",
        "first_timestamp": str(first.timestamp_ms),
        "source": f"{source}/{first.offset}",
    }
    bases = {} if begin == 1 else {"delta_base": "0"}
    assert [sow[0].headers, delta[0].headers] == [inserted, inserted | bases]
    folded = {
        "version": str(begin + 3),
        "conflated": "3",
        "first_timestamp": str(second.timestamp_ms),
        "source": f"{source}/{last.offset}",
        "trace": "c",
    }
    assert sow[1].headers == folded | {"touched": '["/state","/note"]'}
    assert delta[1].headers == folded | {"delta_base": str(begin)}


def test_a_quiet_topic_delivers_and_not_before_the_end_of_the_interval(copies: Copies, unique: str) -> None:
    """One record is delivered at the end of its interval without any later record."""
    copies.at_once((unique, {"id": unique}, {}))
    [sow], [delta] = copies.deliveries(unique, 1)
    assert sow.timestamp_ms - int(sow.headers["first_timestamp"]) >= INTERVAL_MS
    assert "conflated" not in sow.headers
    assert delta.headers["kind"] == "insert"


def test_a_delete_is_delivered_at_the_end_of_the_interval(copies: Copies, unique: str) -> None:
    """The pending update and the delete become a tombstone, and a delta of the key fields."""
    copies.at_once((unique, {"id": unique, "n": 1}, {}))
    copies.deliveries(unique, 1)
    copies.at_once((unique, {"id": unique, "n": 2}, {}), (unique, None, {}))
    sow, delta = copies.deliveries(unique, 2)
    assert (sow[1].value, bodies(delta)[1]) == (None, {"id": unique})
    begin = int(sow[0].headers["version"])
    for record in (sow[1], delta[1]):
        assert {name: record.headers.get(name) for name in ("kind", "version", "conflated")} == {
            "kind": "delete", "version": str(begin + 2), "conflated": "2"
        }  # fmt: skip
        assert record.timestamp_ms - int(record.headers["first_timestamp"]) >= INTERVAL_MS
    assert delta[1].headers["delta_base"] == str(begin)


def test_a_record_inserted_and_deleted_within_an_interval_is_not_delivered(copies: Copies, unique: str) -> None:
    """A record of another key that is published later is delivered."""
    copies.at_once((unique, {"id": unique}, {}), (unique, None, {}), (f"{unique}b", {"id": f"{unique}b"}, {}))
    copies.deliveries(f"{unique}b", 1)
    assert len(copies.of(unique, "sow", copies.name)) == 2
    assert copies.of(unique, "sow") == copies.of(unique, "delta") == []


def test_a_delete_and_an_insert_within_an_interval_are_one_update(copies: Copies, unique: str) -> None:
    """Readers see the new record, with the versions of its own life, in place of the old one, and no delete."""
    copies.at_once((unique, {"id": unique, "n": 1, "old": 1}, {}))
    copies.deliveries(unique, 1)
    copies.at_once((unique, None, {}), (unique, {"id": unique, "n": 1}, {}))
    sow, delta = copies.deliveries(unique, 2)
    assert bodies(sow)[1] == bodies(delta)[1] == {"id": unique, "n": 1}
    assert "kind" not in sow[1].headers
    said = {name: delta[1].headers[name] for name in ("version", "delta_base", "removed")}
    last = copies.of(unique, "sow", copies.name)[-1].headers["version"]
    assert said == {"version": last, "delta_base": sow[0].headers["version"], "removed": '["/old"]'}
    assert int(last) > int(sow[0].headers["version"]) + 1  # Above the delete's.


def test_a_record_that_expires_expires_in_the_copy(copies: Copies, unique: str) -> None:
    """The copy has the expiration time, and its delete has the kind `expire`."""
    copies.at_once((unique, {"id": unique}, {"expiration": "1000"}))
    [begun], _ = copies.deliveries(unique, 1)
    copies.at_once((unique, {"id": unique}, {"expiration": "0.5"}))
    copies.wait(lambda: copies.of(unique)[-1].value is None, "the end in the copy")
    first, second, _ = copies.of(unique, "sow", copies.name)
    assert begun.headers["expires_at"] == first.headers["expires_at"]
    sow, delta = copies.of(unique)[-1], copies.of(unique, "delta")[-1]
    assert sow.timestamp_ms >= int(second.headers["expires_at"])
    assert bodies([sow, delta]) == [None, {"id": unique}]
    assert (
        (sow.headers["kind"], sow.headers["version"])
        == (delta.headers["kind"], delta.headers["version"])
        == ("expire", str(int(begun.headers["version"]) + 2))
    )


def test_a_record_with_no_conflate_is_delivered_at_once(copies: Copies, unique: str) -> None:
    """It is delivered with the pending updates of its key, and the next update begins a new interval."""
    rare, other, now = f"{copies.name}_rare", f"{unique}b", {"no_conflate": "true"}
    copies.at_once((unique, {"id": unique, "n": 1}, {}))
    copies.wait(lambda: copies.of(unique, "sow", copies.name) != [], "merging the first update")
    copies.at_once((unique, {"id": unique, "n": 2}, now))
    [sow], [delta] = copies.deliveries(unique, 1, rare)
    assert bodies([sow, delta]) == [{"id": unique, "n": 2}] * 2
    assert (delta.headers["conflated"], delta.headers["kind"]) == ("2", "insert")
    assert delta.headers["version"] == copies.of(unique, "sow", copies.name)[-1].headers["version"]
    first, second = copies.of(unique, "sow", copies.name)
    assert int(sow.headers["first_timestamp"]) == first.timestamp_ms < second.timestamp_ms

    copies.at_once((unique, {"id": unique, "n": 3}, {}), (other, {"id": other}, now))
    copies.deliveries(other, 1, rare)
    assert len(copies.of(unique, "sow", rare)) == 1


def test_updates_beyond_the_limit_are_delivered_before_their_time(copies: Copies, unique: str) -> None:
    """The key that has waited longest is delivered with all its updates; the newest one goes on waiting."""
    few, other = f"{copies.name}_few", f"{unique}b"
    copies.at_once(*((unique, {"id": unique, "n": n}, {}) for n in range(3)), (other, {"id": other}, {}))
    [sow], _ = copies.deliveries(unique, 1, few)
    assert (bodies([sow]), sow.headers["conflated"]) == ([{"id": unique, "n": 2}], "3")
    assert copies.of(other, "sow", few) == []


def test_records_published_to_a_copy_are_not_read(copies: Copies, unique: str) -> None:
    """A copy has no input topic; records in a topic of that name change nothing."""
    topic = f"{copies.conflated}.publish"
    admin = AdminClient({"bootstrap.servers": copies.bootstrap})
    assert topic not in admin.list_topics(timeout=120).topics
    [made] = admin.create_topics([NewTopic(topic, 1, 1)]).values()
    made.result(120)
    try:
        producer = Producer({"bootstrap.servers": copies.bootstrap})
        producer.produce(topic, b"{}", unique.encode(), headers={"no_conflate": "true"})
        assert producer.flush(120) == 0
        copies.at_once((f"{unique}b", {"id": f"{unique}b"}, {}))
        copies.deliveries(f"{unique}b", 1)
        assert copies.of(unique, "sow") == copies.of(unique, "dlq") == []
    finally:
        [gone] = admin.delete_topics([topic]).values()
        gone.result(120)


def test_a_copy_with_a_filter_has_the_records_that_match(copies: Copies, unique: str) -> None:
    """A record that does not match is not in the copy; a later version of it that matches is."""
    large, other = f"{copies.name}_large", f"{unique}b"
    copies.at_once((unique, {"id": unique, "qty": 10}, {}), (other, {"id": other, "qty": 11}, {}))
    copies.deliveries(other, 1, large)
    copies.deliveries(unique, 1)
    assert copies.of(unique, "sow", large) == copies.of(unique, "delta", large) == []


def test_a_record_that_stops_matching_leaves_the_copy_and_comes_back_whole(copies: Copies, unique: str) -> None:
    """It leaves at the end of an interval as if deleted, and returns as a full record."""
    large = f"{copies.name}_large"
    for count, delta in enumerate([{"qty": 11, "note": "x"}, {"qty": 9}, {"qty": 12}], 1):
        copies.at_once((unique, {"id": unique, **delta}, {}))
        copies.deliveries(unique, count, large)
    sow, delta = copies.deliveries(unique, 3, large)
    whole = [{"id": unique, "qty": 11, "note": "x"}, None, {"id": unique, "qty": 12, "note": "x"}]
    assert bodies(sow) == whole
    assert bodies(delta) == [whole[0], {"id": unique}, whole[2]]
    for records in (sow, delta):
        begin = int(records[0].headers["version"])
        kinds = [(record.headers["kind"], int(record.headers["version"]) - begin) for record in records]
        assert kinds == [("insert", 0), ("delete", 1), ("insert", 2)]
    assert delta[2].headers["delta_base"] == "0"
    assert sow[1].timestamp_ms - int(sow[1].headers["first_timestamp"]) >= INTERVAL_MS


def test_a_filter_that_cannot_be_read_stops_every_command_at_its_start(tmp_path: Path, bootstrap: str) -> None:
    """The error has the setting, line and column, and a mark under the place."""
    tree = {
        "kafka": {"bootstrap.servers": bootstrap},
        "topics": {"orders": {}},
        "conflated": {"large": {"underlying": "orders", "filter": "/qty > 10 AND\n/item = OR"}},
    }
    cli = Cli(tmp_path, tree)
    for arguments in (["conflate"], ["topics", "check"]):
        done = cli(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert_filter_error(done.stderr)
    done = cli("doctor")
    assert done.returncode == 1
    assert_filter_error(done.stdout)


def assert_filter_error(text: str) -> None:
    """Check the error about the filter and its place."""
    assert "conflated.large.filter: " in text
    assert "line 2, column 9" in text
    assert re.search(r"/item = OR *\n +\^", text)


FORMS = ("delta_subscribe", "sow_and_delta_subscribe")
VARIANTS: dict[str, tuple[str | None, str]] = {
    "plain": (None, ""),
    "filter": ("/ref > 0", ""),
    "select": (None, "select=[-/,+/state,+/ref]"),
    "oof": (None, "oof"),
    "no_empties": (None, "no_empties"),
    "everything": ("/ref > 0", "oof,no_empties,select=[-/,+/state,+/ref]"),
}


def received(subscription: Subscription, key: str) -> list[Message]:
    """Return the updates of one key up to the record that is marked as the last."""
    messages: list[Message] = []
    for message in subscription:
        if message.sow_key != key:
            continue
        messages.append(message)
        if message.data.get("ref") == 99:
            break
    return messages


def test_every_call_delivers_the_deltas_of_the_delta_topic(copies: Copies, unique: str) -> None:
    """Both calls deliver the selected part of each written delta in order, with six sets of options."""
    record = {"id": unique, "state": "open", "note": "-", "ref": 1}
    held = record | {"state": "held", "note": "x"}
    intervals: list[list[dict[str, Any] | None]] = [
        [record],
        [held, record],  # The example of conflation.md.
        [record | {"ref": 2}],
        [held | {"ref": 2}, record | {"ref": 3}],
        [None, record | {"ref": 3}],  # Deleted and published again: everything was touched.
        [record | {"ref": 99, "note": "end"}],
    ]
    with Client("calls", copies.config) as client:
        opened = {
            (form, name): getattr(client, form)(copies.conflated, filter_text, options, timeout_s=PATIENCE_S)
            for form in FORMS
            for name, (filter_text, options) in VARIANTS.items()
        }
        for count, updates in enumerate(intervals, 1):
            copies.at_once(*((unique, body, PUBLISH) for body in updates))
            _, delta = copies.deliveries(unique, count)
        messages = {call: received(subscription, unique) for call, subscription in opened.items()}

    written = [json.loads(each.value or b"{}") for each in delta]
    assert written[1] == {"id": unique, "state": "open", "note": "-"}
    assert written[4] == record | {"ref": 3}
    selected = [{name: body[name] for name in ("id", "state", "ref") if name in body} for body in written]
    for (form, name), told in messages.items():
        expected = selected if name in ("select", "everything") else written
        assert [message.data for message in told] == expected, (form, name)
        assert [message.delta for message in told] == [False, True, True, True, True, True], (form, name)
        assert [message.version for message in told] == [int(each.headers["version"]) for each in delta], (form, name)
