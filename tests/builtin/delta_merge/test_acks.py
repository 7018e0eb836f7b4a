"""Acks: the answers to a publisher's commands."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.builtin.installed import install
from tests.builtin.merging import acks, merging, told

SCHEMA = Path(__file__).parents[3] / "schemas" / "ack.schema.json"
ALL = "received,processed,completed,persisted"


@pytest.fixture
def driver():
    """Return a driver; the acks are checked against the schema in the end."""
    driver = merging()
    yield driver
    driver.commit()
    validator = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    for record in driver.read_output("ack"):
        validator.validate(json.loads(record.value))


def test_a_command_without_ack_type_is_not_answered(driver):
    """The default of `ack_type` is `none`: no ack is sent."""
    driver.pipe_batch([("7", {"id": 7}, headers) for headers in (None, {"ack_type": "none"}, {"command_id": "1"})])
    assert acks(driver) == []


def test_every_kind_is_answered_in_its_order(driver):
    """Acks come in the order of a command's way, for any order, blanks and repetitions in the header."""
    driver.pipe_input(
        "7", {"id": 7}, {"ack_type": "persisted, completed,received,none,processed,received", "command_id": "c"}
    )
    rest = {"command_id": "c", "sow_key": "7", "status": "success"}
    versions = {"received": {}}
    assert acks(driver) == [{"ack_type": one, **rest, **versions.get(one, {"version": 1})} for one in ALL.split(",")]


def test_acks_say_the_version_of_the_record(driver):
    """Acks of updates have the record's new version, of a delete that of its end, and of a delete of nothing none."""
    asked = {"ack_type": "received,processed,persisted"}
    driver.pipe_batch([("7", {"id": 7}, asked), ("7", {"n": 1}, asked), ("7", None, asked), ("7", None, asked)])
    assert [(one["ack_type"], one.get("version")) for one in acks(driver)] == [
        (kind, None if kind == "received" else version)
        for version in (1, 2, 3, None)
        for kind in asked["ack_type"].split(",")
    ]


def test_the_key_is_the_client(driver):
    """The key of an ack is the client, empty where there is none; it is in the transaction of the command's effects."""
    driver.pipe_batch([("7", {"id": 7}, {"ack_type": "processed", **more}) for more in ({}, {"client": "desk"})])
    assert [(record.key, record.headers) for record in driver.pending_output("ack")] == [(b"", []), (b"desk", [])]
    driver.abort(feed=False)
    assert driver.read_output("ack") == []


def test_a_rejection_is_answered_with_its_reason(driver):
    """The ack has the word and the sentence of the reason; `received` is a success all the same."""
    driver.pipe_input("7", b"{", {"ack_type": ALL, "client": "desk", "sequence": "4", "command_id": "c"})
    rest = {"command_id": "c", "client": "desk", "sequence": 4, "sow_key": "7"}
    received, *others = acks(driver)
    assert received == {"ack_type": "received", **rest, "status": "success"}
    reason = "undecodable: " + told(driver.pending_output("dlq")[0])["dlq_detail"]
    assert others == [{"ack_type": kind, **rest, "status": "failure", "reason": reason} for kind in ALL.split(",")[1:]]


def test_bad_headers_do_not_keep_a_rejection_from_being_answered(driver):
    """A command rejected for its headers is answered with those that can be read."""
    driver.pipe_batch([
        (None, {"a": 1}, {"ack_type": "processed", "client": "desk", "sequence": "x", "command_id": b"\xff"}),
        ("7", {"a": 1}, {"ack_type": "processed,often", "client": "desk"}),
        ("7", {"a": 1}, {"ack_type": b"\xff,persisted"}),
    ])  # fmt: skip
    first, second, third = acks(driver)
    assert first["client"] == "desk"
    assert not {"sequence", "sow_key"} & first.keys()
    assert first["reason"].startswith("bad_header: header ")
    assert second["reason"] == (
        "bad_header: header ack_type lists 'often'; known: none, received, processed, completed, persisted, stats"
    )
    assert (third["ack_type"], third["status"]) == ("persisted", "failure")


