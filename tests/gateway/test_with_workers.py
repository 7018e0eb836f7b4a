"""Publishes through the gateway on a real broker with a real worker: acks, expected versions and idempotency keys."""

import json

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def client(world, start):
    """A client of a gateway whose topics a worker merges."""
    world.start()
    connected = start().connect()
    yield connected
    connected.close()


def acks_of(client, **fields):
    """The answers to one publish, one for each type of ack that it asks for."""
    before = len(client.messages)
    name = client.send(**fields)
    count = len(fields.get("ack", "processed").split(","))

    def answers():
        return [m for m in client.messages[before:] if m.get("op") == "ack" and m["id"] == name]

    client.until(lambda: len(answers()) == count)
    return answers()


def test_each_ack_of_a_worker_is_an_answer(world, client):
    """A publish that asks for processed and persisted is answered once for each, and its record arrives."""
    sub = client.subscribe("sow_and_delta_subscribe", world.name)
    first = acks_of(client, op="publish", topic=world.name, data={"id": 1, "qty": 5}, ack="processed,persisted")
    assert [(one["status"], one["ack"], one["key"]) for one in first] == [
        ("success", "processed", "1"),
        ("success", "persisted", "1"),
    ]
    client.until(lambda: client.held(sub) == {"1": {"id": 1, "qty": 5}})
    [merged] = acks_of(client, op="delta_publish", topic=world.name, data={"id": 1, "note": "x"}, ack="processed")
    assert merged["status"] == "success"
    client.until(lambda: client.held(sub) == {"1": {"id": 1, "qty": 5, "note": "x"}})
    [gone] = acks_of(client, op="sow_delete", topic=world.name, key="1", ack="persisted")
    assert gone["status"] == "success"
    assert acks_of(client, op="publish", topic=world.name, data={"id": 2}) == [
        {"op": "ack", "id": "r5", "status": "success"}
    ]


def test_an_expected_version_is_checked_by_the_worker(world, client):
    """A command with another version than expected fails with the reason conflict, and changes nothing."""
    sub = client.subscribe("sow_and_subscribe", world.name)
    asked = {"op": "publish", "topic": world.name}
    [created] = acks_of(client, **asked, data={"id": 1, "qty": 1}, expect_version=0)
    assert created["status"] == "success"
    [conflict] = acks_of(client, **asked, data={"id": 1, "qty": 2}, expect_version=0, ack="processed")
    assert (conflict["status"], conflict["reason"]) == ("failure", "conflict")
    [done] = acks_of(client, **asked, data={"id": 1, "qty": 3}, expect_version=1, ack="processed")
    assert done["status"] == "success"
    client.until(lambda: client.held(sub) == {"1": {"id": 1, "qty": 3}})
    assert client.records[sub]["1"][1] == 2
    [gone] = acks_of(client, op="sow_delete", topic=world.name, key="1", expect_version=9, ack="processed")
    assert gone["status"] == "failure"


def test_sequences_are_carried_out_once(world, client):
    """A command that is sent again with its client's name and sequence is a duplicate, and is merged once."""
    sub = client.subscribe("sow_and_subscribe", world.name)
    asked = {"op": "delta_publish", "topic": world.name, "data": {"id": 1, "qty": 1}, "sequence": 7, "ack": "processed"}
    answers = [acks_of(client, **asked)[0] for _ in range(2)]
    assert [one["status"] for one in answers] == ["success", "success"], answers
    assert answers[1]["detail"] == "duplicate"
    assert acks_of(client, op="delta_publish", topic=world.name, data={"id": 2}, ack="processed")
    client.until(lambda: "2" in client.held(sub))
    assert client.records[sub]["1"][1] == 1


def test_an_idempotency_key_makes_a_request_safe_to_repeat(world, client, start, tmp_path):
    """A POST that is sent again with its Idempotency-Key answers with success and changes nothing, at any gateway."""
    sub = client.subscribe("sow_and_subscribe", world.name)
    body = b'{"id": 1, "qty": 1}\n{"id": 2, "qty": 2}\n'
    headers = {"Idempotency-Key": "order-4711", "Content-Type": "application/json"}
    other = start(state_dir=tmp_path / "elsewhere")
    path = f"/v1/topics/{world.name}/delta_publish"
    answers = []
    for gateway in (client.gateway, other):
        status, _, text = gateway.get(path, headers, data=body)
        answers.append([json.loads(line) for line in text.splitlines()])
        assert status == 200, text
    assert [[one["reason"] for one in each] for each in answers] == [[None, None], ["duplicate", "duplicate"]]
    status, _, text = other.get(path, {**headers, "Idempotency-Key": "order-4712"}, data=b'{"id": 1, "qty": 9}')
    assert status == 200, text
    client.until(lambda: client.held(sub).get("1") == {"id": 1, "qty": 9})
    assert {key: version for key, (_, version) in client.records[sub].items()} == {"1": 2, "2": 1}
    refused = other.get(path + "?expect_version=1", headers={"Content-Type": "application/json"}, data=b'{"id": 1}')
    assert refused[0] == 422
    assert json.loads(refused[2])["reason"] == "conflict"
