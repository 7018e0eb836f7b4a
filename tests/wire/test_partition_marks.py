"""The marks of a partition and of a moved topic: no version comes twice, and no publisher's record is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from processor.wire.partition_marks import (
    LIVES_NAME,
    RESERVE,
    Lives,
    LivesMark,
    first_version,
    highest_version,
    mark_above,
)
from processor.wire.record_headers import removal_headers


class Marks(dict[bytes, bytes]):
    """The marks of a partition."""

    put = dict.__setitem__


EVENTS = st.lists(st.sampled_from(["update", "delete", "expire", "other", "restart", "new topic"]), max_size=60)


@given(EVENTS, st.sampled_from([0, 7, 10**9]))
def test_versions_grow_over_all_lives_of_a_key(events: list[str], begin: int):
    """Each version of a key is above all before it, with a command for each offset, restarts and new input topics."""
    marks, topic, offset, last = Marks(), 0, begin, 0
    live: int | None = None
    lives = Lives(marks, "0")
    lives.is_used = True
    for event in events:
        if event == "restart":  # The mark of what came before was committed with it.
            lives = Lives(marks, str(topic))
            lives.is_used = True
            continue
        if event == "new topic":
            topic, offset = topic + 1, 0
            lives = Lives(marks, str(topic))
            lives.is_used = True
            continue
        if event == "expire":  # By the clock: no command has this end.
            if live is not None:
                assert live + 1 > last
                last, live = live + 1, None
                lives.end(b"7", last)
                lives.settle(offset)
            continue
        if event == "update":
            live = lives.first_version(b"7", offset) if live is None else live + 1
            assert live > last
            last = live
        elif event == "delete" and live is not None:
            last, live = live + 1, None
            lives.end(b"7", last)
        offset += 1
        lives.settle(offset)
    if topic == 0:
        assert lives.base == 0, "the rule alone is enough where offsets go on"


def test_the_rule_has_room_for_an_expiry_between_two_commands():
    """A life that is inserted and expires between two neighbouring offsets ends below the next life."""
    assert first_version(0, 10) + 1 < first_version(0, 11)


@pytest.mark.parametrize("written", [1, 1000])
def test_a_life_that_ended_above_the_rule_raises_the_base_for_all_later_ones(written: int):
    """A record of a tool or plug-in may have any version; after its end, lives begin above it, also after a restart."""
    marks = Marks()
    lives = Lives(marks, "t")
    lives.end(b"7", 2 * 5 + written)
    assert lives.first_version(b"7", 5) == max(11, 2 * 5 + written + 1)
    lives.settle(6)
    again = Lives(marks, "t")
    assert again.first_version(b"7", 6) == max(13, 2 * 5 + written + 1)


def test_the_mark_is_written_once_in_a_million_offsets():
    """Versions are reserved in advance, so that an insert writes no mark."""
    marks = Marks()
    lives = Lives(marks, "t")
    lives.is_used = True
    lives.settle(1)
    assert LivesMark.read(marks.pop(LIVES_NAME)) == LivesMark("t", 0, RESERVE)
    for offset in (2, 1000, RESERVE // 2):
        lives.settle(offset)
        assert not marks
    lives.settle(RESERVE // 2 + 1)
    assert LivesMark.read(marks[LIVES_NAME]) == LivesMark("t", 0, 2 * RESERVE)


def test_a_copy_and_an_idle_partition_write_no_mark():
    """A processor that begins no life, and one without input, change nothing."""
    marks = Marks()
    Lives(marks, "t").settle(5)
    lives = Lives(marks, "t")
    lives.is_used = True
    lives.settle(0)
    assert not marks


def test_an_unknown_topic_is_the_one_of_the_mark():
    """Where the id of the input topic cannot be asked for, the base stays, and so does the id in the mark."""
    marks = Marks({LIVES_NAME: bytes(LivesMark("t", 40, 50))})
    lives = Lives(marks)
    assert lives.first_version(b"7", 0) == 41
    lives.settle(100)
    assert LivesMark.read(marks[LIVES_NAME]) == LivesMark("t", 40, RESERVE)


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[]", b"\xff", b'{"topic_id":"t","base":"x","reserved":1}'])
def test_a_value_that_is_no_mark_is_none(value: bytes | None):
    """A mark in another form counts as none."""
    assert LivesMark.read(value) is None


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**6),
    st.none()
    | st.builds(LivesMark, st.sampled_from(["t", "other", ""]), st.integers(0, 10**9), st.integers(0, 10**12)),
)
def test_a_tool_writes_a_mark_above_all_versions(used: int, offset: int, before: LivesMark | None):
    """Lives begin above the version named, and never below where they would begin without the tool."""
    mark = mark_above(used, "t", offset, before)
    marks = Marks({LIVES_NAME: bytes(mark)})
    assert Lives(marks, "t").first_version(b"7", offset) > max(used, highest_version(before, "t", offset))
    assert mark.reserved >= highest_version(mark, "t", offset)


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
