"""The gateway on a real broker: snapshots, deltas, and resuming from a bookmark at the same and at another gateway."""

import pytest

pytestmark = pytest.mark.broker


def test_a_client_holds_the_records_that_match_as_they_change(world, writer, start):
    """A subscriber gets a snapshot, deltas, whole records that enter, and oof for those that leave."""
    writer.put(1, qty=5)
    writer.put(2, qty=20)
    client = start().connect()
    sub = client.subscribe("sow_and_delta_subscribe", world.name, filter="/qty > 10", options={"oof": True})
    client.until(lambda: sub in client.ready)
    assert client.held(sub) == {"2": {"id": 2, "qty": 20}}
    writer.put(1, qty=11)
    writer.put(2, qty=20, note="x")
    client.until(lambda: client.held(sub) == {"1": {"id": 1, "qty": 11}, "2": {"id": 2, "qty": 20, "note": "x"}})
    writer.put(2, qty=3)
    writer.delete(1)
    client.until(lambda: client.held(sub) == {})
    assert {(m["sow_key"], m["reason"]) for m in client.messages if m.get("command") == "oof"} == {
        ("2", "match"),
        ("1", "deleted"),
    }
    client.close()


def test_a_client_resumes_after_the_gateway_was_started_again(world, writer, start):
    """With its bookmark a client gets what changed while it was away, and no snapshot, also from another process."""
    for key in range(4):
        writer.put(key, qty=10 + key)
    gateway = start()
    client = gateway.connect()
    sub = client.subscribe("sow_and_delta_subscribe", world.name, filter="/qty > 10", options={"oof": True})
    client.until(lambda: sub in client.bookmarks)
    bookmark, before = client.bookmarks[sub], client.records[sub]
    client.close()
    writer.put(1, qty=1)
    writer.put(0, qty=99)
    writer.put(3, qty=13, note="n")
    writer.delete(2)
    for restarted in (False, True):
        if restarted:
            gateway.stop()
            gateway = start()
        client = gateway.connect()
        client.records["again"] = dict(before)
        client.send(
            "sow_and_delta_subscribe",
            id="again",
            topic=world.name,
            filter="/qty > 10",
            options={"oof": True},
            resume=bookmark,
        )
        wanted = {"0": {"id": 0, "qty": 99}, "3": {"id": 3, "qty": 13, "note": "n"}}
        client.until(lambda client=client, wanted=wanted: client.held("again") == wanted)
        assert not client.refetches
        assert not any(m.get("command") == "sow" for m in client.messages)
        client.close()
