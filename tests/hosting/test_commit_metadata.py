"""Tests of the metadata of committed offsets, and of the redelivered records that they prove."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.config import Config
from processor.hosting.commit_metadata import NOTE_BYTES_MAX, CommitMetadata, Ends, Redelivered, checked_note
from processor.kafka.clients.staged_producer import PauseDetector
from processor.record import Record
from processor.runtime.recovery.log_replay import MarkReplay, SowReplay
from processor.store.layered_state import LayeredState
from processor.store.marks import OWN_NAMES, TransactionalMarks
from processor.store.memory import MemoryStore

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


def sow(offset, source, key=b"7", value=b"{}"):
    """Create the SOW record of an input record."""
    return Record(key, value, [("version", b"1"), ("source", b"orders.publish/0/%d" % source)], offset, 1)


@pytest.mark.parametrize("text", [None, "", "sow 5", "mark 5", "sow -1 mark 2", "x sow 1 mark 2"])
def test_only_metadata_with_ends_has_redelivered_records(text):
    """After a transaction, or with metadata of other programs, there are no redelivered records."""
    assert Redelivered.from_metadata(5, text) is None


def test_sow_records_behind_the_noted_end_are_redelivered():
    """Deletes count too; SOW records before the end, or of committed input, do not."""
    redelivered = Redelivered.from_metadata(100, str(CommitMetadata(Ends(50, 7), "")))
    assert (redelivered.position, redelivered.mark_position, redelivered.until) == (50, 7, -1)
    expired = Record(b"9", None, [("version", b"3"), ("kind", b"expire")], 52, 1)
    redelivered.take([sow(49, 101), sow(50, 99), sow(51, 100), expired, sow(53, 103, b"8", None)])
    assert redelivered.applied == {100: [b"7"], 103: [b"8"]}
    assert redelivered.until == 103


def test_a_delete_with_an_invalid_source_is_ignored():
    """A restore accepts deletes with any headers."""
    redelivered = Redelivered.from_metadata(100, str(CommitMetadata(Ends(50, 7), "")))
    texts = (None, b"", b"somewhere", b"orders.publish/0/-1", b"9" * 5000)
    redelivered.take([Record(b"7", None, [("source", text)], 51, 1) for text in texts])
    assert redelivered.applied == {}


def test_sow_is_read_from_the_noted_end_even_if_the_state_is_ahead():
    """An interrupted restore leaves the state at the end of SOW, but loses the redelivered offsets."""
    state = LayeredState(MemoryStore(), cache_bytes=1_000)
    state.restore({}, 60, 1)
    redelivered = Redelivered(100, 50, 0)
    log = SowReplay("orders.sow", 0, state, redelivered)
    log.target = 60
    assert (log.position, log.wipe_if_stale(1e15)) == (50, None)
    log.take([sow(50, 100), sow(55, 101)])
    log.finish(60)
    assert (log.position, state.position, redelivered.until) == (60, 60, 101)


def test_marks_behind_the_noted_end_are_left_out():
    """These marks are created again with their input; marks in memory that may include them are dropped."""
    marks = TransactionalMarks()
    marks.restore([(b"a", b"9")], 8)
    log = MarkReplay("orders.mark", 0, marks, Redelivered(100, 50, 7))
    assert log.position == 0
    log.take([Record(b"a", b"1", None, 3, 1), Record(b"a", b"9", None, 7, 1), Record(b"b", b"9", None, 8, 1)])
    log.finish(9)
    assert (marks.get(b"a"), marks.get(b"b"), marks.position) == (b"1", None, 9)


def test_marks_of_ours_behind_the_noted_end_count():
    """A fence, or a position of another engine, was written by no worker that has died, and comes only once."""
    marks = TransactionalMarks()
    log = MarkReplay("orders.mark", 0, marks, Redelivered(100, 50, 7))
    log.take([Record(name, b"9", None, 7 + number, 1) for number, name in enumerate((*OWN_NAMES, b"sequence//a"))])
    log.finish(10)
    assert [marks.get(name) for name in (*OWN_NAMES, b"sequence//a")] == [b"9", b"9", b"9", None]


def test_at_least_once_requires_source_headers():
    """Redelivered records are recognised by the source header: switching it off is refused."""
    assert Config(guarantee="at_least_once", topics={"orders": {}}).topics["orders"].source_header
    assert not Config(topics={"orders": {}}).topics["orders"].source_header
    with pytest.raises(ValueError, match=r"topics\.orders\.source_header: guarantee at_least_once needs it"):
        Config(guarantee="at_least_once", topics={"orders": {"source_header": False}})


def test_a_pause_detector_counts_pauses_of_the_process_only():
    """A pause of the process is reported once; a busy thread is no pause."""
    now_s = [100.0]
    pulse = PauseDetector(2.0, clock_s=lambda: now_s[0])
    for later_s, pauses in ((1.9, 0), (1.9, 0), (2.1, 1), (0.0, 1), (1.0, 1), (9.0, 2)):
        now_s[0] += later_s
        assert pulse.pauses == pauses
    pulse.close()
