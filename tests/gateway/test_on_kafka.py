"""The gateway on a real broker: snapshots, deltas, bookmarks of another gateway, and records byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer

from processor.client import Client
from processor.codec.json import JsonCodec
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_changes import TopicChanges
from processor.wire.forwarding import MOVED_RETENTION_MS, moved_record
from tests.endtoend.raw_batch import RawWriter, raw_batch, raw_record
from tests.gateway.test_digits import RECORD
from tests.waiting import until

pytestmark = pytest.mark.broker


def test_a_client_holds_the_records_that_match_as_they_change(kafka_world, writer, start):
    """A subscriber gets a snapshot, deltas, whole records that enter, and oof for those that leave."""
    writer.put(1, qty=5)
    writer.put(2, qty=20)
    client = start().connect()
    sub = client.subscribe("sow_and_delta_subscribe", kafka_world.name, filter="/qty > 10", options={"oof": True})
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


def test_a_client_resumes_after_the_gateway_was_started_again(kafka_world, writer, start):
    """With its bookmark a client gets what changed while it was away, and no snapshot, also from another process."""
    for key in range(4):
        writer.put(key, qty=10 + key)
    gateway = start()
    client = gateway.connect()
    sub = client.subscribe("sow_and_delta_subscribe", kafka_world.name, filter="/qty > 10", options={"oof": True})
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
            topic=kafka_world.name,
            filter="/qty > 10",
            options={"oof": True},
            resume=bookmark,
        )
        wanted = {"0": {"id": 0, "qty": 99}, "3": {"id": 3, "qty": 13, "note": "n"}}
        client.until(lambda client=client, wanted=wanted: client.held("again") == wanted)
        assert not client.refetches
        assert not any(m.get("command") == "sow" for m in client.messages)
        client.close()


def write_marks(kafka_world, headers):
    """Write a tombstone of a mark's key into each partition of the SOW topic."""
    producer = Producer({"bootstrap.servers": kafka_world.bootstrap})
    key, value, _ = moved_record("orders_12")
    for partition in range(4):
        producer.produce(f"{kafka_world.name}.sow", value, key, partition, headers=headers)
    assert producer.flush(120) == 0


def test_a_topic_that_has_moved_is_answered_with_its_new_name(kafka_world, writer, start):
    """A running subscription ends, and every request gets 410, although records stand behind the marks."""
    writer.put(1, qty=5)
    gateway = start()
    client = gateway.connect()
    sub = client.subscribe("sow_and_subscribe", kafka_world.name)
    client.until(lambda: sub in client.ready)
    TopicChanges(kafka_world.config.kafka).set_config(
        f"{kafka_world.name}.sow", {"delete.retention.ms": str(MOVED_RETENTION_MS)}
    )
    write_marks(kafka_world, moved_record("orders_12")[2])
    writer.put(2, qty=6)
    client.until(lambda: any(m.get("op") == "ended" for m in client.messages))
    [ended] = [m for m in client.messages if m.get("op") == "ended"]
    assert (ended["sub"], ended["reason"]) == (sub, "moved")
    assert "orders_12" in ended["detail"]
    refused = client.ask("sow", topic=kafka_world.name)
    assert (refused["status"], refused["reason"]) == ("failure", "moved")
    client.close()
    for begins_again in (False, True):
        if begins_again:
            gateway.stop()
            gateway = start()
        for path in ("sow", "records/1"):
            status, _, body = gateway.get(f"/v1/topics/{kafka_world.name}/{path}")
            assert (status, json.loads(body)["moved_to"]) == (410, "orders_12")
        assert gateway.get("/readyz")[0] == 200
    admin = Admin(kafka_world.config.kafka)
    admin.delete([f"{kafka_world.name}.sow"])
    admin.create(spec for spec in specs(kafka_world.config) if spec.name == f"{kafka_world.name}.sow")
    writer.put(1, qty=7)
    until(lambda: gateway.get(f"/v1/topics/{kafka_world.name}/sow")[0] == 200, "reading a topic of the same name again")


def test_a_tombstone_of_a_mark_s_key_ends_no_feed(kafka_world, writer, start):
    """A record of a reserved key, which an earlier version took, may be deleted without harm to any client."""
    writer.put(1, qty=5)
    gateway = start()
    write_marks(kafka_world, [("version", b"2"), ("kind", b"delete")])
    writer.put(2, qty=6)
    client = gateway.connect()
    sub = client.subscribe("sow_and_subscribe", kafka_world.name)
    client.until(lambda: client.held(sub) == {"1": {"id": 1, "qty": 5}, "2": {"id": 2, "qty": 6}})
    client.close()
    assert gateway.get(f"/v1/topics/{kafka_world.name}/sow")[0] == 200


