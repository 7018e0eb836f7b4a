"""A record of a newer version, with headers and members that this one does not know, is read without them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from processor.errors import RecordRejected
from processor.runtime.recovery.log_replay import EncodedHeads
from processor.store.layout import decode_record
from processor.wire.ack import read_ack
from processor.wire.command import CommandReader
from processor.wire.control import Failure, Fence, Notice, Order, decode, decode_key
from processor.wire.dead_letter import read_letter
from processor.wire.partition_marks import InputPosition
from processor.wire.record_headers import read_sow_headers, stored_from
from processor.wire.subscriber_headers import metadata, read_delta_headers
from processor.wire.topic_description import FORMAT, Description, NewerFormat
from tests.builtin.merging import bodies
from tests.golden.golden_files import NEWEST, golden_topic
from tests.golden.test_readers import resumed
from tests.golden.test_writers import comparable
from tests.golden.topics import conflated, merged

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.record import Header, Record

_NEW: Header = ("since_0_9", b"\xff 9")
"""A header of a later version; its value is no text."""


def with_header(record: Record) -> Record:
    """Return a record with a header of a later version in front of its own."""
    return record._replace(headers=[_NEW, *(record.headers or ())])


def with_member(value: bytes | None) -> bytes:
    """Return a JSON object with a member of a later version in it."""
    return json.dumps({"since_0_9": {"a": [1]}, **json.loads(value or b"")}).encode()


@pytest.mark.parametrize("family", ["orders", "orders_5s", "by_customer"])
def test_a_new_header_of_a_sow_record_changes_nothing_for_its_readers(family: str) -> None:
    """State, version, expiry and metadata of a record are those that it has without the new header."""
    for record in golden_topic(NEWEST, f"{family}.sow"):
        newer = with_header(record)
        assert stored_from(newer) == stored_from(record)
        if record.value is not None:
            assert newer.headers is not None
            assert decode_record(EncodedHeads()[tuple(newer.headers)] + record.value) == stored_from(record)
        assert read_sow_headers(newer.headers)._replace(others=[]) == read_sow_headers(record.headers)._replace(
            others=[]
        )
        read = metadata(newer.headers or [])
        assert read._replace(headers=None) == metadata(record.headers or [])._replace(headers=None)


def test_a_new_header_of_a_delta_changes_nothing_for_its_readers() -> None:
    """Kind, version, base and removed paths of a delta are those that it has without the new header."""
    for family in ("orders", "orders_5s", "by_customer"):
        for record in golden_topic(NEWEST, f"{family}.delta"):
            assert read_delta_headers(with_header(record).headers) == read_delta_headers(record.headers)


def test_a_new_header_of_a_command_travels_on_and_changes_nothing_else() -> None:
    """Each command with a new header is merged as without it; the header is on the SOW records and deltas."""
    golden = [with_header(record) for record in golden_topic(NEWEST, "orders.publish")[:-1]]
    outputs = merged(golden)
    for role in ("sow", "delta", "dlq"):
        expected = golden_topic(NEWEST, f"orders.{role}")
        without = [one._replace(headers=[h for h in one.headers or () if h != _NEW]) for one in outputs[role]]
        # Headers that travel on come last where a record has expired; their order among others means nothing.
        assert comparable(without) == comparable(expected)
        assert all(_NEW in (one.headers or ()) for one in outputs[role])


def test_a_conflated_topic_passes_a_new_header_on() -> None:
    """The copies of records with a new header are the golden copies, with that header."""
    outputs = conflated([with_header(record) for record in golden_topic(NEWEST, "orders.sow")])
    for role in ("sow", "delta"):
        without = [one._replace(headers=[h for h in one.headers or () if h != _NEW]) for one in outputs[role]]
        assert comparable(without) == comparable(golden_topic(NEWEST, f"orders_5s.{role}"))


def test_a_new_header_of_a_dead_letter_stays_with_its_record() -> None:
    """Reason, detail and place of a dead letter are those that it has without the new header."""
    [record] = golden_topic(NEWEST, "orders.dlq")
    older, newer = read_letter(0, record), read_letter(0, with_header(record))
    assert (newer.reason, newer.detail, newer.source) == (older.reason, older.detail, older.source)


def test_new_members_of_acks_and_positions_are_ignored() -> None:
    """An ack and an input position with a new member are read as without it."""
    for record in golden_topic(NEWEST, "orders.ack"):
        assert read_ack("orders", with_member(record.value)) == read_ack("orders", record.value or b"")
    position = golden_topic(NEWEST, "orders.mark")[-1].value
    assert InputPosition.read(with_member(position)) == InputPosition.read(position)


def test_a_new_mark_changes_nothing_for_a_processor() -> None:
    """Marks with names that this version does not know are restored, and the merge goes on as without them."""
    driver = resumed(NEWEST)
    log = driver._logs["mark"]
    for name in (b"\0sowstream/since_0_9", b"since_0_9//x"):
        log.committed.append(log.committed[-1]._replace(key=name, value=b"\xff", offset=log.end))
        log.end += 1
    driver.crash()
    driver.pipe_input("9", {"id": 9, "n": 2}, {"client": "desk-1", "sequence": "2"})
    driver.pipe_input("9", {"id": 9, "n": 3}, {"client": "desk-1", "sequence": "3"})
    assert bodies(driver.pending_output("sow")) == [{"id": 9, "n": 3}]


def test_new_members_and_kinds_of_the_control_topic_are_ignored() -> None:
    """A record with a new member is read without it; a record of a newer format or kind is none for this version."""
    for kind, record in zip((Notice, Failure, Order, Fence), golden_topic(NEWEST, "_sowstream.control"), strict=True):
        read: Callable[[bytes], Any] = lambda data, kind=kind: decode(kind, data)  # noqa: E731 - the type of one kind
        older = read(record.value or b"")
        assert older is not None
        assert read(with_member(record.value)) == older
        newer = json.loads(record.value or b"") | {"format": 99}
        assert read(json.dumps(newer).encode()) is None
    assert decode_key(b"since_0_9/desk/orders/3") is None


def test_new_members_of_a_description_are_ignored_and_a_newer_format_is_named() -> None:
    """A description with a new member is read without it; one of a newer format is an error that names the upgrade."""
    for record in golden_topic(NEWEST, "_sowstream.topics"):
        older = Description.from_json(record.value or b"")
        assert Description.from_json(with_member(record.value)) == older
        newer = json.loads(record.value or b"") | {"format": FORMAT + 1}
        with pytest.raises(NewerFormat, match="upgrade Sowstream"):
            Description.from_json(json.dumps(newer).encode())


def test_a_new_command_is_refused_by_name() -> None:
    """A command that this version does not know is a dead letter, and never merged as another one."""
    with pytest.raises(RecordRejected, match="since_0_9"):
        CommandReader("delta_publish").read([("command", b"since_0_9")])
