"""No version of a key is used twice, over any lives, restarts and input topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.wire.partition_marks import (
    LIVES_NAME,
    RESERVE,
    Lives,
    LivesMark,
    first_version,
    highest_version,
    mark_above,
)


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
