"""Rights on commands: each is judged as the worker reads it, and a hidden record or field might as well not exist."""

import json
from concurrent.futures import Future
from urllib.parse import quote

import pytest
from websockets.exceptions import ConnectionClosed

from processor.codec import codec_of
from processor.config import Config
from processor.filter import compile_filter
from processor.gateway.access.entitlements import Rights
from processor.gateway.access.requests import BadRequest
from processor.gateway.commands import checked_commands, command_check, turns
from processor.gateway.commands.command_check import (
    NO_RECORD,
    Command,
    CommandCheck,
    CurrentRecord,
    Permission,
    encoded,
)
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Topic
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.select import Select
from tests.gateway.memory import RIGHTS, TOKENS, Guarded, MemoryWorld
from tests.programs.gateway.command_cases import cases
from tests.programs.gateway.commands import find_holes, run
from tests.waiting import until


def decide(data, right, *, message_type="json", key=("/id",), op="publish", before=None, select=None, **settings):
    """The decision about one message of a user whose rights to read and to publish are the same filter."""
    config = Config(topics={"t": {"key": list(key), "message_type": message_type, **settings}})
    topic, current = Topic("t", codec_of(config, "t"), KeyFields(key)), NO_RECORD
    own = compile_filter(right)
    rights = Rights(Entitlement(own, Select(select, topic.key) if select else None), may_publish=True, publish=own)
    if before is not None:
        record = Record(b"k", topic.codec.encode(before), [("version", b"3")], 0, 0)
        current = CurrentRecord(3, topic.value(record), topic.metadata_of(record), record)
    command = Command(op, topic.key.text(data) or "k", *encoded(topic, op, data))
    return CommandCheck(topic, config.topic("t")).decide("bob", rights, command, current)


@pytest.mark.parametrize(
    ("message_type", "key", "mine", "other"),
    [
        ("json", ("/id",), {"id": 1, "desk": "x"}, {"id": 1, "desk": "y"}),
        ("json", ("/id", "/b/c"), {"id": 1, "b": {"c": "z"}, "desk": "x"}, {"id": 1, "b": {"c": "z"}, "desk": "y"}),
        ("nvfix", ("/id",), {"id": "1", "desk": "x"}, {"id": "1", "desk": "y"}),
        ("msgpack", ("/id",), {"id": 1, "desk": "x"}, {"id": 1, "desk": "y"}),
        ("bson", ("/id",), {"id": 1, "desk": "x"}, {"id": 1, "desk": "y"}),
    ],
)
def test_records_before_and_after_are_checked_in_each_message_type(message_type, key, mine, other):
    """A record of the user's own is changed, and none is taken over or given away."""
    kind = {"message_type": message_type, "key": key}
    assert decide(mine, "/desk = 'x'", **kind) == Permission(0)
    assert decide(mine, "/desk = 'x'", before=mine, op="delta_publish", **kind) == Permission(3)
    for data, before in ((other, None), (other, mine), (mine, other)):
        for op in ("publish", "delta_publish"):
            with pytest.raises(BadRequest, match="may not publish this record"):
                decide(data, "/desk = 'x'", before=before, op=op, **kind)


def test_a_value_is_checked_as_it_will_be_stored():
    """A number in a message type of texts is stored as its text, and matches the filter as that."""
    assert decide({"id": "1", "qty": 5}, "/qty = '5'", message_type="nvfix") == Permission(0)


@pytest.mark.parametrize("right", ["SOW_KEY() NOT IN ('1', '2')", "NOT (SOW_KEY() = '1')", "NOT (TOPIC_NAME() = 't')"])
def test_a_right_on_the_key_or_the_topic_is_checked(right):
    """A filter of `publish` knows the key and the topic of a message, and no key that it excludes is written."""
    for op in ("publish", "delta_publish"):
        with pytest.raises(BadRequest, match="may not publish this record"):
            decide({"id": 1}, right, op=op)
    assert decide({"id": 3}, "SOW_KEY() NOT IN ('1', '2') AND TOPIC_NAME() = 't'") == Permission(0)


def test_the_policy_of_a_topic_decides_what_a_delta_changes():
    """A null that removes a field, and an object that replaces another one, count as what they do to the record."""
    own = {"id": 1, "desk": "x", "o": {"open": 1, "secret": 2}}
    with pytest.raises(BadRequest, match="may not publish"):
        decide({"id": 1, "desk": None}, "/desk = 'x'", before=own, op="delta_publish", null_policy="remove")
    assert decide({"id": 1, "desk": None}, "/desk = 'x'", before=own, op="delta_publish") == Permission(3)
    merges = {"before": own, "op": "delta_publish", "select": "-/o/secret"}
    assert decide({"id": 1, "o": {"open": 2}}, "/desk = 'x'", **merges) == Permission(3)
    with pytest.raises(BadRequest, match="may not see every field"):
        decide({"id": 1, "o": {"open": 2}}, "/desk = 'x'", merge_depth=1, **merges)


