import itertools
import threading
import time

import pytest

from processor.client import Client, Message
from processor.merge import apply_delta
from tests.client.family import Family

pytestmark = pytest.mark.broker


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


def test_no_empties_and_no_sowkey(client: Client, family: Family):
    """`no_empties` leaves out deltas without changes, `no_sowkey` leaves out the key."""
    subscription = client.delta_subscribe(family.name, options="no_empties,no_sowkey,send_keys")
    family.delta("b", {"id": "b"}, 3, empty="true")
    family.delta("b", {"id": "b", "n": 4}, 4)
    (message,) = family.rest(subscription)
    assert (message.data, message.sow_key, message.version) == ({"id": "b", "n": 4}, None, 4)


def test_sow_and_delta_subscribe_sends_changes_to_its_own_snapshot(client: Client, family: Family):
    """Deltas have key fields and differences to the delivered record, removals included; a new record is full."""
    family.sow("a", {"id": "a", "n": 1, "deep": {"x": 1, "y": 2}, "gone": True})
    subscription = client.sow_and_delta_subscribe(family.name)
    family.sow("a", {"id": "a", "n": 1, "deep": {"x": 1, "y": 3}}, 2)
    family.sow("a", {"id": "a", "n": 1, "deep": {"x": 1, "y": 3}}, 3)
    family.sow("b", {"id": "b", "n": 1}, 1, kind="insert")
    got = family.rest(subscription)[3:]
    assert [brief(message) for message in got if message.sow_key == "b"] == [("publish", {"id": "b", "n": 1}, False)]
    first, second = [message for message in got if message.sow_key == "a"]
    assert (first.data, first.delta, first.removed) == ({"id": "a", "deep": {"y": 3}}, True, ("/gone",))
    assert (second.data, second.delta, second.removed) == ({"id": "a"}, True, ())


def test_deltas_replayed_on_the_snapshot_give_the_records(client: Client, family: Family):
    """Applying each message to the subscriber's state gives the SOW record after every step."""
    states = [
        {"id": "a", "v": [1], "o": {"p": 1}},
        {"id": "a", "v": [1, 2], "o": {}},
        {"id": "a", "o": {"p": None, "q": {"r": 1}}},
        {"id": "a", "o": 5, "v": None},
        {"id": "a"},
    ]
    family.sow("a", states[0])
    subscription = client.sow_and_delta_subscribe(family.name)
    for version, state in enumerate(states[1:], 2):
        family.sow("a", state, version)
    delivered = [message for message in family.rest(subscription) if message.data is not None]
    held = None
    for expected, message in zip(states, delivered, strict=True):
        held = apply_delta(held if message.delta else None, message.data, message.removed)
        assert held == expected


@pytest.mark.parametrize(("kind", "reason"), [("delete", "deleted"), ("expire", "expired")])
@pytest.mark.parametrize("form", ["sow_and_subscribe", "sow_and_delta_subscribe"])
def test_oof_has_the_last_record(client: Client, family: Family, form: str, kind: str, reason: str):
    """With `oof`, a record that goes is sent with the reason and its last state."""
    family.sow("a", {"id": "a", "n": 1})
    subscription = getattr(client, form)(family.name, options="oof")
    family.sow("a", {"id": "a", "n": 2}, 2)
    family.sow("a", None, 3, kind=kind)
    last = family.rest(subscription)[-1]
    assert (last.command, last.reason, last.data, last.version, last.delta) == (
        "oof",
        reason,
        {"id": "a", "n": 2},
        3,
        False,
    )


@pytest.mark.parametrize("form", ["subscribe", "delta_subscribe"])
def test_oof_is_sent_for_delivered_records_only(client: Client, family: Family, form: str):
    """Without a snapshot, only records delivered before are reported as gone."""
    for key in ("seen", "unseen"):
        family.sow(key, {"id": key, "n": 1, "strictly_equal": 0})
    subscription = getattr(client, form)(family.name, options="oof")
    family.sow("seen", {"id": "seen", "n": 2, "strictly_equal": 0}, 2)
    for key in ("seen", "unseen"):
        family.sow(key, None, 3, kind="delete")
    publish, oof = family.rest(subscription)
    assert publish.data == ({"id": "seen", "n": 2} | ({} if form == "delta_subscribe" else {"strictly_equal": 0}))
    assert (oof.command, oof.data) == ("oof", {"id": "seen", "n": 2, "strictly_equal": 0})


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
