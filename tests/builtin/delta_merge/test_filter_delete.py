"""Deletes by filter: the records that match at the command's place in the log are deleted, and no others."""

import json

import pytest

from processor.builtin.delta_merge import filter_delete
from tests.builtin.installed import install
from tests.builtin.merging import acks, bodies, kinds, merging, rejected, seen, told
from tests.endtoend.oracle import last_per_key, replay

DONE = "/state = 'done'"
ASKS = {"command": "sow_delete", "ack_type": "stats"}


def by_filter(text, **headers):
    """A command as the client sends it to each partition."""
    return None, None, {"command": "sow_delete", "filter": text, **headers}


def order(number, state="done", **more):
    """A publish of one order."""
    return str(number), {"id": number, "state": state, **more}, None


def keys(driver):
    """The keys of the SOW topic, committed."""
    return sorted(last_per_key(seen(driver.read_output("sow"))))


@pytest.fixture
def driver():
    """A topic; in the end its deltas add up to its records."""
    driver = merging(dlq_max_ratio=1)
    yield driver
    driver.commit()
    assert replay(seen(driver.read_output("delta"))) == last_per_key(seen(driver.read_output("sow")))


@pytest.fixture
def small_pieces(monkeypatch):
    """A piece has two records."""
    monkeypatch.setattr(filter_delete, "PIECE_RECORDS", 2)


def test_records_merged_before_count_and_later_ones_do_not(driver):
    """Records in the store, in memory, of the open transaction and of the same batch are deleted; later ones stay."""
    driver.pipe_batch([order(1), order(2, "new")])
    driver.commit()
    driver.write()
    driver.pipe_batch([order(3), order(4)])
    driver.commit()
    driver.pipe_batch([order(4, "new"), order(5)])
    driver.pipe_batch([order(6), order(2), by_filter(DONE, **ASKS), order(6, note="later"), order(7)])
    assert [ack["records_deleted"] for ack in acks(driver)] == [5]
    assert kinds(driver.pending_output("sow"))[-7:] == [
        *[(key, version, "delete") for key, version in (("1", "2"), ("2", "5"), ("3", "6"), ("5", "12"), ("6", "14"))],
        ("6", "19", "insert"),
        ("7", "21", "insert"),
    ]
    driver.commit()
    assert keys(driver) == ["4", "6", "7"]
    assert driver.events == {"deleted_by_filter": 5}


def test_each_match_is_deleted_as_by_key(driver):
    """Each match gets a tombstone and a delta of kind delete with its key fields, both with the command's headers."""
    driver.pipe_batch([order(1), by_filter(DONE, correlation_id="abc", trace="t", client="desk", sequence="4")])
    more = {"client": "desk", "correlation_id": "abc", "kind": "delete", "sequence": "4", "trace": "t", "version": "2"}
    for role, body in (("sow", None), ("delta", {"id": 1})):
        last = driver.pending_output(role)[-1]
        assert (last.key, bodies([last])) == (b"1", [body])
        assert told(last) == more


def test_every_kind_of_ack_is_answered(driver):
    """`stats` has the count, and none of them has a key."""
    driver.pipe_batch([order(1), by_filter(DONE, ack_type="received,persisted,stats", command_id="c")])
    rest = {"command_id": "c", "status": "success"}
    assert acks(driver) == [
        {"ack_type": "received", **rest},
        {"ack_type": "persisted", **rest},
        {"ack_type": "stats", **rest, "records_deleted": 1},
    ]


def test_deletes_by_key_are_counted_too(driver):
    """A delete by key counts 1 or 0 records; one with a message goes to its key's partition first."""
    driver.pipe_batch([order(1), ("1", None, ASKS), ("1", {"id": 1}, ASKS), order(2), (None, {"id": 2}, ASKS)])
    assert [ack["records_deleted"] for ack in acks(driver)] == [1, 0]
    driver.commit()
    assert [(ack["sow_key"], ack["records_deleted"]) for ack in acks(driver)] == [("2", 1)]


def test_a_rejected_delete_has_the_reason_in_its_stats(driver):
    """A rejected delete answers `stats` with its reason; for a publish they are not supported."""
    driver.pipe_batch([("1", None, ASKS | {"sow_key": "2"}), ("1", b"{", {"ack_type": "stats"})])
    assert [ack["reason"].split(":")[0] for ack in acks(driver)] == ["key_mismatch", "not supported"]


