"""Merge rules by field and the header `remove` in a merged topic."""

from __future__ import annotations

import json

import pytest

from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.merge import apply_delta
from tests.builtin.installed import install
from tests.builtin.merging import acks, bodies, kinds, merging, rejected, told
from tests.merge.message_worlds import WORLDS

RULES = {"merge_rules": {"/sum": "sum", "/max": "max"}}
GROUPS = {"sequence_groups": [{"by": "/ts", "fields": ["/price"]}]}


def test_rules_meet_the_record_and_the_delta_topic_tells_the_outcome():
    """The first delta meets no record; a full publish replaces, rules or not."""
    driver = merging(**RULES)
    deltas = [{"sum": 1, "max": 5}, {"sum": 2, "max": 3}, {"sum": 3, "max": 9}]
    driver.pipe_batch([("7", body, None) for body in deltas])
    driver.pipe_input("7", {"sum": 1, "max": 1}, {"command": "publish"})
    assert bodies(driver.pending_output("sow")) == [
        {"sum": 1, "max": 5}, {"sum": 3, "max": 5}, {"sum": 6, "max": 9}, {"sum": 1, "max": 1, "id": "7"},
    ]  # fmt: skip
    assert bodies(driver.pending_output("delta"))[1] == {"sum": 3}


@pytest.mark.parametrize("calamity", ["abort", "crash"])
def test_nothing_is_added_twice(calamity):
    """Neither a record that comes again after a crash nor one that its publisher repeats is added twice."""
    driver = merging(**RULES)
    driver.pipe_input("7", {"sum": 1}, {"client": "c", "sequence": "1"})
    driver.commit()
    driver.pipe_input("7", {"sum": 2}, {"client": "c", "sequence": "2"})
    getattr(driver, calamity)()
    driver.pipe_input("7", {"sum": 2}, {"client": "c", "sequence": "2"})
    driver.commit()
    driver.crash()
    assert bodies(driver.read_output("sow")) == [{"sum": 1}, {"sum": 3}]


