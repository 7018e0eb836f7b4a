"""Tests of the input position: its format, and the beginning of a partition by position and group offset."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from processor.errors import PartitionHeld
from processor.runtime.recovery.input_position import Beginning, GroupOffset, InputPositions
from processor.wire.partition_marks import InputPosition

OURS = InputPosition("desk", "topic-1", 100, "seen 104")


@pytest.fixture
def positions() -> InputPositions:
    """Create the positions of `orders`, whose input is `topic-1`."""
    created = InputPositions("desk", "orders", "orders.publish")
    created.topic_id = "topic-1"
    return created


def group_offset(
    committed: int | None, note: str | None = None, *, oldest: int = 0, has_records: bool = True
) -> GroupOffset:
    """Create a group offset."""
    return GroupOffset(committed, note, oldest, has_records)


@pytest.mark.parametrize("position", [OURS, OURS._replace(note='sow 7 mark 8 sowstream noted é"')])
def test_a_written_position_is_read_back(position):
    """Any note is read back, and members that a later version adds are ignored."""
    written = bytes(position)
    assert InputPosition.read(written) == position
    assert InputPosition.read(written[:-1] + b',"more":1}') == position


@pytest.mark.parametrize("value", [None, b"", b"{}", b"7", b"[]", b"\xff", b'{"offset":"x"}', b"null"])
def test_another_value_is_no_position(value):
    """Tombstones and values of other programs are no positions."""
    assert InputPosition.read(value) is None


@pytest.mark.parametrize(
    ("what", "position", "begin"),
    [
        (group_offset(None, has_records=False), None, Beginning(0, None)),
        (group_offset(None, oldest=20, has_records=False), None, Beginning(20, None)),
        (group_offset(100), None, Beginning(100, None)),
        (group_offset(100, "sowstream noted a"), OURS, Beginning(100, "sowstream noted a")),
        (group_offset(None), OURS, Beginning(100, "seen 104")),
        (group_offset(90, "sow 7 mark 8"), OURS, Beginning(90, "sow 7 mark 8")),
        (group_offset(120, "sow 7 mark 8"), OURS, Beginning(120, "sow 7 mark 8")),
        (group_offset(120), OURS, Beginning(120, None)),
    ],
    ids=["new", "new, old input", "no position", "agree", "no group", "tail", "lag", "ahead"],
)
def test_the_beginning_by_group_offset_and_position(positions, what, position, begin):
    """A new group begins with the oldest record; without an offset a group begins at the position."""
    assert positions.begin(3, what, position) == begin


def test_a_group_ahead_of_the_position_is_logged(positions):
    """Records were skipped, or merged by an older version: the partition goes on with a warning."""
    with capture_logs() as logs:
        positions.begin(3, group_offset(120), OURS)
        positions.begin(3, group_offset(100), OURS)
    assert [entry["offset"] for entry in logs] == [120]


@pytest.mark.parametrize(
    ("what", "position", "reason", "says"),
    [
        (group_offset(None), None, "offsets_lost", "nothing says which input its outputs have"),
        (group_offset(90), OURS, "offsets_lost", "somebody has set the group back"),
        (group_offset(90, "sowstream noted a"), OURS, "offsets_lost", "somebody has set the group back"),
        (group_offset(100), OURS._replace(topic_id="topic-0"), "offsets_lost", "another topic of this name"),
        (group_offset(None), OURS._replace(topic_id="topic-0"), "offsets_lost", "as on a mirrored cluster"),
        (group_offset(100), OURS._replace(application_id="old"), "offsets_lost", "by application_id 'old'"),
        (group_offset(90, oldest=95), None, "input_gone", "sowstream offsets adopt orders --from earliest"),
        (group_offset(None, oldest=101), OURS, "input_gone", "the oldest record kept is 101"),
    ],
)
def test_a_partition_with_contradictory_positions_is_held(positions, what, position, reason, says):
    """The error message has a command for each way out."""
    with pytest.raises(PartitionHeld, match=r"orders\.publish partition 3") as raised:
        positions.begin(3, what, position)
    assert raised.value.reason == reason
    assert says in str(raised.value)
    assert "sowstream offsets adopt orders --from" in str(raised.value)
