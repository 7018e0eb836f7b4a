"""Publishes through the gateway on a real broker with a real worker: acks, expected versions and idempotency keys."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def client(kafka_world, start):
    """A client of a gateway whose topics a worker merges."""
    kafka_world.start()
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


def test_each_ack_of_a_worker_is_an_answer(kafka_world, client):
    """A publish that asks for processed and persisted is answered once for each, and its record arrives."""
    sub = client.subscribe("sow_and_delta_subscribe", kafka_world.name)
    first = acks_of(client, op="publish", topic=kafka_world.name, data={"id": 1, "qty": 5}, ack="processed,persisted")
    assert [(one["status"], one["ack"], one["key"]) for one in first] == [
        ("success", "processed", "1"),
        ("success", "persisted", "1"),
    ]
    client.until(lambda: client.held(sub) == {"1": {"id": 1, "qty": 5}})
    [merged] = acks_of(client, op="delta_publish", topic=kafka_world.name, data={"id": 1, "note": "x"}, ack="processed")
    assert merged["status"] == "success"
    client.until(lambda: client.held(sub) == {"1": {"id": 1, "qty": 5, "note": "x"}})
    [gone] = acks_of(client, op="sow_delete", topic=kafka_world.name, key="1", ack="persisted")
    assert gone["status"] == "success"
    assert acks_of(client, op="publish", topic=kafka_world.name, data={"id": 2}) == [
        {"op": "ack", "id": "r5", "status": "success"}
    ]


def test_an_expected_version_is_checked_by_the_worker(kafka_world, client):
    """A command with another version than expected fails with the reason conflict, and changes nothing."""
    sub = client.subscribe("sow_and_subscribe", kafka_world.name)
    asked = {"op": "publish", "topic": kafka_world.name}
    [created] = acks_of(client, **asked, data={"id": 1, "qty": 1}, expect_version=0)
    assert created["status"] == "success"
    [conflict] = acks_of(client, **asked, data={"id": 1, "qty": 2}, expect_version=0, ack="processed")
    assert (conflict["status"], conflict["reason"]) == ("failure", "conflict")
    [done] = acks_of(client, **asked, data={"id": 1, "qty": 3}, expect_version=1, ack="processed")
    assert done["status"] == "success"
    client.until(lambda: client.held(sub) == {"1": {"id": 1, "qty": 3}})
    assert client.records[sub]["1"][1] == 2
    [gone] = acks_of(client, op="sow_delete", topic=kafka_world.name, key="1", expect_version=9, ack="processed")
    assert gone["status"] == "failure"


def test_sequences_are_carried_out_once(kafka_world, client):
    """A command that is sent again with its client's name and sequence is a duplicate, and is merged once."""
    sub = client.subscribe("sow_and_subscribe", kafka_world.name)
    asked = {
        "op": "delta_publish",
        "topic": kafka_world.name,
        "data": {"id": 1, "qty": 1},
        "sequence": 7,
        "ack": "processed",
    }
    answers = [acks_of(client, **asked)[0] for _ in range(2)]
    assert [one["status"] for one in answers] == ["success", "success"], answers
    assert answers[1]["detail"] == "duplicate"
    assert acks_of(client, op="delta_publish", topic=kafka_world.name, data={"id": 2}, ack="processed")
    client.until(lambda: "2" in client.held(sub))
    assert client.records[sub]["1"][1] == 1


def test_an_idempotency_key_makes_a_request_safe_to_repeat(kafka_world, client, start, tmp_path):
    """A POST that is sent again with its Idempotency-Key answers with success and changes nothing, at any gateway."""
    sub = client.subscribe("sow_and_subscribe", kafka_world.name)
    body = b'{"id": 1, "qty": 1}\n{"id": 2, "qty": 2}\n'
    headers = {"Idempotency-Key": "order-4711", "Content-Type": "application/json"}
    other = start(state_dir=tmp_path / "elsewhere")
    path = f"/v1/topics/{kafka_world.name}/delta_publish"
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


def test_idempotency_keys_cost_neither_threads_nor_files(kafka_world, client):
    """Forty requests with a key each leave as many threads and open files as one did, and all are carried out."""

    def publish(number):
        headers = {"Idempotency-Key": f"order-{number}", "Content-Type": "application/json"}
        path = f"/v1/topics/{kafka_world.name}/publish"
        return client.gateway.get(path, headers, data=b'{"id": %d}' % number)[0]

    def in_use():
        """The threads of Python, those of the process, and its files; librdkafka has threads of its own."""
        own = [len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("task", "fd")]
        return threading.active_count(), *own

    assert publish(0) == 200
    before = in_use()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(publish, range(1, 41))) == {200}
    after = in_use()
    assert all(now <= then + 10 for now, then in zip(after, before, strict=True)), (before, after)


def test_a_get_reads_what_a_post_wrote(kafka_world, client):
    """A GET with the version of an ack never answers the record before, and a deleted record is not found."""
    path = f"/v1/topics/{kafka_world.name}"
    for number in range(20):
        _, _, text = client.gateway.get(f"{path}/delta_publish", data=json.dumps({"id": 1, "n": number}).encode())
        version = json.loads(text)["version"]
        status, _, text = client.gateway.get(f"{path}/records/1?min_version={version}")
        assert (status, json.loads(text)["data"]) == (200, {"id": 1, "n": number})
    _, _, text = client.gateway.get(f"{path}/sow_delete?key=1", data=b"")
    assert client.gateway.get(f"{path}/records/1?min_version={json.loads(text)['version']}")[0] == 404


def test_checked_commands_are_carried_out_by_a_worker(kafka_world, start, tmp_path):
    """Commands of a user with a filter keep their order and hidden fields, and leave hidden records alone."""
    kafka_world.start()
    files = {
        "tokens": {"t-ann": {"user": "ann"}, "t-bob": {"user": "bob"}},
        "rights": {
            "users": {
                "ann": {kafka_world.name: {"read": True, "publish": True, "delete": True}},
                "bob": {
                    kafka_world.name: {"read": "/desk = 'x'", "select": "-/s", "publish": "/desk = 'x'", "delete": True}
                },
            }
        },
    }
    for name, tree in files.items():
        (tmp_path / name).write_text(json.dumps(tree))
    gateway = start(auth={"tokens_file": tmp_path / "tokens"}, entitlements=tmp_path / "rights")
    ann, bob = gateway.connect("t-ann"), gateway.connect("t-bob")
    asked = {"topic": kafka_world.name, "ack": "persisted"}
    for number, desk in ((1, "x"), (2, "y")):
        assert ann.ask("publish", data={"id": number, "desk": desk, "s": 7}, **asked)["status"] == "success"
    sent = [bob.send("delta_publish", data={"id": 1, "n": number}, **asked) for number in range(40)]
    bob.until(lambda: all(one in bob.acks for one in sent))
    assert {bob.acks[one]["status"] for one in sent} == {"success"}
    answers = [bob.ask("sow_delete", key=key, **asked) for key in ("2", "9")]
    assert [(one["status"], one.get("version")) for one in answers] == [("success", None)] * 2
    assert bob.ask("delta_publish", data={"id": 2, "desk": "x"}, **asked)["reason"] == "not_entitled"
    assert (
        bob.ask("sow_delete", filter="/n >= 0", topic=kafka_world.name, ack="persisted,stats")["records_deleted"] == 1
    )
    sub = ann.subscribe("sow_and_subscribe", kafka_world.name, options={"oof": True})
    ann.until(lambda: ann.held(sub) == {"2": {"id": 2, "desk": "y", "s": 7}})
    ann.close()
    bob.close()
