"""Values go through the doors of a gateway with every digit, and bodies are read as they were written."""

from __future__ import annotations

import codecs
import gzip
import json
import urllib.request
from decimal import Decimal
from urllib.parse import quote

import pytest

from processor.codec.json import JsonCodec
from tests.gateway.memory import MemoryWorld

RECORD = (
    '{"id":"x","big":9007199254740993,"wide":123456789012345678901234567890,"long":0.1234567890123456789,'
    '"price":12345678901234567890.12,"huge":1E+400,"tiny":1E-400,"minus":-0.0,"deep":[{"long":0.1234567890123456789}]}'
)
"""Numbers that a double, or 53 bits, do not hold; as a worker writes them."""


@pytest.fixture(scope="module")
def shared():
    """A gateway with one topic."""
    made = MemoryWorld()
    yield made
    made.close()


@pytest.fixture
def world(shared):
    """The gateway, whose topic is empty."""
    shared.gateway.call(
        lambda: [shared.feeds["orders"].write(key.decode(), None) for key in list(shared.feeds["orders"].records)]
    )
    return shared


def stored(world, key="x"):
    """The text of a record in the topic."""
    record = world.gateway.call(lambda: world.feeds["orders"].records.get(key.encode()))
    return None if record is None else record.value.rstrip().decode()


def put(world, text=RECORD):
    """Write a record, as a worker does."""
    world.gateway.call(lambda: world.feeds["orders"].write("x", JsonCodec().decode(text.encode())))


def post(world, body, op="publish", **headers):
    """The status and the acks of a POST."""
    status, _, answer = world.gateway.get(f"/v1/topics/orders/{op}", headers, body)
    return status, [json.loads(line) for line in answer.decode().split("\n") if line]


@pytest.mark.parametrize("op", ["publish", "delta_publish"])
def test_a_post_keeps_every_digit(world, op):
    """A record that is posted is stored as it was written."""
    assert post(world, RECORD.encode(), op)[0] == 200
    assert stored(world) == RECORD


@pytest.mark.parametrize("op", ["publish", "delta_publish"])
def test_a_websocket_keeps_every_digit_of_a_publish(world, op):
    """A record in a frame is stored as it was written."""
    client = world.connect()
    client.socket.send(f'{{"op":"{op}","id":"1","topic":"orders","ack":"persisted","data":{RECORD}}}')
    client.until(lambda: "1" in client.acks)
    assert client.acks["1"]["status"] == "success"
    assert stored(world) == RECORD
    client.close()


@pytest.mark.parametrize(
    "path",
    [
        "records/x",
        "sow?filter=" + quote("/big = 9007199254740993 AND /long = 0.1234567890123456789"),
        "sow?order_by=/long",
    ],
)
def test_an_answer_has_every_digit(world, path):
    """A record that is asked for over HTTP comes as it is stored; a filter compares all of its digits."""
    put(world)
    put(world, RECORD)
    body = world.gateway.get(f"/v1/topics/orders/{path}")[2].decode()
    assert f'"data":{RECORD}' in body
    other = "sow?filter=" + quote("/big = 9007199254740992")
    assert world.gateway.get(f"/v1/topics/orders/{other}")[2] == b""


@pytest.mark.parametrize("op", ["sow", "subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"])
def test_a_subscription_has_every_digit(world, op):
    """Snapshots, updates and deltas carry numbers as they are stored."""
    put(world, '{"id":"x","old":1}' if "sow" not in op else RECORD)
    client = world.connect()
    client.send(op, topic="orders", id="s")
    if "sow" not in op:
        client.until(lambda: "s" in client.acks)
        put(world)
    frame = ""
    while '"data"' not in frame:
        frame = client.socket.recv(60)
    members = RECORD[1:-1].removeprefix('"id":"x",')
    assert members in frame
    client.close()