def test_a_repeat_deletes_nothing(driver):
    """A repeated delete by filter deletes nothing: records that match since then stay."""
    numbered = by_filter(DONE, ack_type="stats", client="desk", sequence="1")
    driver.pipe_batch([order(1), numbered, order(1), numbered])
    first, second = acks(driver)
    assert (first["records_deleted"], second["records_deleted"], second["reason"]) == (1, 0, "duplicate")
    driver.commit()
    assert keys(driver) == ["1"]


def test_a_record_that_was_over_before_the_command_expires(driver):
    """A record that was over before the command is not counted; it expires by the clock."""
    driver.pipe_batch([("1", {"id": 1, "state": "done"}, {"expiration": "1"}), order(2)])
    driver.now_ms += 1_000
    driver.pipe_batch([by_filter(DONE, **ASKS)])
    assert acks(driver)[0]["records_deleted"] == 1
    driver.advance_time(0)
    assert kinds(driver.pending_output("delta"))[-2:] == [("2", "4", "delete"), ("1", "2", "expire")]


def test_functions_know_key_size_topic_and_the_time_of_publication(driver):
    """UNIX_TIMESTAMP is the time at which the command was published, also when it is carried out late."""
    driver.pipe_batch([order(1), order(22, note="long" * 10), order(3)])
    driver.now_ms += 86_400_000
    now_s = driver.now_ms // 1000
    text = f"SOW_KEY() = '1' OR MESSAGE_SIZE() > 50 AND TOPIC_NAME() = 'orders' AND UNIX_TIMESTAMP() = {now_s}"
    driver.pipe_batch([by_filter(text)])
    driver.commit()
    assert keys(driver) == ["3"]


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        (by_filter("/a > > 1"), "header filter: filter, line 1, column 6"),
        (by_filter(""), "header filter: filter, line 1, column 1"),
        (by_filter(b"\xff"), "header filter is not UTF-8"),
        (by_filter("LAST_UPDATED() > 0"), "LAST_UPDATED(): a worker's state does not have when it last changed"),
        (by_filter("NOT (/a = 1 AND CORRELATION_ID() = 'x')"), "CORRELATION_ID(): a worker's state does not have its"),
        ((None, {"id": 1}, {"command": "sow_delete", "filter": DONE}), "header filter and a message"),
        (by_filter(DONE, sow_key="1"), "header filter and header sow_key"),
        (by_filter(DONE, expect_version="1"), "header expect_version: a delete by filter is of many records"),
        (("1", None, {"filter": DONE}), "header filter: a delete by filter has no key"),
        (("9", {"id": 9}, {"command": "sow_delete", "filter": DONE}), "header filter: a delete by filter has no key"),
    ],
)
def test_a_contradictory_command_is_rejected_and_deletes_nothing(driver, record, detail):
    """It is rejected as `bad_header`, with the place in the filter, and its acks fail."""
    key, value, headers = record
    driver.pipe_batch([order(1), (key, value, headers | {"ack_type": "stats"})])
    ((reason, said),) = rejected(driver)
    assert (reason, detail in said) == ("bad_header", True)
    (ack,) = acks(driver)
    assert (ack["status"], ack["reason"].startswith("bad_header: ")) == ("failure", True)
    assert len(driver.pending_output("sow")) == 1


def test_a_publishers_own_header_of_that_name_travels_on(driver):
    """A header `filter` on a publish is the publisher's own and travels on."""
    driver.pipe_batch([("1", {"id": 1}, {"filter": "blue"}), (None, {"id": 2}, {"filter": "red"})])
    driver.commit()
    assert [told(record)["filter"] for record in driver.read_output("sow") + driver.pending_output("sow")] == [
        "blue",
        "red",
    ]


def test_the_input_waits_until_the_last_piece_is_done(driver, small_pieces):
    """Records behind the command are merged after it, for any number of turns and commits in between."""
    driver.pipe_batch([*map(order, range(5)), by_filter(DONE, **ASKS), order(1, "again")])
    assert driver.is_paused
    driver.pipe_batch([order(6)])
    driver.commit()
    assert (driver.committed_offset, driver.noted) == (5, "sow_delete 5 deleted 2")
    driver.advance_time(0, punctuations_max=1)
    assert driver.is_paused
    assert len(driver.read_output("sow")) + len(driver.pending_output("sow")) == 5 + 4
    driver.advance_time(0)
    assert not driver.is_paused
    driver.commit()
    assert keys(driver) == ["1", "6"]
    assert bodies(driver.read_output("ack")) == [{"ack_type": "stats", "status": "success", "records_deleted": 5}]
    assert (driver.committed_offset, driver.noted) == (8, "")


