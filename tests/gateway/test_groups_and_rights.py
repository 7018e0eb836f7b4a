"""Groups (`grouping`, `projection`) together with rights, changes of rights, `replace` and `resume`."""

import asyncio
import json
import random
import urllib.parse
from collections import defaultdict

import pytest

from processor.record import Record
from processor.subscriptions import SubscriptionSpec
from processor.subscriptions.records.order_build import SLICE_RECORDS
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.select import Select
from processor.subscriptions.request.subscribe_options import parse_options
from tests.gateway.memory import RIGHTS, MemoryFeed, MemoryWorld

GROUPS = {"grouping": "[/desk]", "projection": "[SUM(/qty) AS /qty, COUNT(*) AS /n]", "oof": True}
BY_SECRET = {"grouping": "[/secret]", "projection": "[COUNT(*) AS /n, MAX(/secret) AS /most]", "oof": True}


def change_rights(guarded, **desk):
    """Change the rights of the role desk."""
    rights = json.loads(json.dumps(RIGHTS))
    rights["roles"]["desk"]["orders"] |= desk
    guarded.write(guarded.rights, rights)


def test_groups_count_visible_records_only(guarded):
    """A group has the records that its subscriber may see, and a hidden field is NULL in it."""
    client = guarded.world.connect("t-bob")
    groups = client.subscribe("sow_and_delta_subscribe", "orders", options=GROUPS)
    hidden = client.subscribe("sow_and_delta_subscribe", "orders", options=BY_SECRET)
    client.until(lambda: {groups, hidden} <= client.ready)
    guarded.world.put(3, desk="x", secret="mole", qty=5)
    guarded.world.put(4, desk="y", secret="mole", qty=9)
    client.until(lambda: client.held(groups) == {"x": {"desk": "x", "qty": 6, "n": 2}})
    client.until(lambda: [row["n"] for row in client.held(hidden).values()] == [2])
    [row] = client.held(hidden).values()
    assert row.get("secret") is None
    assert row.get("most") is None
    assert "mole" not in json.dumps(client.messages)
    client.close()


def test_a_change_of_rights_makes_the_groups_again(guarded):
    """After a change of rights the rows are those of the visible records, and no later update shows another one."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options=GROUPS)
    client.until(lambda: sub in client.ready)
    assert client.held(sub) == {"x": {"desk": "x", "qty": 1, "n": 1}}
    change_rights(guarded, read="/desk = 'y'")
    client.until(lambda: client.held(sub) == {"y": {"desk": "y", "qty": 2, "n": 1}})
    guarded.world.put(5, desk="x", qty=50)
    guarded.world.put(6, desk="y", qty=60)
    client.until(lambda: client.held(sub) == {"y": {"desk": "y", "qty": 62, "n": 2}})
    changed = client.refetches[0]
    assert changed == (sub, "entitlement")
    change_rights(guarded, read=False)
    client.until(lambda: any(m.get("op") == "ended" for m in client.messages))
    assert client.held(sub) == {}
    guarded.world.put(7, desk="y", qty=70)
    assert client.ask("ping")["status"] == "success"
    assert client.held(sub) == {}
    client.close()


def test_a_change_of_rights_makes_a_window_again(guarded):
    """A window loses the records that may not be seen any more, with the reason entitlement, and is filled again."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe(
        "sow_and_delta_subscribe", "orders", options={"order_by": "/qty DESC", "top_n": 1, "oof": True}
    )
    client.until(lambda: sub in client.ready)
    change_rights(guarded, read="/desk = 'y'")
    client.until(lambda: client.held(sub) == {"2": {"id": 2, "desk": "y", "qty": 2}})
    [oof] = [m for m in client.messages if m.get("command") == "oof"]
    assert (oof["sow_key"], oof["reason"], oof["data"]) == ("1", "entitlement", {"id": 1})
    guarded.world.put(8, desk="x", qty=99)
    guarded.world.put(9, desk="y", qty=98)
    client.until(lambda: client.held(sub) == {"9": {"id": 9, "desk": "y", "qty": 98}})
    client.close()


def test_a_snapshot_of_the_old_rights_ends_though_its_query_was_replaced():
    """A snapshot that waits while its query is replaced is not sent after a change of rights."""
    engine = MemoryFeed("orders").engine
    records = [Record(b"%d" % key, b'{"id":%d,"secret":"mole"}' % key, [("version", b"1")], key, 1) for key in range(9)]
    engine.take(0, records, 1)
    desk = engine.connect()
    form = {"snapshot": True, "live": True, "delta": False}

    def spec(asked, select=None):
        hidden = None if select is None else Select(select, engine.topic.key)
        options = parse_options(None, **form)
        return SubscriptionSpec(engine.topic, asked, options, **form, entitlement=Entitlement(None, hidden))

    running = desk.subscribe(spec(None), "a")
    assert [m.command for m in desk.take(2)] == ["group_begin", "sow"]
    running = desk.replace(running, spec("/id > 3"))
    assert desk.forget_messages(running)
    desk.unsubscribe(running)
    desk.subscribe(spec("/id > 3", "-/secret"), "a")
    assert "mole" not in repr([m.data for m in desk.take(100)])


