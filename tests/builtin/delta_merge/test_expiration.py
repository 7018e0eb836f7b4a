"""Expiration: when a record ends, how subscribers learn of it, and how updates at its end are merged."""

import pytest

from processor.record import Stored
from tests.builtin.merging import bodies, kinds, merging, rejected, told

TEN_S = {"expiration": "10"}


def test_a_record_ends_when_its_time_is_over_and_not_before():
    """A record that expires gets a tombstone and a delta of kind `expire` with its key fields and the next version."""
    driver = merging()
    driver.pipe_input("7", {"id": 7, "a": 1}, TEN_S)
    driver.commit()
    driver.advance_time(9_999)
    assert driver.pending_output("sow") == []
    driver.advance_time(1)
    [sow], [delta] = driver.pending_output("sow"), driver.pending_output("delta")
    assert (sow.key, sow.value, delta.key, delta.value) == (b"7", None, b"7", b'{"id":7}')
    assert sow.headers == delta.headers == [("version", b"2"), ("kind", b"expire")]
    driver.commit()
    assert driver.events == {"expired": 1}
    assert driver.state.get_many([b"7"]) == {b"7": None}
    driver.advance_time(100_000)
    assert driver.pending_output("sow") == []


def test_the_sow_record_says_when_it_ends():
    """The SOW record has the time of its end in milliseconds since the epoch; its delta has not."""
    driver = merging(expiration="1m")
    driver.pipe_input("7", {"id": 7})
    [sow], [delta] = driver.pending_output("sow"), driver.pending_output("delta")
    end_ms = driver.now_ms + 60_000
    assert told(sow)["expires_at"] == str(end_ms)
    assert "expires_at" not in told(delta)
    assert driver.state.get_many([b"7"]) == {b"7": Stored(1, b'{"id":7}', end_ms)}


@pytest.mark.parametrize("command", ["publish", "delta_publish"])
def test_every_publish_and_every_delta_restarts_it(command):
    """Every publish and every delta restarts the time to live, also one that changes nothing."""
    driver = merging(expiration=10)
    driver.pipe_input("7", {"id": 7})
    driver.advance_time(9_000)
    driver.pipe_input("7", {"id": 7}, {"command": command})
    driver.advance_time(9_999)
    assert kinds(driver.pending_output("sow")) == [("7", "1", "insert"), ("7", "2", None)]
    driver.advance_time(1)
    assert kinds(driver.pending_output("sow"))[2:] == [("7", "3", "expire")]


@pytest.mark.parametrize(
    ("topic", "headers", "ttl_ms"),
    [
        ({}, {}, None),
        ({"expiration": 5}, {}, 5000),
        ({"expiration": "250ms"}, {}, 250),
        ({"expiration": 5}, {"expiration": "7"}, 7000),
        ({}, {"expiration": "0.5"}, 500),
        ({}, {"expiration": "0.0001"}, 1),
        ({"expiration": 5}, {"expiration": "0"}, None),
        ({"expiration": 5}, {"expiration": "0.0"}, None),
    ],
)
def test_the_header_beats_the_topic_and_zero_is_never(topic, headers, ttl_ms):
    """Parts of a millisecond are rounded up: no record ends early, and a very short life is not for ever."""
    driver = merging(**topic)
    driver.pipe_input("7", {"id": 7}, headers)
    ends = told(driver.pending_output("sow")[0]).get("expires_at")
    assert ends == (None if ttl_ms is None else str(driver.now_ms + ttl_ms))


def test_a_very_short_life_is_not_for_ever():
    """A tenth of a millisecond becomes one millisecond, by the topic's setting and by the header."""
    driver = merging(expiration=0.0001)
    driver.pipe_batch([("7", {"id": 7}, None), ("8", {"id": 8}, {"expiration": "0.0001"})])
    assert [told(record)["expires_at"] for record in driver.pending_output("sow")] == [str(driver.now_ms + 1)] * 2


def test_a_full_publish_without_header_takes_the_topics_time_to_live():
    """A full publish without header `expiration` ends the record's own time to live; the topic's holds again."""
    driver = merging()
    driver.pipe_batch([("7", {"id": 7}, TEN_S), ("7", {"id": 7, "a": 1}, {"command": "publish"})])
    assert told(driver.pending_output("sow")[1]) == {"version": "2"}
    driver.advance_time(20_000)
    assert len(driver.pending_output("sow")) == 2


