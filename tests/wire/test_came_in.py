"""The place where a forwarded command came in, through one topic and through several."""

from __future__ import annotations

import pytest

from processor.wire.came_in import came_in, forwarded_header, moved_headers, moved_mark, moved_partition, sequence_mark

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
