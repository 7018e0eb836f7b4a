"""The input position: what is written, and where a partition begins by it and by the group's offset."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from processor.errors import PartitionHeld
from processor.runtime.recovery.input_position import Beginning, GroupOffset, InputPositions
from processor.wire.input_position import InputPosition

OURS = InputPosition("desk", "topic-1", 100, "seen 104")


@pytest.fixture
def positions() -> InputPositions:
    """Those of `orders`, whose input is `topic-1`."""
    made = InputPositions("desk", "orders", "orders.publish")
    made.topic_id = "topic-1"
    return made


def found(committed: int | None, note: str | None = None, *, oldest: int = 0, has_records: bool = True) -> GroupOffset:
    """What a restore knows of the input."""
    return GroupOffset(committed, note, oldest, has_records)


@pytest.mark.parametrize("position", [OURS, OURS._replace(note='sow 7 mark 8 sowstream noted é"')])
def test_what_is_written_is_read(position):
    """With any note; members that a later version adds do no harm."""
    written = bytes(position)
    assert InputPosition.read(written) == position
    assert InputPosition.read(written[:-1] + b',"more":1}') == position


@pytest.mark.parametrize("value", [None, b"", b"{}", b"7", b"[]", b"\xff", b'{"offset":"x"}', b"null"])
def test_anything_else_is_none(value):
    """As of a tombstone, or of somebody else."""
    assert InputPosition.read(value) is None


@pytest.mark.parametrize(
    ("what", "position", "begin"),
    [
        (found(None, has_records=False), None, Beginning(0, None)),
        (found(None, oldest=20, has_records=False), None, Beginning(20, None)),
        (found(100), None, Beginning(100, None)),
        (found(100, "sowstream noted a"), OURS, Beginning(100, "sowstream noted a")),
        (found(None), OURS, Beginning(100, "seen 104")),
        (found(90, "sow 7 mark 8"), OURS, Beginning(90, "sow 7 mark 8")),
        (found(120, "sow 7 mark 8"), OURS, Beginning(120, "sow 7 mark 8")),
        (found(120), OURS, Beginning(120, None)),
    ],
    ids=["new", "new, old input", "no position", "agree", "no group", "tail", "lag", "ahead"],
)
def test_where_it_begins(positions, what, position, begin):
    """A new group begins with the oldest record; a lost one where the outputs stand."""
    assert positions.begin(3, what, position) == begin


def test_a_group_that_is_ahead_is_told_of(positions):
    """Somebody skipped records, or an older version merged them; it is gone on with."""
    with capture_logs() as logs:
        positions.begin(3, found(120), OURS)
        positions.begin(3, found(100), OURS)
    assert [entry["offset"] for entry in logs] == [120]


@pytest.mark.parametrize(
    ("what", "position", "reason", "says"),
    [
        (found(None), None, "offsets_lost", "nothing says which input its outputs have"),
        (found(90), OURS, "offsets_lost", "somebody has set the group back"),
        (found(90, "sowstream noted a"), OURS, "offsets_lost", "somebody has set the group back"),
        (found(100), OURS._replace(topic_id="topic-0"), "offsets_lost", "another topic of this name"),
        (found(None), OURS._replace(topic_id="topic-0"), "offsets_lost", "as on a mirrored cluster"),
        (found(100), OURS._replace(application_id="old"), "offsets_lost", "by application_id 'old'"),
        (found(90, oldest=95), None, "input_gone", "sowstream offsets adopt orders --from earliest"),
        (found(None, oldest=101), OURS, "input_gone", "the oldest record kept is 101"),
    ],
)
def test_what_contradicts_itself_is_held(positions, what, position, reason, says):
    """With the command for each way out."""
    with pytest.raises(PartitionHeld, match=r"orders\.publish partition 3") as raised:
        positions.begin(3, what, position)
    assert raised.value.reason == reason
    assert says in str(raised.value)
    assert "sowstream offsets adopt orders --from" in str(raised.value)