@pytest.mark.parametrize("keep_store", [None, True, False], ids=["same process", "kept disk", "lost disk"])
@pytest.mark.parametrize(("topic_s", "own"), [(None, "10"), (60, "10"), (60, "0"), (60, "2.5")])
def test_a_delta_without_header_restarts_the_records_own_time_to_live(keep_store, topic_s, own):
    """A delta without header `expiration` keeps the record's own time to live and counts it from the delta on."""
    driver = merging(expiration=topic_s)
    driver.pipe_input("7", {"id": 7}, {"expiration": own})
    driver.commit()
    if keep_store is not None:
        driver.write()
        driver.crash(keep_store=keep_store)
    driver.advance_time(1_000)
    driver.pipe_input("7", {"a": 1})
    headers = told(driver.pending_output("sow")[0])
    own_ms = int(float(own) * 1000)
    assert headers["expiration"] == own
    assert headers.get("expires_at") == (str(driver.now_ms + own_ms) if own_ms else None)
    driver.advance_time(own_ms or 120_000)
    assert len(driver.pending_output("sow")) == (2 if own_ms else 1)


def test_a_time_to_live_that_is_the_topics_is_not_repeated_on_the_record():
    """A SOW record has header `expiration` only where its time to live differs from the topic's."""
    driver = merging(expiration=10)
    driver.pipe_input("7", {"id": 7}, TEN_S)
    assert set(told(driver.pending_output("sow")[0])) == {"version", "kind", "expires_at"}


@pytest.mark.parametrize(
    "text", ["", "-1", "1e3", "+5", " 5", "inf", "nan", ".5", "5.", "٣", "1_0", "9999999999", "9" * 40]
)
def test_an_expiration_that_is_no_number_of_seconds_is_rejected(text):
    """A header that is no number of seconds, or more than a hundred years, is rejected."""
    driver = merging()
    driver.pipe_input("7", {"id": 7}, {"expiration": text})
    [(reason, detail)] = rejected(driver)
    assert (reason, detail.startswith("header expiration is ")) == ("bad_header", True)


def test_records_end_in_order_of_due_time():
    """Records expire in order of due time, for any order of their keys and last updates."""
    driver = merging()
    lives = {"a": 3, "b": 1, "c": 4, "d": 2}
    driver.pipe_batch([(key, {"id": key}, {"expiration": str(s)}) for key, s in lives.items()])
    driver.commit()
    driver.advance_time(10_000)
    assert [record.key for record in driver.pending_output("sow")] == [b"b", b"d", b"a", b"c"]


def test_many_that_end_together_end_in_several_turns():
    """Input is processed between the turns, and no due record is left out."""
    driver = merging(expiration=1)
    driver.pipe_batch([(str(n), {"id": n}, None) for n in range(5_000)])
    driver.commit()
    turns = []
    driver.advance_time(1_000)
    while len(driver.pending_output("sow")) < 5_000:
        turns.append(len(driver.pending_output("sow")))
        driver.advance_time(0)
    assert len(turns) >= 2
    assert len({record.key for record in driver.pending_output("sow")}) == 5_000


def test_an_update_published_after_the_end_begins_a_new_record():
    """An update published after the end of a record first expires it and then inserts: nothing is merged."""
    driver = merging()
    driver.pipe_input("7", {"id": 7, "a": 1}, TEN_S)
    driver.now_ms += 10_000  # The clock is there, the punctuation is not yet.
    driver.pipe_input("7", {"b": 1})
    assert kinds(driver.pending_output("sow")) == [("7", "1", "insert"), ("7", "2", "expire"), ("7", "3", "insert")]
    assert bodies(driver.pending_output("delta")) == [{"id": 7, "a": 1}, {"id": 7}, {"b": 1}]
    driver.commit()
    assert driver.events == {"expired": 1}


def test_a_delete_after_the_end_deletes_nothing():
    """A record that expired cannot be deleted any more."""
    driver = merging()
    driver.pipe_input("7", {"id": 7}, TEN_S)
    driver.now_ms += 10_000
    driver.pipe_input("7", None)
    driver.commit()
    assert [told(record).get("kind") for record in driver.read_output("sow")] == ["insert", "expire"]
    assert driver.events == {"expired": 1, "delete_of_nothing": 1}


