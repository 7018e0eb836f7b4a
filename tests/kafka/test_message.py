"""Messages of one partition become records, up to the first that cannot."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from processor.kafka.message import readable_records


class Damaged:
    """A message that cannot be converted, as a client's library might return it."""

    def key(self) -> bytes:
        """Fail."""
        raise SystemError("no such object")

    def offset(self) -> int:
        """Its offset."""
        return 9


def message(offset: int) -> Message:
    """A message at an offset."""
    return Message(topic="t", partition=0, offset=offset, key=b"k", value=b"v", timestamp=(1, 5))


def test_records_before_one_that_cannot_be_converted_are_returned_with_the_reason() -> None:
    """An exception of the client is a problem of one record, whose offset is named."""
    converted, problem = readable_records([message(7), message(8), Damaged(), message(10)], 11)  # type: ignore[list-item]
    assert [record.offset for record in converted] == [7, 8]
    assert problem == "the record at offset 9 cannot be converted: SystemError('no such object')"


@pytest.mark.parametrize(
    ("offsets", "end", "readable", "wrong"),
    [
        ([1, 2, 3], 4, [1, 2, 3], None),
        ([1, 5, 9], 20, [1, 5, 9], None),
        ([1, 2], -1001, [1, 2], None),
        ([3, 4, 4], 6, [3], 4),
        ([2, 4, 3], 6, [2], 3),
        ([1, 3, 2, 4], 6, [1, 3, 2, 4], None),
        ([4, 3], 6, [], 3),
        ([4, 700], 5, [4], 700),
        ([700], 5, [], 700),
    ],
)
def test_offsets_that_no_record_can_have_end_the_records(
    offsets: list[int], end: int, readable: list[int], wrong: int | None
) -> None:
    """A gap is left by compaction or markers; an unknown end is negative; a broker may pass on any offset.

    Disorder is seen where it would move the position: not where later records make up for it.
    """
    converted, problem = readable_records([message(offset) for offset in offsets], end)
    assert [record.offset for record in converted] == readable
    assert (wrong is None) == (problem == "")
    assert problem == "" or f"its offset is {wrong}," in problem