def test_stats_are_refused_politely_and_the_others_go_on(driver):
    """The record is merged; the `stats` of a rejected one are refused for the same reason."""
    driver.pipe_batch([("7", {"id": 7}, {"ack_type": "stats,processed"}), ("7", b"{", {"ack_type": "stats"})])
    assert [(ack["ack_type"], ack["status"], ack.get("reason")) for ack in acks(driver)] == [
        ("processed", "success", None),
        ("stats", "failure", "not supported"),
        ("stats", "failure", "not supported"),
    ]
    assert len(driver.pending_output("sow")) == 1


def test_a_duplicate_is_a_success(driver):
    """Each duplicate gets an ack of its own with that reason: its publisher sent it again for lack of an answer."""
    headers = {"client": "desk", "sequence": "1", "ack_type": ALL, "command_id": "c"}
    driver.pipe_input("7", {"id": 7}, headers | {"ack_type": "none"})
    driver.pipe_input("7", {"id": 7}, headers)
    assert [(ack["ack_type"], ack["status"], ack.get("reason")) for ack in acks(driver)] == [
        ("received", "success", None),
        ("processed", "success", "duplicate"),
        ("completed", "success", "duplicate"),
        ("persisted", "success", "duplicate"),
    ]


def test_persisted_successes_are_conflated(driver):
    """The highest sequence of each client is acknowledged once, at the end of the batch; failures one by one."""

    def asked(client, sequence, body, kind="persisted"):
        return "7", body, {"client": client, "sequence": str(sequence), "ack_type": kind, "command_id": f"c{sequence}"}

    driver.pipe_batch([
        asked("desk", 1, {"n": 1}), asked("desk", 2, b"{"), asked("other", 9, {"n": 9}), asked("desk", 3, {"n": 3}),
        asked("desk", 4, {"n": 4}, "processed"), ("7", {"n": 5}, {"ack_type": "persisted", "command_id": "x"}),
    ])  # fmt: skip
    failure, processed, alone, *conflated = acks(driver)
    assert (failure["sequence"], failure["status"]) == (2, "failure")
    assert (processed["ack_type"], processed["sequence"]) == ("processed", 4)
    assert alone == {"ack_type": "persisted", "command_id": "x", "sow_key": "7", "status": "success", "version": 5}
    assert conflated == [
        {"ack_type": "persisted", "client": "desk", "sequence": 3, "status": "success"},
        {"ack_type": "persisted", "client": "other", "sequence": 9, "status": "success"},
    ]


def test_a_conflated_ack_is_sent_once(driver):
    """The next batch repeats no ack of the one before."""
    driver.pipe_input("7", {"id": 7}, {"client": "desk", "sequence": "1", "ack_type": "persisted"})
    driver.pipe_input("7", {"id": 7}, {"client": "other", "sequence": "1", "ack_type": "persisted"})
    driver.pipe_input("7", {"id": 7})
    assert [(ack["client"], ack["sequence"]) for ack in acks(driver)] == [("desk", 1), ("other", 1)]


def test_a_dead_letter_sent_again_lowers_no_conflated_ack(driver):
    """Its number is lower than those of other records of its batch: it has an ack of its own, with the reason."""
    asked = {"client": "desk", "ack_type": "persisted"}
    again = asked | {"sequence": "2", "replay_of": "orders.publish/0/0"}
    driver.pipe_batch([("7", {"id": 7}, asked | {"sequence": "3"}), ("7", {"id": 7}, again)])
    assert [(ack["sequence"], ack.get("reason")) for ack in acks(driver)] == [(2, "mended"), (3, None)]


def test_a_mended_command_is_acknowledged_by_itself(driver):
    """A number that was refused and is taken after a higher one has an ack of its own: no higher one stands for it."""
    asked = {"client": "desk", "ack_type": "processed,persisted"}
    driver.pipe_batch([("7", body, asked | {"sequence": n}) for n, body in (("1", b"{"), ("2", {"id": 7}), ("1", {}))])
    driver.pipe_batch([("7", {}, asked | {"sequence": n}) for n in ("3", "1")])
    assert [(ack["sequence"], ack["ack_type"], ack.get("reason", "")[:9]) for ack in acks(driver)] == [
        (1, "processed", "undecodab"),
        (1, "persisted", "undecodab"),
        (2, "processed", ""),
        (1, "processed", "mended"),
        (1, "persisted", "mended"),
        (2, "persisted", ""),
        (3, "processed", ""),
        (1, "processed", "duplicate"),
        (1, "persisted", "duplicate"),
        (3, "persisted", ""),
    ]