def test_a_reserved_key_is_refused(kafka_world, start):
    """A key that only Sowstream writes is refused over HTTP and in a frame, and nothing is published."""
    gateway = start()
    key = "\0sowstream/moved/x"
    status, _, body = gateway.get(f"/v1/topics/{kafka_world.name}/publish", data=json.dumps({"id": key}).encode())
    assert (status, json.loads(body)["reason"]) == (422, "missing_key")
    client = gateway.connect()
    for fields in ({"op": "publish", "data": {"id": key}}, {"op": "sow_delete", "key": key}):
        answer = client.ask(topic=kafka_world.name, **fields)
        assert (answer["status"], answer["reason"]) == ("failure", "missing_key")
    client.close()
    assert kafka_world.read("publish") == []


def test_a_record_with_a_header_name_that_is_not_utf_8_is_served_as_any_other(kafka_world, writer, start):
    """Anybody with the right to write can put one into a topic: by HTTP and as a subscription the record arrives."""
    writer.put(1, qty=5)
    headers = [(b"version", b"9"), (b"\xff\xfe", b"1")]
    with RawWriter(kafka_world.bootstrap, f"{kafka_world.name}.sow") as raw:
        error, _ = raw.send(0, raw_batch(raw_record(0, b"foreign", b'{"id":"foreign","qty":7}', headers), 1))
    assert error == 0
    gateway = start()
    client = gateway.connect()
    sub = client.subscribe("sow_and_delta_subscribe", kafka_world.name)
    client.until(lambda: sub in client.ready)
    assert client.held(sub) == {"1": {"id": 1, "qty": 5}, "foreign": {"id": "foreign", "qty": 7}}
    writer.put(1, qty=6)
    client.until(lambda: client.held(sub)["1"] == {"id": 1, "qty": 6})
    client.close()


CODEC = JsonCodec()
NODE = """
import { connect, parse, stringify } from '%s';
const [url, topic, text] = process.argv.slice(2);
const client = await connect({ url });
await client.publish(topic, parse(text), { ack: 'persisted' });
const { id } = parse(text);
for (let row; !row;) {
  [row] = await client.sow(topic, { filter: `SOW_KEY() = '${id}'` });
  if (row) console.log(stringify(row.data));
}
client.close();
"""


@pytest.mark.long
def test_every_way_round_keeps_every_byte(kafka_world, start, tmp_path):
    """Each way to publish stores the same text, and each way to read gives it back."""
    kafka_world.start()
    gateway = start()
    name = kafka_world.name
    texts = {
        way: RECORD.replace('"x"', f'"{way}"', 1) for way in ("post", "delta", "socket", "kafka", "python", "node")
    }

    def post(op, text):
        status, _, body = gateway.get(f"/v1/topics/{name}/{op}", data=text.encode())
        assert status == 200, body

    post("publish", texts["post"])
    post("delta_publish", texts["delta"])
    socket = gateway.connect()
    request = f'{{"op":"publish","id":"1","topic":"{name}","ack":"persisted","data":{texts["socket"]}}}'
    socket.socket.send(request)
    socket.until(lambda: "1" in socket.acks)
    with (
        Client("kafka", kafka_world.config) as kafka,
        Client("python", gateway=f"http://{gateway.address}") as python,
    ):
        kafka.publish(name, CODEC.decode(texts["kafka"].encode()), ack="persisted").result(60)
        python.publish(name, CODEC.decode(texts["python"].encode()), ack="persisted").result(60)
        if shutil.which("node") is None:
            texts.pop("node")
        else:
            client = Path(__file__).parents[2] / "processor" / "gateway" / "web" / "sowstream.js"
            (tmp_path / "round.mjs").write_text(NODE % client)
            order = ["node", "--experimental-websocket", "round.mjs", f"http://{gateway.address}", name, texts["node"]]
            done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
            assert done.stdout.strip() == texts["node"], done.stderr
        sub = socket.subscribe("sow_and_subscribe", name, options={"order_by": "SOW_KEY()"})
        socket.until(lambda: sub in socket.ready)
        socket.until(lambda: len(socket.held(sub)) == len(texts))
        for way, text in texts.items():
            status, _, body = gateway.get(f"/v1/topics/{name}/records/{way}")
            assert (status, f'"data":{text}' in body.decode()) == (200, True), way
            for client in (kafka, python):
                assert CODEC.encode(client.get(name, way).data).rstrip().decode() == text, (way, client.name)
        lines = gateway.get(f"/v1/topics/{name}/sow")[2].decode().splitlines()
        assert {json.loads(line)["sow_key"] for line in lines} == set(texts)
        assert all(any(f'"data":{text}' in line for line in lines) for text in texts.values())
    socket.close()
