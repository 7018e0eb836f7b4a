"""Updates that come again after a crash, and updates that come late: a record has each once, and the newest fields."""

import json
import random

import pytest

from processor.merge import apply_delta
from tests.builtin.delta_merge.staged import StagedDriver
from tests.builtin.merging import bodies, merging, rejected, told
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


GROUP = {"sequence_groups": [{"by": "/ts", "fields": ["/price", "/book/bid"]}]}
NEWEST = {"ts": 5, "price": 10, "book": {"bid": 1, "n": 1}, "x": 1}


def after(*updates, record=NEWEST):
    """The record, the last delta, its header `removed`, and the stale groups, after updates of a record."""
    driver = merging(key="explicit", **GROUP)
    for body, headers in ((record, {"command": "publish"}), *updates):
        driver.pipe_input("7", body, headers)
    driver.commit()
    assert driver.rejections == {}
    delta = driver.read_output("delta")[-1]
    removed = json.loads(told(delta).get("removed", "[]"))
    return bodies(driver.read_output("sow"))[-1], bodies([delta])[0], removed, driver.events["stale_group"]


def removal(*pointers, **headers):
    """The headers of an update that removes fields."""
    return {"remove": json.dumps(pointers), **headers}


def test_a_late_publish_keeps_the_fields_of_the_group_and_replaces_the_rest():
    """The group's fields and `by` stay as they are; members beside them are those of the publish."""
    late = {"ts": 2, "price": 9, "book": {"bid": 0, "n": 2}, "y": 1}
    assert after((late, {"command": "publish"})) == (
        {"ts": 5, "price": 10, "book": {"bid": 1, "n": 2}, "y": 1},
        {"book": {"n": 2}, "y": 1},
        ["/x"],
        1,
    )


@pytest.mark.parametrize("by", [{}, {"ts": None}], ids=str)
def test_a_publish_that_does_not_name_by_counts_as_late(by):
    """A publish without the field `by` may be older than the record, so the fields of the group stay."""
    record, _, removed, stale = after(({"price": 9, "book": 7, **by}, {"command": "publish"}))
    assert record == {"ts": 5, "price": 10, "book": {"bid": 1}}
    assert (removed, stale) == (["/book/n", "/x"], 1)


def test_a_late_publish_brings_back_no_field_that_a_newer_update_left_out():
    """A field of the group that the record does not have stays away, alone or inside an object."""
    record = {"ts": 5, "x": 1}
    late = {"ts": 2, "price": 9, "book": {"bid": 0, "n": 2}}
    assert after((late, {"command": "publish"}), record=record)[0] == {"ts": 5, "book": {"n": 2}}


def test_a_late_publish_undoes_no_value_in_the_place_of_a_fields_object():
    """A scalar that took the place of the field's object is as new as the group."""
    record = {"ts": 5, "book": "closed"}
    for late in ({"ts": 2, "book": {"bid": 0, "n": 2}}, {"ts": 2}, {"ts": 2, "book": 7}):
        assert after((late, {"command": "publish"}), record=record)[0] == record


@pytest.mark.parametrize("body", [{"ts": 5, "price": 9}, {"ts": 6}], ids=str)
def test_a_publish_that_is_not_older_replaces_all(body):
    """A publish as old as the record, or newer, replaces the record entirely."""
    record, _, _, stale = after((body, {"command": "publish"}))
    assert (record, stale) == (body, 0)


@pytest.mark.parametrize("command", ["publish", "delta_publish"])
@pytest.mark.parametrize("by", [{"ts": 2}, {}, {"ts": None}], ids=str)
def test_a_late_removal_takes_no_field_of_the_group(command, by):
    """Header `remove` of an older update, or of one without `by`, removes neither the group's fields nor `by`."""
    body = {"x": 2, "book": {"n": 2}, **by}
    record, _, removed, stale = after((body, removal("/price", "/ts", "/book/bid", "/x", command=command)))
    assert record == {"ts": 5, "price": 10, "book": {"bid": 1, "n": 2}}
    assert (removed, stale) == (["/x"], 1)


def test_a_late_removal_of_an_object_leaves_the_field_of_the_group_in_it():
    """The members of the object that are in no group are removed."""
    record, _, removed, stale = after(({"ts": 2}, removal("/book")))
    assert (record["book"], removed, stale) == ({"bid": 1}, ["/book/n"], 1)