def test_a_record_sent_again_with_its_key_is_answered_once(driver):
    """A record without a Kafka key is answered by the worker that merges it."""
    driver.pipe_input(None, {"id": 7}, {"ack_type": "processed"})
    assert acks(driver) == []
    driver.commit()
    assert [ack["sow_key"] for ack in acks(driver)] == ["7"]


def test_a_long_reason_is_cut(driver):
    """The ack has the beginning of a long reason; the dead letter has all of it."""
    driver.pipe_input("7", {"id": 7}, {"ack_type": "processed", "remove": json.dumps(["x" * 3000])})
    [ack] = acks(driver)
    assert len(ack["reason"]) == 1000


def test_a_record_on_which_the_processor_raises_is_answered_too(tmp_path, monkeypatch):
    """Its dead letter and its ack are sent exactly once, and the other records of its batch are answered as alone."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    driver = merging(message_type="fragile")
    ask = {"ack_type": "received,persisted", "client": "c"}
    driver.pipe_batch(
        [
            ("7", {"id": 7}, {**ask, "sequence": "1"}),
            ("7", b'{"id": 7, "a": "trip"}', {**ask, "sequence": "2", "command_id": "x"}),
            ("7", {"id": 7, "b": 1}, {**ask, "sequence": "3"}),
        ]
    )
    driver.commit()
    told_acks = [json.loads(record.value) for record in driver.read_output("ack")]
    assert [(ack["ack_type"], ack["sequence"], ack["status"]) for ack in told_acks] == [
        ("received", 1, "success"),
        ("persisted", 1, "success"),
        ("received", 2, "success"),
        ("persisted", 2, "failure"),
        ("received", 3, "success"),
        ("persisted", 3, "success"),
    ]
    assert told_acks[3]["reason"] == "plugin_failed: DeltaMerge raised ValueError: tripped"
    assert told_acks[3]["command_id"] == "x"
    assert driver.events["duplicate"] == 0
    assert driver.rejections == {"plugin_failed": 1}


@pytest.mark.parametrize("too_long", ["client", "command_id", "ack_type"])
def test_a_rejection_for_a_header_of_megabytes_is_answered_in_few_bytes(driver, too_long):
    """Kafka would refuse an ack with the header, and the worker would stop at the record for ever."""
    headers = {"ack_type": "processed", "client": "c", "command_id": "x", "sequence": "1"}
    headers[too_long] = headers[too_long] + "," * 9_000_000
    driver.pipe_input("7", {"id": 7}, headers)
    [record] = driver.pending_output("ack")
    ack = json.loads(record.value)
    assert (ack["status"], ack["sow_key"]) == ("failure", "7")
    assert ack["reason"].startswith(
        "too_large: its headers" if too_long == "client" else f"bad_header: header {too_long}"
    )
    assert len(record.key) + len(record.value) < 300


def test_a_key_of_megabytes_is_rejected_and_answered_without_it(driver):
    """A record with a huge key that just fits the input would fit no output, so it is rejected."""
    key = "k" * 9_000_000
    driver.pipe_batch([(key, {"a": 1}, {"ack_type": "processed"}), (key, None, {"ack_type": "processed"})])
    assert driver.pending_output("sow") == []
    [record] = driver.pending_output("dlq")
    assert told(record)["dlq_reason"] == "too_large"
    assert acks(driver) == [
        {
            "ack_type": "processed",
            "status": "failure",
            "reason": "too_large: its key has 9000000 bytes; at most 65536",
        },
        {"ack_type": "processed", "status": "success"},
    ]


def test_a_rekeyed_record_stands_for_itself_alone(driver):
    """A rekeyed record may overtake others of its client, so its success does not stand for theirs."""
    driver.pipe_input(None, {"id": 7}, {"ack_type": "processed,persisted", "client": "c", "sequence": "9"})
    assert acks(driver) == []
    driver.commit()
    told_alone = {"client": "c", "sequence": 9, "sow_key": "7", "status": "success", "reason": "rekeyed", "version": 3}
    assert acks(driver) == [{"ack_type": kind, **told_alone} for kind in ("processed", "persisted")]