def events(world, *lasts, **headers):
    """The Server-Sent Events of a subscription until each of some texts has come; each has its fields."""
    left = {*(lasts or ('"group_end"',))}
    request = urllib.request.Request(f"http://{world.gateway.address}/v1/topics/orders/subscribe", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        fields, wanted = {}, []
        for line in answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name in ("id", "data"):
                fields[name] = value
            elif not name and fields:
                wanted.append(fields)
                fields = {}
                left -= {text for text in left if text in wanted[-1].get("data", "")}
                if not left:
                    break
    return wanted


def test_events_have_every_digit(world):
    """A Server-Sent Event carries numbers as they are stored."""
    put(world)
    assert any(f'"data":{RECORD}' in event["data"] for event in events(world))


@pytest.mark.parametrize(
    "field",
    [
        {"bookmarks": {"1": "a0b1c2d3e4f5.AAAA.9.9.9"}},
        {"text": '"bookmarks":{"1":"a0b1c2d3e4f5.AAAA.9.9.9"}'},
        {"deep": [{"bookmarks": {"1": "x"}, "id": "id: 7\n\nid: 8"}]},
    ],
)
def test_the_id_of_an_event_is_never_a_field_of_a_record(world, field):
    """The id of a Server-Sent Event is the bookmark of its subscription or absent, and no field of a record."""
    world.put("x", **field)
    seen = [event["id"] for event in events(world) if "id" in event]
    assert seen
    assert all(identity.split(".")[1:] == ["AAAA", *str_places(world)] for identity in seen)
    world.put("y", n=1)
    world.put("x", **field, n=2)
    resumed = events(world, '"n":2', '"y"', **{"Last-Event-ID": seen[-1]})
    assert not any("group_begin" in event["data"] for event in resumed)


def str_places(world):
    """The places of the topic's partitions, as bookmarks have them."""
    return [str(offset) for offset in world.feeds["orders"].offsets.values()]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\x0b", "\x1c"])
def test_lines_end_at_a_line_feed_only(world, character):
    """A text with a line separator of Unicode is a part of its line."""
    escaped = json.dumps(character) if character < " " else f'"{character}"'
    body = f'{{"id":"x","note":{escaped}}}\r\n{{"id":"y"}}\n'.encode()
    status, acks = post(world, body)
    assert (status, [ack["sow_key"] for ack in acks]) == (200, ["x", "y"])
    assert json.loads(stored(world))["note"] == character


@pytest.mark.parametrize("body", [b"", b" \r\n\n"])
def test_a_body_without_a_record_is_refused(world, body):
    """An empty body publishes nothing, and is answered with 400: it was lost on its way."""
    status, (answer,) = post(world, body)
    assert (status, answer["detail"]) == (400, "the body has no record")


def test_a_byte_order_mark_is_skipped(world):
    """A file with a byte order mark has all of its lines."""
    status, acks = post(world, codecs.BOM_UTF8 + b'{"id":"x"}\n{"id":"y"}')
    assert (status, [ack["sow_key"] for ack in acks]) == (200, ["x", "y"])


def test_a_compressed_body_is_read(world):
    """A body in gzip, in one part or in several, is read."""
    body = gzip.compress(b'{"id":"x"}\n') + gzip.compress(RECORD.replace('"x"', '"y"').encode())
    status, acks = post(world, body, **{"Content-Encoding": "gzip"})
    assert (status, [ack["sow_key"] for ack in acks]) == (200, ["x", "y"])
    assert stored(world, "y") == RECORD.replace('"x"', '"y"')


def test_a_compressed_body_is_bounded(world):
    """A body in gzip is limited by the size of what it contains, and a broken one is refused."""
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 100_000
    for body, status in ((bomb, 413), (gzip.compress(b'{"id":"x"}')[:-9], 400), (b'{"id":"x"}', 400)):
        answer = world.gateway.get("/v1/topics/orders/publish", {"Content-Encoding": "gzip"}, body)
        assert (answer[0], "gzip" in answer[2].decode() or status == 413) == (status, True)


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip"])
def test_another_encoding_is_refused(world, encoding):
    """A body in an encoding that the gateway does not read is answered with 415."""
    assert world.gateway.get("/v1/topics/orders/publish", {"Content-Encoding": encoding}, b"{}")[0] == 415


@pytest.mark.parametrize("broken", ["{", '{"a":"\\ud800"}', '{"a":NaN}', '{"a":Infinity}', "[" * 300 + "]" * 300])
def test_a_frame_that_is_refused_belongs_to_its_request(world, broken):
    """A frame that is not JSON, or too deep, is the failure of the request whose id stands at its beginning."""
    client = world.connect()
    client.socket.send(f'{{"op":"publish","id":"mine","topic":"orders","data":{broken}}}')
    client.until(lambda: client.acks)
    assert client.acks["mine"]["status"] == "failure"
    client.close()


def test_requests_of_a_frame_are_refused_one_by_one(world):
    """Of several requests in a frame, one that is too deep fails alone."""
    deep = "[" * 70 + "]" * 70
    client = world.connect()
    requests = [
        f'{{"op":"publish","id":"{name}","topic":"orders","ack":"persisted","data":{{"id":"{name}","a":{value}}}}}'
        for name, value in (("a", 1), ("b", deep), ("c", 3))
    ]
    client.socket.send(f"[{','.join(requests)}]")
    client.until(lambda: len(client.acks) == 3)
    assert [client.acks[name]["status"] for name in "abc"] == ["success", "failure", "success"]
    assert "64" in client.acks["b"]["detail"]
    client.close()


def test_the_records_of_a_decimal_compare(world):
    """Decimals of a record are the numbers that they are in its text."""
    put(world)
    value = world.gateway.call(lambda: world.feeds["orders"].topic.value(world.feeds["orders"].records[b"x"]))
    assert value["price"] == Decimal("12345678901234567890.12")