def test_nothing_expires_while_the_input_waits(driver, small_pieces):
    """A record that is put off by a delta behind the command is not expired before that delta is merged."""
    driver.pipe_batch([("a", {"id": "a", "state": "new"}, {"expiration": "1"}), *map(order, range(5))])
    driver.pipe_batch([by_filter(DONE), ("a", {"id": "a", "n": 1}, {"expiration": "9"})])
    driver.advance_time(1_000, punctuations_max=1)
    assert driver.is_paused
    driver.commit()
    driver.advance_time(0)
    driver.commit()
    assert last_per_key(seen(driver.read_output("sow"))) == {"a": {"id": "a", "state": "new", "n": 1}}
    assert driver.events["expired"] == 0


@pytest.mark.parametrize("calamity", ["abort", "crash", "crash, store kept"])
@pytest.mark.parametrize("committed", [0, 1, 2])
def test_a_successor_goes_on_with_what_is_left_and_knows_the_count(driver, small_pieces, calamity, committed):
    """Committed pieces stay done and others are done again; the one answer counts all of them."""
    driver.pipe_batch([*map(order, range(7)), order(8, "new")])
    driver.commit()
    driver.pipe_batch([by_filter(DONE, **ASKS), *map(order, range(2))])
    for _ in range(committed):
        driver.commit()
        driver.write()
        driver.advance_time(0, punctuations_max=1)
    if calamity == "abort":
        driver.abort()
    else:
        driver.crash(keep_store=calamity != "crash")
    driver.advance_time(0)
    driver.commit()
    assert keys(driver) == ["0", "1", "8"]
    assert [json.loads(record.value)["records_deleted"] for record in driver.read_output("ack")] == [7]
    assert driver.events == {"deleted_by_filter": 7}


def test_a_function_that_raises_rejects_the_command_and_says_how_many_were_deleted(small_pieces, tmp_path, monkeypatch):
    """A function that raises rejects the command with the number of deleted records, also in a timer call."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    driver = merging(message_type="brittle", dlq_max_ratio=1)
    driver.pipe_batch([order(1), order(2), order(3, note="trip"), by_filter(DONE, **ASKS), order(4)])
    driver.advance_time(0)
    ((reason, detail),) = rejected(driver)
    assert reason == "plugin_failed"
    assert detail == "ValueError: tripped; 2 records had been deleted before, and stay so"
    assert acks(driver)[0]["status"] == "failure"
    driver.commit()
    assert [key for key, record in {r.key: r for r in driver.read_output("sow")}.items() if record.value] == [
        b"3",
        b"4",
    ]


def test_records_without_fields_are_found_by_their_key(tmp_path, monkeypatch):
    """Records of bytes have no fields for a filter, and are found by their key."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    driver = merging(message_type="bytes", key="explicit")
    driver.pipe_batch([("a", b"1", None), ("b", b"2", None), by_filter("SOW_KEY() = 'a' OR /x = 1", **ASKS)])
    assert acks(driver)[0]["records_deleted"] == 1


def test_a_filter_over_its_budget_on_a_record_rejects_the_command(driver, small_pieces):
    """A record that makes a filter take more work than it may rejects the delete with the reason; the record stays."""
    driver.pipe_batch([order(1), order(2), order(3, legs=["x"] * 150_000), order(4)])
    driver.commit()
    driver.pipe_batch([by_filter("/state = 'done' AND NOT /legs = 'y'", **ASKS), order(5)])
    driver.advance_time(0)
    ((reason, detail),) = rejected(driver)
    assert reason == "bad_header"
    assert "takes more work than it may for the record" in detail
    assert "2 records had been deleted before, and stay so" in detail
    driver.commit()
    assert keys(driver) == ["3", "4", "5"]


def test_a_piece_ends_when_its_time_is_over(driver, monkeypatch):
    """With a costly filter a piece ends by the clock, and the delete goes on where it ended."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(filter_delete.time, "thread_time", lambda: next(ticks) * 0.02)
    driver.pipe_batch([*map(order, range(10, 30)), order(30, "new")])
    driver.commit()
    driver.pipe_batch([by_filter(DONE, **ASKS)])
    assert driver.is_paused
    for _ in range(5):
        driver.advance_time(0, punctuations_max=1)
    assert driver.is_paused
    driver.advance_time(0)
    assert not driver.is_paused
    assert [ack["records_deleted"] for ack in acks(driver)] == [20]
    driver.commit()
    assert keys(driver) == ["30"]
