"""The metadata of a committed offset has two parts; each is read back, and no other text is mistaken for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.hosting.commit_metadata import NOTE_BYTES_MAX, CommitMetadata, Ends, checked_note

OFFSETS = st.integers(0, 10**18 - 1)
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=200)


@given(st.builds(CommitMetadata, st.none() | st.builds(Ends, OFFSETS, OFFSETS), TEXTS))
def test_what_is_written_is_read_back(note):
    """Any ends of the outputs and any note of a processor come back from the text, alone or together."""
    assert CommitMetadata.read(str(note)) == note


def test_the_text_of_the_metadata_stays_as_older_workers_write_it():
    """The ends come first, then the note; metadata without either is empty."""
    assert str(CommitMetadata(Ends(60, 7), "")) == "sow 60 mark 7"
    assert str(CommitMetadata(None, "until 5")) == "sowstream noted until 5"
    assert str(CommitMetadata(Ends(60, 7), "until 5")) == "sow 60 mark 7 sowstream noted until 5"
    assert str(CommitMetadata(None, "")) == ""


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "reset by ops",
        "noted x",
        "reset; sowstream noted x",
        " sowstream noted x",
        "sow 5 mark 7sowstream noted x",
        "sow 5 mark 7 noted x",
        "sow 5 sowstream noted x",
    ],
)
def test_another_programs_text_is_no_note(text):
    """Metadata of other tools, empty or not, has no ends and no note."""
    assert CommitMetadata.read(text) == CommitMetadata(None, "")


def test_a_text_is_as_long_as_kafka_takes_for_certain():
    """The limit counts bytes, not characters; the message has both numbers."""
    longest = "é" * (NOTE_BYTES_MAX // 2)
    assert checked_note(longest) == longest
    with pytest.raises(ValueError, match=r"a note of 1,001 bytes; beside an input offset there is room for 1,000"):
        checked_note(longest + "x")


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_text_that_the_client_cannot_carry_is_refused(text):
    """A note with U+0000 would be cut there by Kafka's client."""
    with pytest.raises(ValueError, match=r"U\+0000|surrogates not allowed"):
        checked_note(text)
