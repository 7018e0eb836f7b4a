"""Without transactions a worker that dies leaves records in SOW whose input comes again: each is merged once."""

import json
import random

import pytest

from tests.builtin.delta_merge.staged import StagedDriver
from tests.builtin.merging import bodies, told
from tests.endtoend.oracle import applied, remove

RULES = {"/sum": "sum", "/log": "append"}
STAGES = ("deltas", "sow", "acks")


def acks(driver):
    """Return every ack of the driver."""
    return [json.loads(record.value) for record in driver.read_output("ack")]


def commands(rng, numbers):
    """Deltas that add, publishes, deletes and rubbish over few keys; every third has a sequence and wants an ack."""
    sent = []
    for number in numbers:
        key, what, headers = rng.choice("abc"), rng.random(), {}
        if number % 3 == 0:
            headers = {"client": "desk", "sequence": str(number), "ack_type": "persisted", "command_id": str(number)}
        body = {"id": key, "sum": 1, "log": [number]}
        if what < 0.1:
            body = None
        elif what < 0.2:
            headers["command"] = "publish"
        elif what < 0.25:
            body = b"{"
        elif what < 0.3:
            body = {"id": key, "sum": "many"}
        sent.append((key, body, headers))
    return sent


def world(records):
    """Return the records of a subscriber that applies deltas as they come, with repeats and deletes of absent keys."""
    made = {}
    for record in records:
        if told(record).get("kind") == "delete":
            made.pop(record.key, None)
            continue
        old = {} if told(record).get("kind") == "insert" else made.get(record.key, {})
        made[record.key] = applied(old, json.loads(record.value))
        for pointer in json.loads(told(record).get("removed", "[]")):
            if pointer[1:] in made[record.key]:
                remove(made[record.key], pointer)
    return made


def last(records):
    """The last record of each key of a SOW topic."""
    made = {record.key: record.value for record in records}
    return {key: json.loads(value) for key, value in made.items() if value is not None}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("seed", range(6))
def test_whenever_it_dies_sow_is_what_it_is_without_a_crash(stage, seed):
    """SOW is the same as without a crash, also after a second crash, before or after the store has the input again."""
    rng = random.Random(f"{stage} {seed}")
    calm, driver = (StagedDriver(merge_rules=RULES, dlq_max_ratio=1) for _ in range(2))
    for turn in range(3):
        batch = commands(rng, range(turn * 12, turn * 12 + 12))
        calm.pipe_batch(batch)
        calm.commit()
        driver.pipe_batch(batch)
        for _ in range(rng.randrange(1, 4)):
            driver.die(stage, rng.random(), keep_store=rng.random() < 0.5)
        driver.commit()
        if rng.random() < 0.5:
            driver.write()
    wanted, found = calm.read_output("sow"), driver.read_output("sow")
    assert [record[:3] for record in found] == [record[:3] for record in wanted]
    assert world(driver.read_output("delta")) == last(wanted)
    letters = [{told(record)["source"] for record in made.read_output("dlq")} for made in (calm, driver)]
    assert letters[0] == letters[1]
    answers = [{(ack["sequence"], ack["status"]) for ack in acks(made)} for made in (calm, driver)]
    highest = max(sequence for sequence, status in answers[0] if status == "success")
    # What stands for all before it may be told of others too, but no failure becomes a success.
    assert (highest, "success") in answers[1]
    failed = {sequence for sequence, status in answers[0] if status == "failure"}
    assert {sequence for sequence, status in answers[1] if status == "failure"} == failed
    assert not {(sequence, "success") for sequence in failed} & answers[1]


def test_a_delete_that_comes_again_leaves_no_record_and_no_second_delta():
    """The tombstone in SOW proves that the delete and the update before it are done, though the key is gone."""
    driver = StagedDriver(merge_rules=RULES)
    driver.pipe_input("7", {"id": 7, "sum": 1})
    driver.commit()
    driver.pipe_batch([("7", {"id": 7, "sum": 1}, None), ("7", None, None)])
    driver.die("sow")
    driver.commit()
    assert last(driver.read_output("sow")) == {}
    assert [told(record).get("kind") for record in driver.read_output("delta")] == ["insert", None, "delete"]
    assert driver.events == {"redelivered": 2}


