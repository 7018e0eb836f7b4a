"""A record goes through every way between a publisher and a reader, with a real broker and worker, byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from processor.client import Client
from processor.codec.json import JsonCodec
from tests.gateway.test_digits import RECORD

pytestmark = [pytest.mark.broker, pytest.mark.long]
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