def test_a_removal_that_is_not_older_is_done():
    """An update as old as the record, or newer, removes the group's fields and `by` itself."""
    for ts in (5, 6):
        record, delta, removed, stale = after(({"ts": ts}, removal("/price", "/book", "/ts")))
        assert (record, delta, sorted(removed), stale) == ({"x": 1}, {}, ["/book", "/price", "/ts"], 0)


def test_a_late_update_cannot_take_the_clock_away():
    """After a late removal of `by`, an update older than the record is still late."""
    late = ({"ts": 2}, removal("/ts")), ({"ts": 1, "price": 1}, {})
    assert after(*late)[0] == NEWEST


def test_a_removal_that_touches_no_group_is_not_stale():
    """A removal without `by` of fields outside of every group is done and not counted."""
    record, _, removed, stale = after(({}, removal("/x", "/nothing")))
    assert (record, removed, stale) == ({"ts": 5, "price": 10, "book": {"bid": 1, "n": 1}}, ["/x"], 0)


def test_a_delta_after_a_delete_begins_a_new_record():
    """A delete removes `by` with the record, so a late delta begins a new record with its fields."""
    assert after(({}, {"command": "sow_delete"}), ({"ts": 1, "price": 1}, {}))[0] == {"ts": 1, "price": 1}


def test_a_publish_whose_by_has_no_order_is_rejected():
    """A full publish is held to the same as a delta: a `by` that nothing compares with is a `schema_mismatch`."""
    driver = merging(key="explicit", **GROUP)
    driver.pipe_input("7", {"ts": True}, {"command": "publish"})
    [(reason, detail)] = rejected(driver)
    assert (reason, detail) == ("schema_mismatch", "sequence group by /ts: True and True have no order")


def applied_updates(record, command, body, pointers):
    """The rules without a group, for records of this test's fields."""
    if command == "publish":
        new = json.loads(json.dumps(body))
    else:
        new = {**record, **body, "book": {**record.get("book", {}), **body.get("book", {})}}
    for pointer in pointers:
        *path, last = pointer[1:].split("/")
        place = new.get(path[0], {}) if path else new
        place.pop(last, None)
    return new


def expected(life):
    """The group's fields by a replay in the order of `by`, and all others by one in the order of arrival."""
    arrived, ordered = {}, {}
    for update in life:
        arrived = applied_updates(arrived, *update)
    for update in sorted(life, key=lambda update: update[1].get("ts", -1)):
        ordered = applied_updates(ordered, *update)
    record = {name: value for name, value in arrived.items() if name not in ("ts", "price", "book")}
    record |= {name: ordered[name] for name in ("ts", "price") if name in ordered}
    book = {name: value for name, value in arrived.get("book", {}).items() if name != "bid"}
    if "bid" in ordered.get("book", {}):
        book["bid"] = ordered["book"]["bid"]
    return {**record, "book": book}


def full(record):
    """A record in which an empty object is the same as none."""
    return None if record is None else {name: value for name, value in record.items() if value != {}}


@pytest.mark.parametrize("seed", range(20))
def test_random_updates_in_any_order_give_what_the_rules_say(seed):
    """Publishes, deltas, removals and deletes, late and in time: each record as expected, and equal to its replay."""
    rng = random.Random(seed)
    driver = merging(key="explicit", **GROUP)
    replayed, life = None, []
    for _ in range(60):
        [command] = rng.choices(["publish", "delta_publish", "sow_delete"], [5, 15, 1])
        some = {"ts": rng.randrange(5), "price": rng.randrange(3), "x": rng.randrange(3), "book": {}}
        body = {name: value for name, value in some.items() if rng.random() < 0.6}
        if "book" in body:
            body["book"] = {name: rng.randrange(3) for name in ("bid", "n") if rng.random() < 0.7}
        pointers = [p for p in ("/price", "/ts", "/x", "/book/bid", "/book/n", "/book") if rng.random() < 0.15]
        if command == "sow_delete":
            pointers = []
        driver.pipe_input("7", body, removal(*pointers, command=command) if pointers else {"command": command})
        driver.commit()
        sow, deltas = driver.read_output("sow"), driver.read_output("delta")
        if command == "sow_delete":
            replayed, life = None, []
            continue
        delta = deltas[-1]
        life.append((command, body, pointers))
        merged = bodies(sow)[-1]
        assert full(merged) == full(expected(life)), life
        replayed = apply_delta(replayed, json.loads(delta.value), json.loads(told(delta).get("removed", "[]")))
        assert replayed == merged