@pytest.mark.parametrize(
    ("select", "before", "delta", "is_refused"),
    [
        ("-/,+/o/open", {"o": {"open": 1, "secret": 2}}, {"o": {"open": 2}}, False),
        ("-/,+/o/open", {"o": {"secret": 2}}, {"o": {"open": 2}}, True),
        ("-/,+/o/open", {"o": 5}, {"o": {"open": 2}}, True),
        ("-/legs/secret", {"legs": [{"secret": 1}]}, {"legs": [{"open": 1}]}, True),
        ("-/legs/secret", {"legs": [{"secret": 1}]}, {"legs": {"open": 1}}, True),
        ("-/o/secret", {"o": 5}, {"o": {"open": 1}}, False),
        ("-/o/secret", {}, {"o": {"open": 1}}, False),
        ("-/o/secret", {}, {"o": {"open": 1, "secret": 1}}, True),
    ],
)
def test_what_is_hidden_is_never_replaced(select, before, delta, is_refused):
    """Each value that has a hidden part, or may have one, keeps it: an object, an array, a value in their place."""
    record, message = {"id": 1, "desk": "x", **before}, {"id": 1, **delta}
    shown = f"{select},+/desk" if select.startswith("-/,") else select
    if is_refused:
        with pytest.raises(BadRequest, match="may not see every field"):
            decide(message, "/desk = 'x'", before=record, op="delta_publish", select=shown)
    else:
        assert decide(message, "/desk = 'x'", before=record, op="delta_publish", select=shown) == Permission(3)


EDITOR = {
    "read": "/desk = 'x'",
    "select": "-/secret,-/deep/secret",
    "publish": "/desk = 'x'",
    "delete": True,
}
HIDDEN, ABSENT = 2, 9
MAY_NOT = "bob may not publish this record to orders"


@pytest.fixture
def guarded(tmp_path):
    """A gateway where bob edits desk x, without two fields; record 1 is his, record 2 is another desk's."""
    made = Guarded(tmp_path)
    made.write(made.rights, {**RIGHTS, "roles": {"desk": {"orders": EDITOR}}})
    made.world.gateway.call(made.world.gateway.gateway.entitlements.load)
    made.world.put(1, desk="x", secret=1, deep={"secret": 1, "open": 1})
    yield made
    made.world.close()


@pytest.fixture
def bob(guarded):
    """Bob's connection."""
    client = guarded.world.connect("t-bob")
    yield client
    client.close()


def stored(guarded, key):
    """The record that the worker has; None: there is none."""
    record = guarded.world.feeds["orders"].records.get(str(key).encode())
    return None if record is None else json.loads(record.value)


def post(guarded, path, body=b""):
    """The status and the answer of a POST of bob's."""
    status, _, text = guarded.world.gateway.get(f"/v1/topics/orders/{path}", {"Authorization": "Bearer t-bob"}, body)
    return status, json.loads(text)


@pytest.mark.parametrize("op", ["publish", "delta_publish"])
def test_a_hidden_record_cannot_be_taken_over(guarded, bob, op):
    """A message that moves a hidden record to bob's desk is refused as one that he may not publish; no version."""
    before = stored(guarded, HIDDEN)
    taken = bob.ask(op, topic="orders", data={"id": HIDDEN, "desk": "x"}, ack="persisted")
    foreign = bob.ask(op, topic="orders", data={"id": ABSENT, "desk": "y"}, ack="persisted")
    assert {**taken, "id": ""} == {**foreign, "id": ""}
    assert (taken["reason"], taken["detail"]) == ("not_entitled", MAY_NOT)
    assert "version" not in taken
    assert post(guarded, op, b'{"id": 2, "desk": "x"}') == post(guarded, op, b'{"id": 9, "desk": "y"}')
    assert stored(guarded, HIDDEN) == before