def test_a_late_delta_is_counted_and_undoes_nothing():
    """A late delta is counted; it leaves the group as it is, and its other fields apply."""
    driver = merging(**GROUPS)
    driver.pipe_batch([("7", {"ts": 2, "price": 2}, None), ("7", {"ts": 1, "price": 1, "note": "x"}, None)])
    assert bodies(driver.pending_output("sow"))[1] == {"ts": 2, "price": 2, "note": "x"}
    driver.commit()
    assert driver.events == {"stale_group": 1}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"null_policy": "set"},
        {"null_policy": "remove"},
        {"merge_depth": 2},
        {"sequence_groups": [{"by": "/ts", "fields": ["/book"]}]},
        {"enrich": {"/a": "/book/net/a"}, "null_policy": "remove"},
    ],
)
def test_the_object_of_a_rule_replaces_that_of_the_record(settings, tmp_path, monkeypatch):
    """A member that the result of a plug-in's rule lacks is removed, and the delta record says so."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    driver = merging(merge_rules={"/book/net": "net"}, **settings)
    deltas = [{"a": 5, "b": 1}, {"a": -5}, {"b": -1, "c": 2}, {"c": -2}, {"a": 3}]
    headers = [None, None, {"remove": '["/x"]'}, None, None]
    messages = [{"ts": 1, "book": {"net": delta}} for delta in deltas]
    driver.pipe_batch([("7", body, more) for body, more in zip(messages, headers, strict=True)])
    records = bodies(driver.pending_output("sow"))
    expected = [{"a": 5, "b": 1}, {"b": 1}, {"c": 2}, {}, {"a": 3}]
    assert [record["book"]["net"] for record in records] == expected
    assert [record.get("a") for record in records] == ([5, None, None, None, 3] if "enrich" in settings else [None] * 5)
    replayed = None
    for record, delta in zip(records, driver.pending_output("delta"), strict=True):
        replayed = apply_delta(replayed, json.loads(delta.value), json.loads(told(delta).get("removed", "[]")))
        assert replayed == record


def test_a_rule_that_does_not_exist_stops_the_start():
    """An unknown rule is refused at the start, with the settings in the message."""
    with pytest.raises(ConfigurationError, match="sun"):
        merging(merge_rules={"/n": "sun"})


FULL = {"pair": "EURUSD", "bid": 1.0850, "offer": 1.0854, "size": {"bid": 5, "offer": 3}, "note": None}
TIGHTER = {"pair": "EURUSD", "offer": 1.0852}
MERGED = FULL | TIGHTER


def currencies():
    """A driver of a topic of currency pairs as UM merges them."""
    return merging(preset="um", key=("/pair",))


def test_the_late_joiner_gets_the_whole_and_the_earlier_one_the_delta():
    """A late joiner gets the full EURUSD record; an earlier subscriber gets the tighter offer as a delta."""
    driver = currencies()
    driver.pipe_input("EURUSD", FULL)
    driver.pipe_input("EURUSD", TIGHTER, {"allow-merge": "true"})
    driver.commit()
    assert bodies(driver.read_output("sow"))[-1] == MERGED
    first, second = bodies(driver.read_output("delta"))
    assert (first, second) == (FULL, TIGHTER)
    assert apply_delta(apply_delta(None, first), second) == MERGED
    assert kinds(driver.read_output("delta")) == [("EURUSD", "1", "insert"), ("EURUSD", "2", None)]
    assert driver.rejections == {}


def test_a_publish_that_does_not_allow_merging_replaces():
    """With the flag false or without it, fields that the publish lacks are gone and listed as removed."""
    for headers in (None, {"allow-merge": "false"}):
        driver = currencies()
        driver.pipe_batch([("EURUSD", FULL, None), ("EURUSD", TIGHTER, headers)])
        assert bodies(driver.pending_output("sow"))[-1] == TIGHTER
        told_last = driver.pending_output("delta")[-1]
        assert bodies([told_last]) == [TIGHTER]
        assert told(told_last)["removed"] == '["/bid", "/size", "/note"]'


def test_a_nested_object_replaces_and_a_null_is_a_value():
    """UM's engine merges the fields of the event and replaces nested objects; nulls are stored."""
    driver = currencies()
    change = {"pair": "EURUSD", "size": {"bid": None}, "bid": None}
    driver.pipe_batch([("EURUSD", FULL, None), ("EURUSD", change, {"allow-merge": "true"})])
    assert bodies(driver.pending_output("sow"))[-1] == FULL | change
    assert told(driver.pending_output("delta")[-1])["removed"] == '["/size/offer"]'


def test_the_first_event_of_a_pair_may_allow_merging():
    """Merged with no record an event is stored as it is, nulls too."""
    driver = currencies()
    driver.pipe_input("EURUSD", FULL, {"allow-merge": "true"})
    assert bodies(driver.pending_output("sow")) == [FULL]


def test_pairs_do_not_meet():
    """A delta for one pair leaves the others; one that names another pair than its key is rejected."""
    driver = currencies()
    gbp = FULL | {"pair": "GBPUSD"}
    driver.pipe_batch([("EURUSD", FULL, None), ("GBPUSD", gbp, None), ("EURUSD", TIGHTER, {"allow-merge": "true"})])
    assert bodies(driver.pending_output("sow")) == [FULL, gbp, MERGED]
    driver.pipe_input("GBPUSD", TIGHTER, {"allow-merge": "true"})
    assert [reason for reason, _ in rejected(driver)] == ["key_mismatch"]


def test_a_setting_beats_the_preset():
    """The preset is three settings, and each may be another."""
    preset = TopicConfig(preset="um")
    assert (preset.merge_depth, preset.null_policy, preset.default_command) == (1, "set", "publish")
    driver = merging(preset="um", key=("/pair",), null_policy="ignore")
    driver.pipe_batch([("EURUSD", FULL, None), ("EURUSD", {"bid": None}, {"allow-merge": "true"})])
    assert bodies(driver.pending_output("sow"))[-1] == FULL


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