def test_a_record_is_recognised_although_the_store_has_it_already():
    """A restore brings the store to the end of SOW; a second crash before a commit forgets nothing."""
    driver = StagedDriver(merge_rules=RULES)
    driver.pipe_batch([("7", {"id": 7, "sum": 1}, None), ("8", {"id": 8}, None), ("8", None, None)])
    driver.die("sow")
    driver.die("deltas", keep_store=True)
    driver.die("deltas", keep_store=True)
    driver.commit()
    assert bodies(driver.read_output("sow"))[0] == {"id": 7, "sum": 1}
    assert len(driver.read_output("sow")) == 3


def test_nothing_is_committed_within_what_comes_again():
    """After a second crash in the middle the position where it all began is still known."""
    driver = StagedDriver(merge_rules=RULES)
    driver.pipe_batch([("7", {"id": 7, "sum": 1}, None)] * 4)
    driver.die("sow")
    driver.abort(feed=False)
    driver.feed(2)
    driver.commit()
    assert driver.committed_offset == 0
    driver.crash(feed=False)
    driver.feed()
    driver.commit()
    assert [body["sum"] for body in bodies(driver.read_output("sow"))] == [1, 2, 3, 4]


def test_an_update_that_was_lost_between_others_is_made_up_for():
    """If Kafka lost a record and took a later one, the lost one is merged when it comes again."""
    driver = StagedDriver(merge_rules=RULES)
    driver.pipe_batch([(key, {"id": key, "sum": 1}, None) for key in ("a", "b", "c")])
    del driver._logs["sow"].open[1]
    driver.die("sow")
    driver.commit()
    assert last(driver.read_output("sow")) == {key.encode(): {"id": key, "sum": 1} for key in "abc"}
    assert driver.events == {"redelivered": 2}


def test_acks_and_marks_that_were_not_sent_are_made_up_for():
    """Records in SOW get a success, rejected ones a failure with its own reason, and none becomes a duplicate."""
    driver = StagedDriver(merge_rules=RULES)
    wants = {"client": "desk", "ack_type": "completed"}
    driver.pipe_batch(
        [
            ("7", {"id": 7, "sum": 1}, wants | {"sequence": "1", "command_id": "good"}),
            ("7", {"id": 7, "sum": "many"}, wants | {"sequence": "2", "command_id": "bad"}),
            ("7", {"id": 7, "sum": 1}, wants | {"sequence": "1", "command_id": "twice"}),
            ("7", {"id": 7, "sum": 1}, wants | {"sequence": "3", "command_id": "last"}),
            (None, {"sum": 1}, {"ack_type": "completed", "command_id": "keyless"}),
        ]
    )
    driver.die("sow")
    driver.commit()
    driver.pipe_input("7", {"id": 7}, wants | {"sequence": "3", "command_id": "again"})
    driver.commit()
    heard = {ack["command_id"]: (ack["status"], ack.get("reason", "")[:20]) for ack in acks(driver)}
    assert heard == {
        "good": ("success", ""),
        "bad": ("failure", "schema_mismatch: rej"),
        "twice": ("success", "duplicate"),
        "last": ("success", ""),
        "keyless": ("failure", "missing_key: no Kafk"),
        "again": ("success", "duplicate"),
    }


def test_where_nothing_comes_again_nothing_is_looked_at():
    """After a clean end, and with transactions, no record is compared with SOW."""
    driver = StagedDriver()
    driver.pipe_input("7", {"id": 7})
    driver.commit()
    driver.crash()
    assert driver._task._context.applied == {}
    assert driver._task.processor._redelivery.until == -1