@pytest.mark.parametrize("key", ['["2", "a"]', '["2","\\u0061"]'])
def test_a_key_is_the_same_in_each_spelling(tmp_path, key):
    """A hidden record is none, and an own one is deleted, however the array of its key fields is spelled."""
    guarded = Guarded(tmp_path, keys={"orders": ("/id", "/k")})
    guarded.write(guarded.rights, {**RIGHTS, "roles": {"desk": {"orders": EDITOR}}})
    guarded.world.gateway.call(guarded.world.gateway.gateway.entitlements.load)
    bob, own_key = guarded.world.connect("t-bob"), '["2","a"]'
    try:
        for is_own in (False, True):
            row = {"id": "2", "k": "a", "desk": "x" if is_own else "y"}
            guarded.world.gateway.call(guarded.world.feeds["orders"].write, own_key, row)
            taken = bob.ask("delta_publish", topic="orders", key=key, data={"desk": "x", "n": 1}, ack="processed")
            assert taken["status"] == ("success" if is_own else "failure")
            path = f"/v1/topics/orders/records/{quote(key)}"
            assert guarded.world.gateway.get(path, {"Authorization": "Bearer t-bob"})[0] == (200 if is_own else 404)
            deleted = bob.ask("sow_delete", topic="orders", key=key, ack="stats")
            assert (deleted["status"], deleted["records_deleted"]) == ("success", int(is_own))
            assert stored(guarded, own_key) == (None if is_own else row)
            assert stored(guarded, key) is None
    finally:
        bob.close()
        guarded.world.close()


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("sow_delete", {"key": "{key}"}),
        ("sow_delete", {"data": {"id": "{key}"}}),
        ("sow_delete", {"keys": ["{key}"]}),
        ("sow_delete", {"filter": "SOW_KEY() = '{key}'"}),
        ("sow_delete", {"key": "{key}", "expect_version": 0}),
        ("sow_delete", {"key": "{key}", "expect_version": 1}),
        ("sow_delete", {"key": "{key}", "expect_version": 99}),
        ("publish", {"data": {"id": "{key}", "desk": "x"}, "expect_version": 1}),
        ("delta_publish", {"data": {"id": "{key}", "desk": "x"}, "expect_version": 99}),
        ("delta_publish", {"data": {"id": "{key}", "qty": 1}}),
        ("delta_publish", {"data": {"id": "{key}", "secret": 2}}),
    ],
)
@pytest.mark.parametrize("ack", [None, "processed", "received,processed,persisted"])
def test_a_hidden_record_is_answered_as_none(guarded, bob, op, fields, ack):
    """Every command gets the same answers for the key of a hidden record as for one without a record."""
    before, answers = stored(guarded, HIDDEN), []
    for key in (HIDDEN, ABSENT):
        asked = json.loads(json.dumps(fields).replace("{key}", str(key)))
        if ack is not None:
            asked["ack"] = f"{ack},stats" if op == "sow_delete" else ack
        begin = len(bob.messages)
        bob.ask(op, topic="orders", **asked)
        bob.ask("ping")
        acks = [message for message in bob.messages[begin:] if message.get("op") == "ack"]
        answers.append(json.loads(json.dumps([{**one, "id": ""} for one in acks]).replace(f'"{key}"', '"K"')))
    assert answers[0] == answers[1]
    assert stored(guarded, HIDDEN) == before


@pytest.mark.parametrize(
    "delta",
    [
        {"secret": 9},
        {"secret": None},
        {"secret": {"a": 1}},
        {"deep": 9},
        {"deep": None},
        {"deep": []},
        {"deep": {"open": 2, "secret": 2}},
        {"deep": {"secret": {}}},
        {"secret": 1},
    ],
)
def test_a_hidden_field_cannot_be_overwritten(guarded, bob, delta):
    """A delta with a hidden field, or with an object around one, is refused, also where it would change nothing."""
    before = stored(guarded, 1)
    assert (
        bob.ask("delta_publish", topic="orders", data={"id": 1, **delta}, ack="persisted")["reason"] == "not_entitled"
    )
    assert bob.ask("publish", topic="orders", data={"id": ABSENT, "desk": "x", **delta})["reason"] == "not_entitled"
    assert stored(guarded, 1) == before


def test_fields_beside_hidden_ones_can_be_changed(guarded, bob):
    """A delta merges into an object that has a hidden field, and a publish cannot replace a record that has one."""
    done = bob.ask("delta_publish", topic="orders", data={"id": 1, "deep": {"open": 2}}, ack="persisted")
    assert done["status"] == "success"
    assert stored(guarded, 1) == {"id": 1, "desk": "x", "secret": 1, "deep": {"secret": 1, "open": 2}}
    refused = bob.ask("publish", topic="orders", data={"id": 1, "desk": "x"}, ack="persisted")
    assert (refused["reason"], "delta_publish" in refused["detail"]) == ("not_entitled", True)
    created = bob.ask("publish", topic="orders", data={"id": ABSENT, "desk": "x"}, ack="persisted")
    assert created["status"] == "success"


