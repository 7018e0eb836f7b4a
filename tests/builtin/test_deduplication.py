"""Deduplication: a command that is sent twice is merged once."""

import pytest

from tests.builtin.merging import merging, rejected
from tests.builtin.reading import bodies, told


def numbered(sequence, body=None, client="desk", **headers):
    """A record of a client with its number."""
    return "7", body or {"n": int(sequence)}, {"client": client, "sequence": str(sequence), **headers}


def taken(driver):
    """The field `n` of every delta of the open transaction."""
    return [body["n"] for body in bodies(driver.pending_output("delta"))]


def test_a_number_not_above_the_highest_taken_is_a_duplicate():
    """It is skipped and counted; gaps do not matter, and 0 is a number."""
    driver = merging()
    driver.pipe_batch([numbered(n) for n in (0, 0, 5, 3, 5, 6, 1)])
    assert taken(driver) == [0, 5, 6]
    driver.commit()
    assert driver.events == {"duplicate": 4}
    assert driver.committed_offset == 7


def test_client_and_sequence_travel_as_they_were_sent():
    """The headers `client` and `sequence` go onto SOW and delta unchanged."""
    driver = merging()
    driver.pipe_batch([numbered("007", {"n": 1}), ("7", None, {"client": "desk", "sequence": "8"})])
    for role in ("sow", "delta"):
        assert [record.headers[-2:] for record in driver.pending_output(role)] == [
            [("client", b"desk"), ("sequence", b"007")],
            [("client", b"desk"), ("sequence", b"8")],
        ]


def test_every_client_counts_for_itself():
    """The numbers of a client are compared with its own only, and records without a sequence with none."""
    driver = merging()
    driver.pipe_batch(
        [numbered(9), numbered(1, client="other"), ("7", {"n": 2}, {"client": "desk"}), ("7", {"n": 3}, None)]
    )
    assert taken(driver) == [9, 1, 2, 3]


def test_a_repeat_is_dropped_in_a_later_batch():
    """A repeat is recognised in later batches as within one."""
    driver = merging()
    for n in (2, 1, 2, 3):
        driver.pipe_input(*numbered(n))
        driver.commit()
    assert driver.events == {"duplicate": 2}


@pytest.mark.parametrize("keep_store", [True, False])
def test_the_marks_survive_a_crash_with_and_without_the_disk(keep_store):
    """After a crash, as after a move to another worker, the marks are read back from their topic."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2)])
    driver.commit()
    driver.crash(keep_store=keep_store)
    driver.pipe_batch([numbered(2), numbered(3)])
    driver.commit()
    assert bodies(driver.read_output("sow")) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert driver.events == {"duplicate": 1}


def test_marks_that_were_not_committed_do_not_count():
    """A record of a rolled back transaction is no duplicate of itself."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2)])
    driver.abort()
    driver.commit()
    assert bodies(driver.read_output("sow")) == [{"n": 1}, {"n": 2}]
    assert driver.events == {}


def test_a_rejected_record_does_not_raise_the_mark():
    """A rejected record was not taken: its publisher may correct it and send it again under its number."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2, b"{"), numbered(2)])
    assert taken(driver) == [1, 2]


def test_a_delete_is_taken_too_also_one_of_nothing():
    """A delete raises the highest number of its client, also one of no record."""
    driver = merging()
    driver.pipe_batch([("8", None, {"client": "desk", "sequence": "4"}), numbered(4)])
    driver.commit()
    assert driver.events == {"delete_of_nothing": 1, "duplicate": 1}


def test_a_dead_letter_sent_again_is_not_held_against_the_marks():
    """Its number is far behind the mark, is taken all the same, and lowers nothing for later records."""
    driver = merging()
    driver.pipe_batch([numbered(5), numbered(2, replay_of="orders.publish/0/9"), numbered(4), numbered(6)])
    assert taken(driver) == [5, 2, 6]
    assert "replay_of" not in told(driver.pending_output("sow")[1])


def test_a_dead_letter_sent_again_that_is_ahead_raises_the_mark():
    """A dead letter that is sent again with a higher number raises the mark."""
    driver = merging()
    driver.pipe_batch([numbered(5, replay_of="orders.publish/0/9"), numbered(5)])
    assert taken(driver) == [5]


def test_records_without_kafka_key_are_not_taken_for_late_when_others_overtake_them():
    """They come by way of other partitions, and are compared with numbers from the same partition."""
    driver = merging()
    driver.pipe_input("7", {"n": 2}, {"client": "desk", "sequence": "2"})
    driver.pipe_input(None, {"id": 7, "n": 1}, {"client": "desk", "sequence": "1"})
    driver.pipe_input(None, {"id": 7, "n": 1}, {"client": "desk", "sequence": "1"})
    driver.commit()
    assert told(driver.read_output("publish")[0])["source"] == "orders.publish/0/1"
    driver.commit()
    assert [body["n"] for body in bodies(driver.read_output("sow"))] == [2, 1]
    assert driver.events == {"rekeyed": 2, "duplicate": 1}
    assert "source" not in told(driver.read_output("sow")[1])


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "+1", " 1", "٣", str(2**63), "9" * 30])
def test_a_number_that_is_none_is_rejected(text):
    """A sequence that is not of 63 bits, not negative and of digits only is rejected."""
    driver = merging()
    driver.pipe_input("7", {"id": 7}, {"client": "desk", "sequence": text})
    assert [reason for reason, _ in rejected(driver)] == ["bad_header"]


@pytest.mark.parametrize(
    "headers", [{"sequence": "1"}, {"sequence": "1", "client": ""}, {"client": "x" * 1025}, {"client": b"\xff"}]
)
def test_a_number_needs_a_client(headers):
    """A sequence needs a client whose name is UTF-8, not empty and not too long."""
    driver = merging()
    driver.pipe_input("7", {"id": 7}, headers)
    assert [reason for reason, _ in rejected(driver)] == ["bad_header"]


@pytest.mark.parametrize(
    "source", ["orders.publish/x/1", "orders.publish/" + "1" * 1000 + "/1", "orders.publish/", "x/1/1"]
)
def test_a_source_that_no_worker_wrote_makes_no_mark_of_its_own(source):
    """A publisher may write any `source`; its number then counts as one that came in here."""
    driver = merging()
    driver.pipe_batch([numbered(5, source=source), numbered(5)])
    assert taken(driver) == [5]
    driver.commit()
    assert [record.key for record in driver.read_output("mark")] == [b"sequence//desk"]
