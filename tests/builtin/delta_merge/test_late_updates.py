"""Sequence groups through a worker: deltas, full publishes, header `remove` and deletes that come late."""

import json
import random

import pytest

from processor.merge import apply_delta
from tests.builtin.merging import bodies, merging, rejected, told

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


def remove(*pointers, **headers):
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
    record, _, removed, stale = after((body, remove("/price", "/ts", "/book/bid", "/x", command=command)))
    assert record == {"ts": 5, "price": 10, "book": {"bid": 1, "n": 2}}
    assert (removed, stale) == (["/x"], 1)


def test_a_late_removal_of_an_object_leaves_the_field_of_the_group_in_it():
    """The members of the object that are in no group are removed."""
    record, _, removed, stale = after(({"ts": 2}, remove("/book")))
    assert (record["book"], removed, stale) == ({"bid": 1}, ["/book/n"], 1)


def test_a_removal_that_is_not_older_is_done():
    """An update as old as the record, or newer, removes the group's fields and `by` itself."""
    for ts in (5, 6):
        record, delta, removed, stale = after(({"ts": ts}, remove("/price", "/book", "/ts")))
        assert (record, delta, sorted(removed), stale) == ({"x": 1}, {}, ["/book", "/price", "/ts"], 0)


def test_a_late_update_cannot_take_the_clock_away():
    """After a late removal of `by`, an update older than the record is still late."""
    late = ({"ts": 2}, remove("/ts")), ({"ts": 1, "price": 1}, {})
    assert after(*late)[0] == NEWEST


def test_a_removal_that_touches_no_group_is_not_stale():
    """A removal without `by` of fields outside of every group is done and not counted."""
    record, _, removed, stale = after(({}, remove("/x", "/nothing")))
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


def applied(record, command, body, pointers):
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
        arrived = applied(arrived, *update)
    for update in sorted(life, key=lambda update: update[1].get("ts", -1)):
        ordered = applied(ordered, *update)
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
        driver.pipe_input("7", body, remove(*pointers, command=command) if pointers else {"command": command})
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