def test_a_record_that_becomes_hidden_meanwhile_is_not_changed(guarded, bob):
    """A command that was allowed by a view that is behind is decided again by the record that the worker has."""
    world, feed = guarded.world, guarded.world.feeds["orders"]
    world.gateway.call(feed.fall_behind)
    world.put(1, desk="y", secret=1)
    asked = [
        bob.send("delta_publish", topic="orders", data={"id": 1, "qty": 5}, ack="persisted"),
        bob.send("sow_delete", topic="orders", key="1", ack="persisted,stats"),
        bob.send("sow_delete", topic="orders", filter="/deep/open = 1", ack="stats"),
    ]
    bob.ask("ping")
    world.gateway.call(feed.catch_up)
    bob.until(lambda: all(one in bob.acks for one in asked))
    assert bob.acks[asked[0]]["detail"] == MAY_NOT
    assert [bob.acks[one]["status"] for one in asked[1:]] == ["success", "success"]
    assert bob.acks[asked[2]]["records_deleted"] == 0
    assert stored(guarded, 1) == {"id": 1, "desk": "y", "secret": 1}


def test_a_delete_by_filter_deletes_no_record_that_has_changed_meanwhile(guarded, bob):
    """A record that no longer matches stays, also for a user who may read all records, and not all fields."""
    world, feed = guarded.world, guarded.world.feeds["orders"]
    grant = {"read": True, "select": "-/secret", "delete": True}
    guarded.write(guarded.rights, {**RIGHTS, "roles": {"desk": {"orders": grant}}})
    world.gateway.call(world.gateway.gateway.entitlements.load)
    world.put(1, state="old")
    world.gateway.call(feed.fall_behind)
    world.put(1, state="new")
    asked = bob.send("sow_delete", topic="orders", filter="/state = 'old'", ack="stats")
    bob.ask("ping")
    world.gateway.call(feed.catch_up)
    bob.until(lambda: asked in bob.acks)
    assert bob.acks[asked]["records_deleted"] == 0
    assert stored(guarded, 1) == {"id": 1, "state": "new"}


def test_a_command_that_waits_is_not_carried_out_after_its_token_was_revoked(guarded, bob):
    """A command that is decided again, as its record changed, is refused if its token was revoked meanwhile."""
    world, feed = guarded.world, guarded.world.feeds["orders"]
    world.gateway.call(feed.fall_behind)
    world.put(1, desk="x", qty=7)
    bob.send("delta_publish", topic="orders", data={"id": 1, "qty": 5}, ack="persisted")
    bob.ask("ping")
    guarded.write(guarded.tokens, {name: one for name, one in TOKENS.items() if name != "t-bob"})
    with pytest.raises(ConnectionClosed):
        bob.until(lambda: False)
    world.gateway.call(feed.catch_up)
    order = world.gateway.gateway.publishing._checked.turns
    until(lambda: not world.gateway.call(lambda: order._tasks))
    assert stored(guarded, 1) == {"id": 1, "desk": "x", "qty": 7}


def test_commands_for_one_key_keep_their_order(guarded, bob):
    """Commands that are sent without waiting are carried out in their order, each on the record of the last one."""
    asked = [
        bob.send("delta_publish", topic="orders", data={"id": 1, "qty": number}, ack="persisted", sequence=number)
        for number in range(1, 31)
    ]
    bob.until(lambda: all(one in bob.acks for one in asked))
    assert [bob.acks[one]["status"] for one in asked] == ["success"] * 30
    assert stored(guarded, 1)["qty"] == 30
    assert stored(guarded, 1)["secret"] == 1
    assert guarded.world.feeds["orders"].versions[b"1"] == 32


@pytest.mark.parametrize("asked", [{"keys": [f"k{number}" for number in range(11)]}, {"filter": "/desk = 'x'"}])
def test_a_delete_under_a_read_filter_has_a_limited_number_of_records(guarded, bob, monkeypatch, asked):
    """A delete of more records than the gateway takes is refused, and deletes nothing; a smaller one is carried out."""
    world, feed = guarded.world, guarded.world.feeds["orders"]
    grant = {"read": "/desk = 'x'", "delete": True}
    guarded.write(guarded.rights, {**RIGHTS, "roles": {"desk": {"orders": grant}}})
    world.gateway.call(world.gateway.gateway.entitlements.load)
    for number in range(11):
        world.put(f"k{number}", desk="x")
    count = len(feed.records)
    monkeypatch.setattr(command_check, "_KEYS_MAX", 10)
    refused = bob.ask("sow_delete", topic="orders", ack="stats", **asked)
    assert (refused["status"], refused["reason"], len(feed.records)) == ("failure", "too_large", count)
    monkeypatch.undo()
    monkeypatch.setattr(checked_commands, "_DELETES_MAX", 4)
    assert bob.ask("sow_delete", topic="orders", ack="stats", **asked)["records_deleted"] in (11, 12)
    assert not any(key.startswith(b"k") for key in feed.records)


