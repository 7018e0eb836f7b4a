"""Forwarded commands know where they came in, and no record of a publisher is taken for the mark of a moved topic."""

from __future__ import annotations

import pytest

from processor.errors import RecordRejected
from processor.wire.command import CommandReader
from processor.wire.forwarding import (
    RESERVED,
    came_in,
    forwarded_header,
    moved_headers,
    moved_mark,
    moved_partition,
    moved_record,
    moved_to,
    refuse_reserved,
    sequence_mark,
)
from processor.wire.headers import Name
from processor.wire.record_headers import removal_headers

NUMBERED = [("client", b"desk"), ("sequence", b"1")]


def test_a_place_goes_on_through_every_hop() -> None:
    """A command that moves twice, and is sent to its key's own partition in between, still has a place of its own."""
    first = moved_headers(NUMBERED, "b.publish", b"a.publish/", 3, 77, is_text_now=False)
    assert first[-1] == ("source", b"b.publish/moved-3/77")
    place = came_in(first[-1][1] or b"", b"b.publish/")
    hop = forwarded_header("b.publish", 7, 9, place)
    assert hop == ("source", b"b.publish/7-moved-3/9")
    second = moved_headers([*NUMBERED, hop], "c.publish", b"b.publish/", 7, 12, is_text_now=False)
    assert second == [*NUMBERED, ("source", b"c.publish/moved-7-7-moved-3/12")]
    assert came_in(b"c.publish/moved-7-7-moved-3/12", b"c.publish/") == b"moved-7-7-moved-3"


def test_a_plain_command_needs_no_place() -> None:
    """Without a number, an ack or another place, the headers stay the same object."""
    headers = [("traceparent", b"00-1")]
    assert moved_headers(headers, "b.publish", b"a.publish/", 3, 77, is_text_now=False) is headers
    assert moved_headers([], "b.publish", b"a.publish/", 3, 77, is_text_now=True) == [
        ("source", b"b.publish/moved-3/77")
    ]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (b"a.publish/3/4", b"3"),
        (b"a.publish/moved-3/4", b"moved-3"),
        (b"b.publish/3/4", b""),
        (b"a.publish/123456/4", b""),
        (b"a.publish/moved-/4", b""),
        (b"a.publish/3-3-3-3-3-3-3/4", b""),
        (b"a.publish/heal", b""),
        (b"a.publish/", b""),
        (b"", b""),
    ],
)
def test_a_source_that_no_worker_wrote_has_no_place(source: bytes, place: bytes) -> None:
    """The name of a mark does not grow by what a publisher writes."""
    assert came_in(source, b"a.publish/") == place


def test_it_is_seen_where_a_command_came_from() -> None:
    """By its place, and not by the name of a topic."""
    assert moved_partition(b"a.publish/moved-3/4") == 3
    assert moved_partition(b"a.publish/7-moved-12-1/4") == 12
    assert moved_partition(b"moved-3/3/4") is None
    assert moved_partition(b"a.publish/3/4") is None
    assert moved_partition(b"a.publish/moved-3x/4") is None


def test_marks_move_with_their_place() -> None:
    """Marks of numbers alone; a client's name may have slashes."""
    assert moved_mark(sequence_mark(b"", b"desk/7"), 2) == b"sequence/moved-2/desk/7"
    assert moved_mark(sequence_mark(b"1", b"desk"), 2) == b"sequence/moved-2-1/desk"
    assert moved_mark(b"\0sowstream/input", 2) is None
    assert moved_mark(b"sequence", 2) is None


KEY = RESERVED + b"moved/orders_12"


def test_a_mark_names_the_topic() -> None:
    """The mark that `reshard` writes is recognised, and so is the one that earlier versions wrote."""
    key, value, headers = moved_record("orders_12")
    assert (key, value) == (KEY, None)
    assert moved_to(key, headers) == moved_to(key, tuple(headers)) == "orders_12"
    assert moved_to(KEY, [("version", b"1")]) == "orders_12"


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        removal_headers(1, "delete"),
        removal_headers(2, "expire"),
        [("version", b"2")],
        [("version", b"1"), (Name.MOVED_TO, b"another")],
        [("version", b"1"), (Name.MOVED_TO, b"orders_12"), ("dlq_reason", b"missing_key")],
        [(Name.MOVED_TO, b"orders_12")],
    ],
)
def test_no_other_tombstone_of_that_key_is_a_mark(headers) -> None:
    """A tombstone of a worker has a kind, and a dead letter has its reason: neither is a mark."""
    assert moved_to(KEY, headers) is None


@pytest.mark.parametrize("key", [None, b"", b"7", RESERVED + b"input", b"sowstream/moved/orders_12"])
def test_no_tombstone_of_another_key_is_a_mark(key) -> None:
    """A mark has its own key."""
    assert moved_to(key, moved_record("orders_12")[2]) is None


def test_the_header_of_a_mark_does_not_travel() -> None:
    """A publisher's header of that name goes onto no topic of ours."""
    passed = CommandReader("delta_publish").read([(Name.MOVED_TO, b"orders_12"), ("own", b"1")]).passed
    assert passed == [("own", b"1")]


def test_reserved_keys_are_refused() -> None:
    """A key that begins with the reserved text is refused; one with another beginning is not."""
    for key in (RESERVED, KEY):
        with pytest.raises(RecordRejected, match=r"missing_key: .* reserved"):
            refuse_reserved(key)
    for key in (b"", b"\0", b"\0sowstream", b"sowstream/", b"x" + KEY):
        refuse_reserved(key)
