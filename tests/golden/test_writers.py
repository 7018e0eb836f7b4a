"""The writers of this checkout write the bytes of the newest release for the same history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden.golden_files import NEWEST, golden_messages, golden_texts, golden_topic, topic_names
from tests.golden.messages import messages
from tests.golden.texts import texts
from tests.golden.topics import topics

if TYPE_CHECKING:
    from processor.record import Record

_OF_THIS_VERSION = {b"compared", b"definition"}
"""Marks of a view: one has a random number of the process that wrote it, and the fingerprint has the version of the law
of its keys, by which a worker refuses the rows of an older one (`builtin/view/test_equal_groups.py`)."""

_ADDED = {"numbers"}
"""Headers that were added since the release, which ignores them: the refused numbers of a mark."""


@pytest.fixture(scope="module")
def written() -> dict[str, list[Record]]:
    """The topics that this checkout writes."""
    return topics()


@pytest.mark.parametrize("name", topic_names(NEWEST))
def test_the_writers_write_the_golden_bytes(written: dict[str, list[Record]], name: str) -> None:
    """Key, value and headers of each record are those of the release, in the same order."""
    assert comparable(written[name]) == comparable(golden_topic(NEWEST, name))


def test_each_topic_that_is_written_has_a_golden_file(written: dict[str, list[Record]]) -> None:
    """The golden history has no topic without a file."""
    assert sorted(written) == topic_names(NEWEST)


def test_the_codecs_write_the_golden_messages() -> None:
    """The message of each type is that of the release."""
    assert comparable(messages()) == comparable(golden_messages(NEWEST))


def test_bookmarks_and_offset_metadata_are_the_golden_texts() -> None:
    """Bookmarks of clients and of the gateway, and the metadata of offsets, are those of the release."""
    assert texts() == golden_texts(NEWEST)


def comparable(records: list[Record]) -> list[object]:
    """Return the bytes of records, without those of this process or version, and those that the release lacks."""
    return [
        (
            key,
            None if key in _OF_THIS_VERSION else value,
            [header for header in headers or () if header[0] not in _ADDED] or None,
            offset,
        )
        for key, value, headers, offset, _ in records
    ]