@pytest.mark.parametrize("own", [True, "/desk = 'x'"])
def test_a_topic_without_a_worker_holds_up_no_other_topic(tmp_path, monkeypatch, own):
    """Commands that no worker acknowledges are refused beyond a number; those to other topics go on, of all users."""
    monkeypatch.setattr(turns, "_UNACKED_OF_TOPIC_MAX", 40)
    monkeypatch.setattr(turns, "_STALL_S", 0.2)
    grants = {topic: {"read": own, "publish": own} for topic in ("orders", "prices")}
    Guarded.write(tmp_path / "rights.yaml", {"users": {"ann": grants, "eve": grants}})
    Guarded.write(tmp_path / "tokens.yaml", TOKENS)
    files = {"auth": {"tokens_file": tmp_path / "tokens.yaml"}, "entitlements": tmp_path / "rights.yaml"}
    world = MemoryWorld("orders", "prices", **files)
    publishing = world.gateway.gateway.publishing
    send, waiting = publishing._send, []

    def without_worker(name, op, topic, arguments):
        if topic == "prices" or waiting is None:
            return send(name, op, topic, arguments)
        waiting.append((Future(), (name, op, topic, arguments)))
        return waiting[-1][0]

    def publish(client, topic, key, way="send"):
        return getattr(client, way)("publish", topic=topic, data={"id": key, "desk": "x"}, ack="persisted")

    publishing._send = without_worker
    try:
        ann, eve = (world.connect(token) for token in ("t-ann", "t-eve"))
        asked = [publish(ann, "orders", key) for key in range(15)]
        ann.until(lambda: len(ann.acks) == 1 + 5)
        assert {ann.acks[one]["reason"] for one in asked[10:]} == {"unavailable"}
        for number, client in enumerate((ann, eve)):
            assert publish(client, "prices", number, "ask")["status"] == "success"
        taken = publish(eve, "orders", 15)
        until(lambda: len(waiting) == 11)
        (sent, waiting) = (waiting, None)
        for future, arguments in sent:
            send(*arguments).add_done_callback(lambda done, future=future: future.set_result(done.result()))
        ann.until(lambda: all(one in ann.acks for one in asked))
        eve.until(lambda: taken in eve.acks)
        assert [ann.acks[one]["status"] for one in asked[:10]] == ["success"] * 10
        assert publish(ann, "orders", 16, "ask")["status"] == "success"
        until(lambda: not world.gateway.call(lambda: publishing._unacked._groups))
    finally:
        waiting = None
        world.close()


def test_a_user_that_reads_nothing_publishes_full_records_only(guarded, bob):
    """Without the right to read, a delta and a delete are refused; a publish needs its filter before and after."""
    grant = {"publish": "/desk = 'x'", "delete": True}
    guarded.write(guarded.rights, {**RIGHTS, "roles": {"desk": {"orders": grant}}})
    guarded.world.gateway.call(guarded.world.gateway.gateway.entitlements.load)
    for op, fields in (("delta_publish", {"data": {"id": 1, "desk": "x"}}), ("sow_delete", {"key": "1"})):
        assert bob.ask(op, topic="orders", ack="persisted", **fields)["reason"] == "not_entitled"
    asked = {"topic": "orders", "ack": "persisted"}
    assert bob.ask("publish", data={"id": 1, "desk": "x", "qty": 3}, **asked)["status"] == "success"
    assert bob.ask("publish", data={"id": HIDDEN, "desk": "x"}, **asked)["detail"] == MAY_NOT
    assert stored(guarded, 1) == {"id": 1, "desk": "x", "qty": 3}


def test_commands_have_the_outcome_of_an_oracle():
    """Some rights, each command and each state of a record, over two ways: outcome, record and text are right."""
    some = cases(("websocket", "http"), ("some", "writer", "feeder"))
    assert len(some) > 700
    assert run(some) == []


def test_a_hole_in_the_checks_is_found():
    """With a hole in the product the same comparison finds wrong outcomes."""
    found = find_holes(cases(("websocket",), ("some",)), ("the record before is not looked at", "no condition is sent"))
    assert all(found.values()), found