def test_groups_are_not_replaced_and_say_so(guarded):
    """`replace` of a subscription with groups fails with the remedy, and the subscription goes on as it was."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options=GROUPS)
    client.until(lambda: sub in client.ready)
    answer = client.ask("replace", sub=sub, filter="/qty > 3")
    assert answer["status"] == "failure"
    assert "end it, and begin another one" in answer["detail"]
    plain = client.subscribe("sow_and_delta_subscribe", "orders")
    assert client.ask("replace", sub=plain, options=GROUPS)["status"] == "failure"
    guarded.world.put(3, desk="x", qty=5)
    client.until(lambda: client.held(sub) == {"x": {"desk": "x", "qty": 6, "n": 2}})
    client.until(lambda: set(client.held(plain)) == {"1", "3"})
    client.close()


def test_resumed_groups_are_fetched_again(guarded):
    """The bookmark of groups leads to a refetch with the reason, and to the rows of now by the rights of now."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options=GROUPS, id="g")
    client.until(lambda: sub in client.ready)
    guarded.world.put(3, desk="x", qty=5)
    client.until(lambda: client.held(sub)["x"]["n"] == 2)
    bookmark = client.bookmarks[sub]
    client.close()
    change_rights(guarded, read="/desk IN ('x', 'y')")
    guarded.world.put(1, desk="y", qty=1)
    again = guarded.world.connect("t-bob")
    again.until(lambda: again.ask("sow", topic="orders", filter="/desk = 'y'")["status"] == "success")
    again.records["g"] = dict(client.records[sub])
    again.send("sow_and_delta_subscribe", topic="orders", options=GROUPS, resume=bookmark, id="g")
    again.until(lambda: "g" in again.ready)
    assert again.refetches[0][0] == "g"
    again.until(lambda: again.held("g") == groups_of(guarded.world, ("x", "y")))
    again.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_of_groups_and_rights(guarded, seed):
    """With random updates, changes of rights and reconnects, the rows are always those of the visible records."""
    rng = random.Random(seed)
    world = guarded.world
    client = world.connect("t-bob")
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options=GROUPS, id="g")
    desks = ("x",)
    for _ in range(12):
        for _ in range(rng.randrange(1, 5)):
            key = rng.randrange(8)
            if rng.random() < 0.2 and str(key).encode() in world.feeds["orders"].records:
                world.delete(key)
            else:
                world.put(key, desk=rng.choice("xyz"), qty=rng.randrange(9))
        chance = rng.random()
        if chance < 0.4:
            desks = tuple(rng.sample("xyz", rng.randrange(1, 4)))
            change_rights(guarded, read=f"/desk IN ({', '.join(repr(desk) for desk in desks)})")
        elif chance < 0.6:
            bookmark = client.bookmarks.get(sub)
            records = client.records[sub]
            client.close()
            client = world.connect("t-bob")
            client.records["g"] = dict(records)
            client.send("sow_and_delta_subscribe", topic="orders", options=GROUPS, id="g", resume=bookmark)
        client.until(lambda client=client, desks=desks: client.held(sub) == groups_of(world, desks))
    client.close()


def groups_of(world, desks):
    """The rows of the records of some desks."""
    groups = defaultdict(list)
    for record in list(world.feeds["orders"].records.values()):
        value = json.loads(record.value)
        if value["desk"] in desks:
            groups[value["desk"]].append(value.get("qty"))
    return {desk: {"desk": desk, "qty": sum(each), "n": len(each)} for desk, each in groups.items()}


def test_the_event_loop_turns_while_the_order_of_a_window_is_built():
    """A window over many records is built in slices between which the event loop serves others and takes updates."""
    world = MemoryWorld()
    feed = world.feeds["orders"]
    turns = []

    async def count_turns():
        while True:
            if any(build.users for build in feed.engine._orders._builds.values()):
                turns.append(len(turns))
                if len(turns) % 10 == 0:
                    feed.write(len(turns), {"id": len(turns), "px": 2000 + len(turns)})
            await asyncio.sleep(0)

    try:
        world.gateway.call(lambda: [feed.write(key, {"id": key, "px": key % 1000}) for key in range(20_000)])
        counting = asyncio.run_coroutine_threadsafe(count_turns(), world.gateway._loop)
        client = world.connect()
        asked = {"order_by": "/px DESC, /id", "top_n": 3, "oof": True}
        name = client.subscribe("sow_and_subscribe", "orders", options=asked)
        counting.cancel()
        assert len(turns) >= 20_000 // SLICE_RECORDS
        client.until(lambda: name in client.ready)
        newest = len(turns) // 10 * 10
        client.until(lambda: set(client.held(name)) == {str(newest), str(newest - 10), str(newest - 20)})
        client.close()
    finally:
        world.close()


APART = 5_000
"""Records between two that match: more than a turn reads."""


def test_a_filter_that_matches_few_of_many_records_finds_them_all():
    """A query, over WebSocket and HTTP, goes on after slices of records in which nothing matched."""
    world = MemoryWorld()
    feed = world.feeds["orders"]
    try:
        world.gateway.call(lambda: [feed.write(key, {"id": key, "px": key}) for key in range(3 * APART)])
        wanted = sorted([str(APART + 2), str(2 * APART + 2)])
        asked = f"/px % {APART} = 2 AND /px > 9"
        client = world.connect()
        name = client.subscribe("sow", "orders", filter=asked)
        client.until(lambda: name in client.ready)
        assert sorted(client.held(name)) == wanted
        status, _, body = world.gateway.get(f"/v1/topics/orders/sow?filter={urllib.parse.quote(asked)}")
        assert (status, sorted(json.loads(line)["sow_key"] for line in body.splitlines())) == (200, wanted)
        client.close()
    finally:
        world.close()
