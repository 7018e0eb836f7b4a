"""Deletes by filter under random histories, failures and pieces of two records: SOW equals a naive fold."""

import json
import random

import pytest

from processor.builtin.delta_merge import filter_delete
from tests.builtin.delta_merge.staged import StagedDriver
from tests.builtin.merging import merging, seen, told
from tests.endtoend.oracle import last_per_key, merged, replay

FILTERS = {
    "/n < 3": lambda record: record.get("n", 9) < 3,
    "/state = 'done'": lambda record: record.get("state") == "done",
    "/state IS NULL": lambda record: record.get("state") is None,
    "/n >= 0": lambda record: "n" in record,
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """A piece has two records."""
    monkeypatch.setattr(filter_delete, "PIECE_RECORDS", 2)


def command(rng, number):
    """A delta, a delete by key or one by filter, over few keys; one in four is by filter."""
    key = rng.choice("abcdefgh")
    what = rng.random()
    if what < 0.25:
        more = {"client": "desk", "sequence": str(number)} if rng.random() < 0.5 else {}
        text = rng.choice(list(FILTERS))
        return (
            None,
            None,
            {"command": "sow_delete", "filter": text, "ack_type": "stats", "command_id": str(number)} | more,
        )
    if what < 0.3:
        return key, None, {"ack_type": "stats", "command_id": str(number)}
    body = {"id": key, rng.choice(["n", "m"]): rng.randrange(6)}
    if rng.random() < 0.5:
        body["state"] = rng.choice(["new", "done"])
    if what < 0.35:
        body["n"] = "rubbish" if what < 0.32 else 1
        return key, b"{" if what < 0.32 else body, None
    return key, body, None


def fold(records):
    """The records after these commands, and how many each delete removed, by its command id."""
    world, deleted = {}, {}
    for record in records:
        headers = told(record)
        if "filter" in headers:
            gone = [key for key, body in world.items() if FILTERS[headers["filter"]](body)]
        elif record.value is None:
            gone = [key for key in world if key == record.key.decode()]
        else:
            if record.value != b"{":
                key = record.key.decode()
                world[key] = merged(world.get(key), json.loads(record.value))
            continue
        for key in gone:
            del world[key]
        deleted[headers["command_id"]] = len(gone)
    return world, deleted


def finish(driver):
    """Let the driver come to the end of its input, and commit."""
    while driver.is_paused:
        driver.advance_time(0)
    driver.commit()


def told_counts(driver):
    """The number of deleted records in each ack, by command id; the same command may be answered again."""
    answers = {}
    for record in driver.read_output("ack"):
        ack = json.loads(record.value)
        assert ack["status"] == "success"
        answers.setdefault(ack["command_id"], set()).add(ack["records_deleted"])
    return answers


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_command_deletes_what_matches_at_its_place_exactly_once(seed):
    """Aborts, crashes and commits come between any two pieces, and the store is written or not."""
    rng = random.Random(seed)
    driver = merging(dlq_max_ratio=1)
    number = 0
    for _ in range(12):
        batch = [command(rng, number + place) for place in range(rng.randrange(1, 9))]
        number += len(batch)
        driver.pipe_batch(batch)
        for _ in range(rng.randrange(4)):
            what = rng.choice(["turn", "turn", "commit", "write", "abort", "crash", "crash and keep"])
            if what == "turn":
                driver.advance_time(0, punctuations_max=1)
            elif what.startswith("crash"):
                driver.crash(keep_store="keep" in what)
            else:
                getattr(driver, what)()
    finish(driver)
    world, deleted = fold(driver.input)
    assert last_per_key(seen(driver.read_output("sow"))) == world
    assert replay(seen(driver.read_output("delta"))) == world
    assert told_counts(driver) == {name: {count} for name, count in deleted.items()}
    assert len(driver.read_output("ack")) == len(deleted)
    assert driver.noted == ""


@pytest.mark.parametrize("stage", ["deltas", "sow", "acks"])
@pytest.mark.parametrize("seed", range(8))
def test_without_transactions_a_command_that_comes_again_leaves_later_records_alone(seed, stage):
    """After crashes in any stage and at any piece SOW and the counts are those of a run without a crash."""
    rng = random.Random(f"{seed} {stage}")
    driver = StagedDriver(dlq_max_ratio=1)
    number = 0
    for _ in range(6):
        batch = [command(rng, number + place) for place in range(rng.randrange(1, 12))]
        number += len(batch)
        driver.pipe_batch(batch)
        for _ in range(rng.randrange(3)):
            driver.advance_time(0, punctuations_max=rng.randrange(1, 4))
            if rng.random() < 0.7:
                driver.die(stage, rng.random(), keep_store=rng.random() < 0.5)
            else:
                driver.commit()
    finish(driver)
    world, deleted = fold(driver.input)
    assert last_per_key(seen(driver.read_output("sow"))) == world
    assert told_counts(driver) == {name: {count} for name, count in deleted.items()}
