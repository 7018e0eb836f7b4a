"""What a worker without transactions notes beside its offsets, and what its successor makes of it."""

import pytest

from processor.config import Config
from processor.hosting.commit_metadata import CommitMetadata, Ends
from processor.kafka.pause_detector import PauseDetector
from processor.record import Record
from processor.runtime.recovery.log_replay import MarkLog, SowLog
from processor.runtime.recovery.redelivered import Redelivered
from processor.store.layered_state import LayeredState
from processor.store.marks import TransactionalMarks
from processor.store.memory import MemoryStore


def sow(offset, source, key=b"7", value=b"{}"):
    """A SOW record of an input record."""
    return Record(key, value, [("version", b"1"), ("source", b"orders.publish/0/%d" % source)], offset, 1)


@pytest.mark.parametrize("text", [None, "", "sow 5", "mark 5", "sow -1 mark 2", "x sow 1 mark 2"])
def test_only_a_note_of_ours_is_one(text):
    """After a transaction there is none; another program may write what it likes."""
    assert Redelivered.from_metadata(5, text) is None


def test_what_lies_behind_the_note_and_comes_again_is_applied():
    """Deletes too; not what lies before the note, nor what comes from input that is committed."""
    redelivered = Redelivered.from_metadata(100, str(CommitMetadata(Ends(50, 7), "")))
    assert (redelivered.position, redelivered.mark_position, redelivered.until) == (50, 7, -1)
    expired = Record(b"9", None, [("version", b"3"), ("kind", b"expire")], 52, 1)
    redelivered.take([sow(49, 101), sow(50, 99), sow(51, 100), expired, sow(53, 103, b"8", None)])
    assert redelivered.applied == {100: [b"7"], 103: [b"8"]}
    assert redelivered.until == 103


def test_a_delete_with_a_source_that_no_worker_wrote_tells_nothing():
    """A delete is taken whatever its headers say; a restore does not die of them."""
    redelivered = Redelivered.from_metadata(100, str(CommitMetadata(Ends(50, 7), "")))
    texts = (None, b"", b"somewhere", b"orders.publish/0/-1", b"9" * 5000)
    redelivered.take([Record(b"7", None, [("source", text)], 51, 1) for text in texts])
    assert redelivered.applied == {}


def test_sow_is_read_from_the_note_on_though_the_state_is_further():
    """A restore that was cut short left the state at the end of SOW, and what it learned is gone."""
    state = LayeredState(MemoryStore(), cache_bytes=1_000)
    state.restore({}, 60, 1)
    redelivered = Redelivered(100, 50, 0)
    log = SowLog("orders.sow", 0, state, redelivered)
    log.target = 60
    assert (log.position, log.wipe_if_stale(1e15)) == (50, None)
    log.take([sow(50, 100), sow(55, 101)])
    log.finish(60)
    assert (log.position, state.position, redelivered.until) == (60, 60, 101)


def test_marks_behind_the_note_are_left_out():
    """They come again with their input; those in memory that may be of them are forgotten first."""
    marks = TransactionalMarks()
    marks.restore([(b"a", b"9")], 8)
    log = MarkLog("orders.mark", 0, marks, Redelivered(100, 50, 7))
    assert log.position == 0
    log.take([Record(b"a", b"1", None, 3, 1), Record(b"a", b"9", None, 7, 1), Record(b"b", b"9", None, 8, 1)])
    log.finish(9)
    assert (marks.get(b"a"), marks.get(b"b"), marks.position) == (b"1", None, 9)


def test_at_least_once_tells_the_source_of_every_sow_record():
    """It is what a record that comes again is recognised by: to switch it off is refused."""
    assert Config(guarantee="at_least_once", topics={"orders": {}}).topics["orders"].source_header
    assert not Config(topics={"orders": {}}).topics["orders"].source_header
    with pytest.raises(ValueError, match=r"topics\.orders\.source_header: guarantee at_least_once needs it"):
        Config(guarantee="at_least_once", topics={"orders": {"source_header": False}})


def test_a_pulse_counts_pauses_of_the_process_and_no_busy_thread():
    """Whoever asks first after a pause is told of it, once."""
    now_s = [100.0]
    pulse = PauseDetector(2.0, clock_s=lambda: now_s[0])
    for later_s, pauses in ((1.9, 0), (1.9, 0), (2.1, 1), (0.0, 1), (1.0, 1), (9.0, 2)):
        now_s[0] += later_s
        assert pulse.pauses == pauses
    pulse.close()