def test_a_publisher_whose_clock_is_ahead_ends_nothing_early():
    """An update counts as published now at the latest."""
    driver = merging()
    driver.pipe_input("7", {"id": 7, "a": 1}, TEN_S)
    driver.input.append(driver.input[0]._replace(offset=1, value=b'{"b":1}', timestamp_ms=driver.now_ms + 60_000))
    driver.feed()
    assert bodies(driver.pending_output("sow"))[1] == {"id": 7, "a": 1, "b": 1}


def test_a_backlog_ends_nothing_that_it_keeps_alive():
    """After an outage a delta published in time finds its record, and one published too late finds none."""
    driver = merging()
    driver.pipe_batch([("in time", {"a": 1}, TEN_S), ("late", {"a": 1}, TEN_S), ("quiet", {"a": 1}, TEN_S)])
    driver.commit()
    begun_ms = driver.now_ms
    driver.crash(feed=False)
    driver.now_ms = begun_ms + 3_600_000
    for key, after_ms in (("in time", 9_000), ("other", 9_500), ("late", 10_000)):
        offset = len(driver.input)
        driver.input.append(driver.input[0]._replace(
            key=key.encode(), value=b'{"b":1}', headers=None, offset=offset, timestamp_ms=begun_ms + after_ms
        ))  # fmt: skip
    # One at a time, with the clock looked at in between: it says that all three are over.
    for _ in range(3):
        driver.feed(1)
        driver.advance_time(0)
    assert bodies(driver.pending_output("sow")[:2]) == [{"a": 1, "b": 1}, {"b": 1}]
    assert kinds(driver.pending_output("sow")[2:]) == [
        ("late", "4", "expire"), ("late", "11", "insert"), ("quiet", "6", "expire"),
    ]  # fmt: skip


def test_a_record_with_a_time_ahead_ends_no_other_one():
    """The timestamp of one record says nothing about the records that wait behind it."""
    driver = merging()
    driver.pipe_batch([("7", {"a": 1}, TEN_S)])
    driver.commit()
    begun_ms = driver.now_ms
    driver.crash(feed=False)
    driver.now_ms = begun_ms + 3_600_000
    for key, timestamp_ms in (("other", begun_ms + 21_000), ("7", begun_ms + 5_000)):
        driver.input.append(driver.input[0]._replace(
            key=key.encode(), value=b'{"b":1}', headers=None, offset=len(driver.input), timestamp_ms=timestamp_ms
        ))  # fmt: skip
    for _ in range(2):
        driver.feed(1)
        driver.advance_time(0)
    assert bodies(driver.pending_output("sow")) == [{"b": 1}, {"a": 1, "b": 1}]
    driver.commit()
    driver.advance_time(10_000)
    assert kinds(driver.pending_output("sow")) == [("7", "3", "expire")]


@pytest.mark.parametrize("keep_store", [True, False])
def test_records_due_while_no_worker_ran_expire_in_order(keep_store):
    """The time of the end is kept in the store and on the SOW topic."""
    driver = merging()
    driver.pipe_batch([(key, {"id": key}, {"expiration": str(s)}) for key, s in (("a", 3), ("b", 1), ("c", 60))])
    driver.commit()
    driver.write()
    driver.now_ms += 10_000
    driver.crash(keep_store=keep_store)
    driver.advance_time(0)
    assert kinds(driver.pending_output("sow")) == [("b", "4", "expire"), ("a", "2", "expire")]


def test_an_end_that_is_rolled_back_comes_again():
    """A rolled back transaction loses no expiry: it is written again."""
    driver = merging()
    driver.pipe_input("7", {"id": 7}, TEN_S)
    driver.commit()
    driver.advance_time(10_000)
    driver.abort()
    assert driver.pending_output("sow") == []
    driver.advance_time(0)
    assert kinds(driver.pending_output("sow")) == [("7", "2", "expire")]


def test_a_rejected_update_does_not_restart_it():
    """A rejected update does not restart the time to live."""
    driver = merging(expiration=10)
    driver.pipe_input("7", {"id": 7})
    driver.advance_time(5_000)
    driver.pipe_input("7", b"{")
    driver.advance_time(5_000)
    assert kinds(driver.pending_output("sow"))[1:] == [("7", "2", "expire")]
