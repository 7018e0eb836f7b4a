"""Header `remove` through a worker, in every message type: fields are removed, or the command is refused."""

from __future__ import annotations

import json

import pytest

from tests.builtin.merging import acks, bodies, merging, rejected
from tests.merge.message_worlds import WORLDS


def sent(name: str, *commands: tuple[dict[str, object], dict[str, str]]):
    """A driver of a topic of this message type, after commands."""
    world = WORLDS[name]
    driver = merging(**world.settings)
    for body, headers in commands:
        driver.pipe_input("1", world.write({"id": "1", **body}), headers)
    return driver, world


@pytest.mark.parametrize("command", ["publish", "delta_publish"])
@pytest.mark.parametrize("below", ["/0", "/-", "/1/px"])
@pytest.mark.parametrize("name", WORLDS)
def test_a_pointer_into_an_array_is_refused_in_every_message_type(name, command, below):
    """An element of an array, also of repeated fields or elements, cannot be removed: `bad_header`, nothing changes."""
    pair = list(WORLDS[name].x)
    remove = {"remove": json.dumps([WORLDS[name].paths["v"] + below]), "command": command}
    # The array is the record's, and in the second record it comes with the command itself.
    for bodies_sent in (({"v": pair}, {"x": pair[0], "v": pair}), ({"x": pair[0]}, {"v": pair})):
        driver, world = sent(name, (bodies_sent[0], {}), (bodies_sent[1], remove))
        [(reason, detail)] = rejected(driver)
        assert reason == "bad_header"
        assert f"leads into the array at {world.paths['v']}" in detail
        assert len(driver.pending_output("sow")) == 1


@pytest.mark.parametrize("name", WORLDS)
def test_a_pointer_below_a_scalar_is_refused_in_every_message_type(name):
    """A path that leads below a scalar is a `bad_header`; the publisher's ack fails with it."""
    world = WORLDS[name]
    headers = {"remove": json.dumps([world.paths["x"] + "/y"]), "ack_type": "processed", "client": "c"}
    driver, _ = sent(name, ({"x": world.x[0]}, {}), ({"x": world.x[1]}, headers))
    [(reason, detail)] = rejected(driver)
    assert reason == "bad_header"
    assert f"leads below {world.paths['x']}" in detail
    [ack] = acks(driver)
    assert ack["status"] == "failure"
    assert ack["reason"].startswith("bad_header")


@pytest.mark.parametrize("name", WORLDS)
def test_a_field_that_is_not_there_is_no_error(name):
    """Missing fields, at the top and below missing objects, are acknowledged as removed; so are names said twice."""
    world = WORLDS[name]
    top = world.paths["x"].rpartition("/")[0]
    pointers = [world.paths["x"], world.paths["x"], f"{top}/no", f"{top}/no/deeper", f"{top}/"]
    driver, _ = sent(name, ({"x": world.x[0], "v": world.x[1]}, {}), ({}, {"remove": json.dumps(pointers)}))
    assert rejected(driver) == []
    record = world.read(driver.pending_output("sow")[-1].value)
    assert "x" not in record
    assert "v" in record


def test_a_pointer_follows_the_record_as_the_command_leaves_it():
    """The removal comes after the merge: what the command replaces by a scalar has no members, an object has."""
    driver = merging(key="explicit")
    driver.pipe_input("7", {"o": {"a": 1, "b": 2}, "s": 5})
    driver.pipe_input("7", {"o": 3}, {"remove": '["/o/a"]'})
    assert [reason for reason, _ in rejected(driver)] == ["bad_header"]
    driver.pipe_input("7", {"s": {"a": 1, "b": 2}}, {"remove": '["/s/a", "/o/b"]'})
    assert bodies(driver.pending_output("sow"))[-1] == {"o": {"a": 1}, "s": {"b": 2}}


def test_a_replaced_object_below_merge_depth_has_fields_to_remove():
    """`merge_depth` says how deep a delta merges, and not how deep a field may be that is removed."""
    driver = merging(key="explicit", merge_depth=1)
    driver.pipe_input("7", {"o": {"a": {"b": 1, "c": 2}}})
    driver.pipe_input("7", {}, {"remove": '["/o/a/b"]'})
    assert bodies(driver.pending_output("sow"))[-1] == {"o": {"a": {"c": 2}}}


@pytest.mark.parametrize("value", [None, {}], ids=["tombstone", "sow_delete"])
def test_a_delete_that_names_fields_is_refused(value):
    """A delete with header `remove` may mean less than the record: `bad_header`, and the record stays."""
    driver = merging(key="explicit")
    driver.pipe_input("7", {"a": 1, "b": 2})
    driver.pipe_input("7", value, {"remove": '["/a"]', **({} if value is None else {"command": "sow_delete"})})
    [(reason, detail)] = rejected(driver)
    assert (reason, "delta_publish" in detail) == ("bad_header", True)
    assert len(driver.pending_output("sow")) == 1
    driver.pipe_input("7", None, {"remove": "[]"})
    assert driver.pending_output("sow")[-1].value is None


def test_a_delete_by_filter_that_names_fields_is_refused():
    """A delete by filter with header `remove` deletes no record: `bad_header`."""
    driver = merging(key="explicit")
    driver.pipe_input("7", {"a": 1})
    driver.pipe_input(None, None, {"filter": "/a = 1", "remove": '["/a"]'})
    assert [reason for reason, _ in rejected(driver)] == ["bad_header"]
    assert len(driver.pending_output("sow")) == 1
