import itertools
import threading
import time

import pytest

from processor.client import Client, Message
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
