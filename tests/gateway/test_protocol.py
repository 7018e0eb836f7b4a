"""The protocol of the gateway over topics in memory: requests, answers, resume, slow clients, several subscriptions."""

import http.client
import json
import urllib.parse

import pytest

from processor.client import Message
from processor.codec.json_value import to_json_line
from processor.codec.value_checks import DEPTH_MAX
from processor.gateway.sessions.frames import FrameEncoder
from processor.gateway.sessions.host import Slices
from tests.gateway.memory import MemoryWorld


@pytest.fixture(scope="module")
def shared():
    """A gateway for tests that change nothing."""
    made = MemoryWorld()
    made.put("a", qty=1, s="x")
    yield made
    made.close()


OOF = {"oof": True}


def test_a_subscriber_gets_a_snapshot_deltas_and_what_leaves(memory_world):
    """A subscriber gets records that match, their deltas, whole records that enter and oof for those that leave."""
    memory_world.put(1, qty=5)
    memory_world.put(2, qty=20)
    client = memory_world.connect()
    sub = client.subscribe("sow_and_delta_subscribe", "orders", filter="/qty > 10", options=OOF)
    client.until(lambda: sub in client.ready)
    assert client.held(sub) == {"2": {"id": 2, "qty": 20}}
    memory_world.put(1, qty=11)
    memory_world.put(2, qty=20, note="x")
    client.until(lambda: client.held(sub).get("2") == {"id": 2, "qty": 20, "note": "x"})
    deltas = [m["data"] for m in client.messages if m.get("delta")]
    assert deltas == [{"id": 2, "note": "x"}]
    memory_world.put(2, qty=3)
    memory_world.delete(1)
    client.until(lambda: client.held(sub) == {})
    reasons = {m["sow_key"]: m["reason"] for m in client.messages if m.get("command") == "oof"}
    assert reasons == {"2": "match", "1": "deleted"}
    client.close()


def test_subscriptions_of_one_connection_share_a_message(memory_world):
    """Two subscriptions that match an update get one message, with the union of their fields, whole if one is whole."""
    client = memory_world.connect()
    one = client.subscribe("sow_and_delta_subscribe", "orders", options={"select": "-/,+/a"})
    other = client.subscribe("sow_and_subscribe", "orders", options={"select": "-/,+/b"})
    client.until(lambda: {one, other} <= client.ready)
    memory_world.put(1, a=1, b=2, c=3)
    client.until(lambda: any(m.get("command") == "publish" for m in client.messages))
    [message] = [m for m in client.messages if m.get("command") == "publish"]
    assert message["subs"] == [one, other]
    assert message["data"] == {"id": 1, "a": 1, "b": 2}
    assert "delta" not in message
    client.close()


@pytest.mark.parametrize("query", ["order_by=/qty", "order_by=/qty&top_n=1"])
def test_a_query_whose_view_is_made_again_is_asked_again(memory_world, monkeypatch, query):
    """A query that waits for its records to be sorted is answered 503 if the view is made again meanwhile."""
    feed = memory_world.feeds["orders"]
    memory_world.put(1, qty=5)
    run = Slices.run

    async def run_and_restart(slices, work):
        monkeypatch.undo()
        feed.restart()
        return await run(slices, lambda: None)

    monkeypatch.setattr(Slices, "run", run_and_restart)
    assert memory_world.gateway.get(f"/v1/topics/orders/sow?{query}")[0] == 503
    assert memory_world.gateway.get(f"/v1/topics/orders/sow?{query}")[0] == 200


def test_an_internal_error_ends_one_subscription(memory_world, monkeypatch):
    """A subscription that fails with an error of the program ends with `internal`; others get the update."""
    client, other = memory_world.connect(), memory_world.connect()
    subs = [client.subscribe("subscribe", "orders"), client.subscribe("subscribe", "orders", filter="/qty > 1")]
    kept = other.subscribe("subscribe", "orders")
    [failing] = [one for one, _ in memory_world.feeds["orders"].engine._routes if one.filter is not None]
    monkeypatch.setattr(failing, "changes", lambda *_, **__: {}.pop("secret"))
    memory_world.put(1, qty=5)
    client.until(lambda: client.held(subs[0]) and any(m.get("op") == "ended" for m in client.messages))
    [end] = [m for m in client.messages if m.get("op") == "ended"]
    assert (end["sub"], end["reason"]) == (subs[1], "internal")
    assert "secret" not in end["detail"]
    other.until(lambda: other.held(kept) == {"1": {"id": 1, "qty": 5}})


def test_what_came_within_a_tick_is_one_frame(memory_world):
    """Updates that come within a tick are packed into one frame, and its last message alone has the bookmarks."""
    client = memory_world.connect()
    sub = client.subscribe("sow_and_subscribe", "orders")
    client.until(lambda: sub in client.ready)
    memory_world.gateway.call(lambda: [memory_world.feeds["orders"].write(key, {"id": key}) for key in range(20)])
    client.until(lambda: len(client.held(sub)) == 20)
    [frame] = [frame for frame in client.frames if any(m.get("sow_key") == "19" for m in frame)]
    assert len(frame) == 20
    assert ["bookmarks" in message for message in frame] == [False] * 19 + [True]
    client.close()


def test_a_bookmark_resumes_with_what_changed(memory_world):
    """A resumed subscription gets deltas, whole records that entered, and oof for what left, and no snapshot."""
    for key in range(4):
        memory_world.put(key, qty=10 + key)
    first = memory_world.connect()
    sub = first.subscribe("sow_and_delta_subscribe", "orders", filter="/qty > 10", options=OOF)
    first.until(lambda: sub in first.bookmarks)
    first.close()
    memory_world.put(1, qty=1)
    memory_world.put(0, qty=99)
    memory_world.put(3, qty=13, note="n")
    memory_world.delete(2)
    client = memory_world.connect()
    client.records["x"] = first.records[sub]
    client.subscribe(
        "sow_and_delta_subscribe",
        "orders",
        id="x",
        filter="/qty > 10",
        options=OOF,
        resume=first.bookmarks[sub],
    )
    wanted = {"0": {"id": 0, "qty": 99}, "3": {"id": 3, "qty": 13, "note": "n"}}
    client.until(lambda: client.held("x") == wanted)
    assert not client.refetches
    commands = sorted((m["command"], m["sow_key"], bool(m.get("delta"))) for m in client.messages if "sow_key" in m)
    assert commands == [("oof", "1", False), ("oof", "2", False), ("publish", "0", False), ("publish", "3", True)]
    client.close()


@pytest.mark.parametrize("cause", ["query", "topic", "old"])
def test_a_bookmark_that_cannot_be_resumed_is_answered_with_refetch(cause):
    """Another query, a recreated topic and a bookmark that is too old lead to refetch and a full snapshot."""
    memory_world = MemoryWorld(history_bytes=2_000)
    try:
        memory_world.put(1, qty=5)
        first = memory_world.connect()
        sub = first.subscribe("sow_and_delta_subscribe", "orders", options=OOF)
        first.until(lambda: sub in first.bookmarks)
        first.close()
        if cause == "topic":
            memory_world.feeds["orders"].topic_id = "BBBB"
        if cause == "old":
            for number in range(50):
                memory_world.put(number, qty=number)
            memory_world.delete(1)
        client = memory_world.connect()
        client.records["x"] = first.records[sub]
        more = {"filter": "/qty > 1"} if cause == "query" else {}
        client.subscribe("sow_and_delta_subscribe", "orders", id="x", options=OOF, resume=first.bookmarks[sub], **more)
        client.until(lambda: "x" in client.ready)
        [(_, reason)] = client.refetches
        assert {"query": "another query", "topic": "made anew", "old": "too old"}[cause] in reason
        assert ("1" in client.held("x")) == (cause != "old")
        client.close()
    finally:
        memory_world.close()


def test_a_topic_whose_view_is_made_anew_is_fetched_again(memory_world):
    """A feed that begins again sends each subscription `refetch` and a snapshot without records that were deleted."""
    memory_world.put(1, qty=5)
    memory_world.put(2, qty=5)
    client = memory_world.connect()
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options=OOF)
    client.until(lambda: sub in client.ready)

    def begin_again():
        feed = memory_world.feeds["orders"]
        feed.records.pop(b"1")
        feed.restart()

    memory_world.gateway.call(begin_again)
    client.until(lambda: client.held(sub) == {"2": {"id": 2, "qty": 5}})
    assert client.refetches == [(sub, "the view was made anew")]
    memory_world.put(3, qty=1)
    client.until(lambda: "3" in client.held(sub))
    client.close()


def test_a_window_scrolls_by_replace(memory_world):
    """Replace moves a window: what leaves is an oof, what enters is whole, what stays is not repeated."""
    for key in range(6):
        memory_world.put(key, qty=key)
    client = memory_world.connect()
    options = {"oof": True, "order_by": "/qty", "top_n": 3}
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options=options)
    client.until(lambda: sub in client.ready)
    seen = len(client.messages)
    assert client.ask("replace", sub=sub, options={"skip_n": 2})["status"] == "success"
    client.until(lambda: set(client.held(sub)) == {"2", "3", "4"})
    told = [(m["command"], m["sow_key"]) for m in client.messages[seen:] if "sow_key" in m]
    assert sorted(told) == [("oof", "0"), ("oof", "1"), ("publish", "3"), ("publish", "4")]
    assert max(m.get("rows", {}).get(sub, 0) for m in client.messages) == 6
    client.close()


def test_the_number_of_rows_comes_with_the_answer_to_a_replace(memory_world):
    """A filter that leaves the records of a window where they are changes the number of rows at once."""
    for key in range(6):
        memory_world.put(key, qty=key)
    client = memory_world.connect()
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options={"order_by": "/qty", "top_n": 3})
    client.until(lambda: sub in client.ready)
    assert client.ask("replace", sub=sub, filter="/qty < 4")["status"] == "success"
    client.ask("ping")
    assert [m["rows"][sub] for m in client.messages if sub in m.get("rows", {})] == [6, 4]
    client.close()


def test_what_begins_again_has_the_request_that_replaced_the_first(memory_world):
    """A subscription that was replaced has its new filter and options also where the view is built again."""
    for key in range(4):
        memory_world.put(key, qty=key)
    client = memory_world.connect()
    sub = client.subscribe("sow_and_delta_subscribe", "orders", filter="/qty < 2", options=OOF)
    client.until(lambda: set(client.held(sub)) == {"0", "1"})
    assert client.ask("replace", sub=sub, filter="/qty > 1", options={"select": "-/,+/id"})["status"] == "success"
    client.until(lambda: set(client.held(sub)) == {"2", "3"})
    client.ready.discard(sub)
    memory_world.gateway.call(memory_world.feeds["orders"].restart)
    client.until(lambda: sub in client.ready)
    assert client.held(sub) == {"2": {"id": 2}, "3": {"id": 3}}
    client.close()


def test_a_slow_client_gets_the_last_state():
    """Updates that find the queue of a client full are conflated: each record's last state arrives, in few messages."""
    memory_world = MemoryWorld(limits={"queue_bytes": 20_000})
    try:
        client = memory_world.connect()
        sub = client.subscribe("sow_and_delta_subscribe", "orders", options=OOF)
        client.until(lambda: sub in client.ready)

        def write_many():
            for number in range(40):
                for key in range(20):
                    memory_world.feeds["orders"].write(key, {"id": key, "n": number, "pad": "x" * 5_000})

        memory_world.gateway.call(write_many)
        memory_world.put("end")
        keys = [str(key) for key in range(20)]
        client.until(lambda: "end" in client.held(sub) and all(client.held(sub)[key]["n"] == 39 for key in keys))
        assert sum(m.get("command") == "publish" for m in client.messages) < 60
        client.close()
    finally:
        memory_world.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "bad_request"),
        ("[" * 100 + "]" * 100, "bad_request"),
        ("[" * 100_000, "bad_request"),
        ("7", "bad_request"),
        ('{"op": "sow"}', "bad_request"),
        ('{"op": "dance", "id": "1"}', "unknown_op"),
        ('{"op": ["sow"], "id": "1"}', "unknown_op"),
        ('{"op": "sow", "id": "1", "topic": "nowhere"}', "not_entitled"),
        ('{"op": "sow", "id": "1", "topic": 7}', "bad_request"),
        ('{"op": "sow", "id": "1", "topic": "orders", "colour": 1}', "bad_request"),
        ('{"op": "sow", "id": "1", "topic": "orders", "filter": "/a >"}', "bad_filter"),
        ('{"op": "sow", "id": "1", "topic": "orders", "options": {"colour": 1}}', "bad_request"),
        ('{"op": "sow", "id": "1", "topic": "orders", "options": {"select": "id"}}', "bad_filter"),
        ('{"op": "replace", "id": "1", "sub": "none"}', "no_such_subscription"),
        ('{"op": "sow_and_subscribe", "id": "1", "topic": "orders", "resume": "x"}', "bad_request"),
        ('{"op": "publish", "id": "1", "topic": "orders"}', "bad_request"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused_with_its_reason(shared, text, reason):
    """Each wrong request has one answer, with a reason and details, and the connection goes on."""
    client = shared.connect()
    client.socket.send(text)
    client.until(lambda: client.acks)
    [ack] = client.acks.values()
    assert (ack["status"], ack["reason"]) == ("failure", reason), ack
    assert ack["detail"]
    assert client.ask("ping")["status"] == "success"
    client.close()


def test_one_record_is_found_by_its_key(shared):
    """A record is found by its key, and an unknown key is a problem with status 404."""
    status, headers, body = shared.gateway.get("/v1/topics/orders/records/a")
    assert (status, json.loads(body)["data"]) == (200, {"id": "a", "qty": 1, "s": "x"})
    assert shared.gateway.get("/v1/topics/orders/records/a", {"If-None-Match": headers["etag"]})[0] == 304
    status, headers, body = shared.gateway.get("/v1/topics/orders/records/none")
    assert (status, headers["content-type"]) == (404, "application/problem+json")
    assert json.loads(body)["reason"] == "not_found"


def test_a_query_over_http_streams_lines_of_json(shared):
    """The endpoint sow answers with one line of JSON for each record that matches."""
    query = urllib.parse.urlencode({"filter": "/qty = 1", "select": "-/,+/qty"})
    status, _, body = shared.gateway.get(f"/v1/topics/orders/sow?{query}")
    assert status == 200
    assert [json.loads(line)["data"] for line in body.splitlines()] == [{"id": "a", "qty": 1}]
    status, _, body = shared.gateway.get("/v1/topics/orders/sow?filter=/qty%20%3E")
    assert status == 400
    assert json.loads(body)["column"] == 7


def test_a_parameter_that_an_endpoint_does_not_have_is_refused_with_the_nearest_name(shared):
    """Each parameter of the OpenAPI document, misspelt or given twice, is refused with its name; none is ignored."""
    paths = json.loads(shared.gateway.get("/v1/openapi.json")[2])["paths"]
    checked = set()
    for template, operations in paths.items():
        [(method, operation)] = operations.items()
        path = template.replace("{topic}", "orders").replace("{key}", "a")
        data = b'{"id":"b"}' if method == "post" else None
        for parameter in operation["parameters"]:
            name = parameter["name"]
            if parameter["in"] != "query":
                continue
            misspelt = f"{name[1]}{name[0]}{name[2:]}x" if len(name) > 3 else f"{name}{name[-1]}"
            for query, detail in (
                (f"{misspelt}=1", f"did you mean '{name}'?"),
                (f"{name}=1&{name}=1", f"the parameter '{name}' is given twice"),
            ):
                status, _, body = shared.gateway.get(f"{path}?{query}", data=data)
                assert status == 400, (path, query, status)
                assert detail in json.loads(body)["detail"], (path, query, body)
            checked.add((path, name))
    assert {("/v1/topics/orders/sow", "filter"), ("/v1/topics/orders/sow_delete", "key")} < checked
    assert shared.gateway.get("/v1/topics/orders/records/b")[0] == 404
    assert json.loads(shared.gateway.get("/v1/topics/orders/sow?grouping=/s")[2])["reason"] == "bad_request"
    assert shared.gateway.get("/v1/topics/orders/sow_delete?filter=/qty%3E0", data=b"")[0] == 400
    # A client's address may have a query for a proxy.
    assert shared.gateway.get("/v1/topics?desk=x")[0] == 200
    assert shared.gateway.get("/v1/topics/orders/records/a?desk=x&min_version=1")[0] == 200


@pytest.mark.parametrize(
    ("request_", "nearest"), [({"op": "sow", "fitler": "/a"}, "filter"), ({"op": "subscibe"}, "subscribe")]
)
def test_a_misspelt_request_is_answered_with_the_nearest_name(shared, request_, nearest):
    """A field or an op that a WebSocket request cannot have is refused with the name that is nearest."""
    client = shared.connect()
    assert client.ask(request_.pop("op"), topic="orders", **request_)["detail"].endswith(f"did you mean '{nearest}'?")
    client.close()


def test_events_resume_by_their_last_id(memory_world):
    """Server-Sent Events carry bookmarks as ids; Last-Event-ID resumes after one of them."""
    memory_world.put(1, qty=1)

    def events(headers, enough):
        connection = http.client.HTTPConnection(memory_world.gateway.address, timeout=60)
        connection.request("GET", "/v1/topics/orders/subscribe?oof=true&op=sow_and_delta_subscribe", headers=headers)
        answer = connection.getresponse()
        assert answer.getheader("content-type").startswith("text/event-stream")
        last_id, messages = None, []
        while not enough(messages, last_id):
            line = answer.readline().decode().rstrip("\n")
            if line.startswith("id: "):
                last_id = line[4:]
            elif line.startswith("data: "):
                tree = json.loads(line[6:])
                messages += tree if isinstance(tree, list) else [tree]
        connection.close()
        return last_id, messages

    last_id, messages = events({}, lambda messages, last_id: messages and last_id)
    assert [m["command"] for m in messages if "command" in m] == ["group_begin", "sow", "group_end"]
    memory_world.put(1, qty=2)
    _, messages = events({"Last-Event-ID": last_id}, lambda messages, _: any("sow_key" in m for m in messages))
    assert [(m["command"], m["data"]) for m in messages if "command" in m] == [("publish", {"id": 1, "qty": 2})]


def test_events_that_are_lost_in_a_new_snapshot_are_not_resumed_from_the_bookmark_before_it(memory_world):
    """A client that loses its events behind a `refetch` gets another snapshot, not what changed since its bookmark."""
    memory_world.gateway.call(lambda: [memory_world.feeds["orders"].write(n, {"id": n}) for n in range(1_200)])
    path = "/v1/topics/orders/subscribe?oof=true&op=sow_and_delta_subscribe"

    def answer_of(last_id):
        connection = http.client.HTTPConnection(memory_world.gateway.address, timeout=60)
        connection.request("GET", path, headers={"Last-Event-ID": last_id} if last_id else {})
        return connection, connection.getresponse()

    def read(answer, last_id, holds):
        """Read events until something holds of a message and the last id; return that id, as a browser keeps it."""
        while True:
            name, _, value = answer.readline().decode().rstrip("\n").partition(": ")
            if name == "id":
                last_id = value
            elif name == "data":
                tree = json.loads(value)
                if any(holds(message, last_id) for message in (tree if isinstance(tree, list) else [tree])):
                    return last_id

    connection, answer = answer_of("")
    bookmark = read(answer, "", lambda _, last_id: last_id)
    memory_world.gateway.call(memory_world.feeds["orders"].restart)
    last_id = read(answer, bookmark, lambda message, _: message.get("command") == "sow")
    connection.close()
    assert last_id != bookmark
    connection, answer = answer_of(last_id)
    last_id = read(answer, last_id, lambda message, _: message.get("command") == "refetch")
    assert read(answer, last_id, lambda message, _: message.get("command") == "group_end").split(".")[1:] == [
        "AAAA",
        *["400"] * 3,
    ]
    connection.close()


def test_the_deepest_record_that_a_topic_takes_can_be_shown(memory_world):
    """Frames, events and answers around a record of the deepest `max_depth` have no more levels than can be written."""
    record = deepest = {"id": 1}
    for _ in range(DEPTH_MAX):  # One more than a topic takes: a composite is a level around its parts.
        deepest["a"] = deepest = {}
    deepest["d"] = b"a"
    message = Message("sow", "orders", "1", record)
    assert len(FrameEncoder()._message(message)) > len(message.data_json()) > 5 * DEPTH_MAX
    assert to_json_line([{"rows": {"data": record}}])
    record = deepest = {"id": 1}
    for _ in range(DEPTH_MAX - 1):
        deepest["a"] = deepest = {}
    memory_world.gateway.call(lambda: memory_world.feeds["orders"].write(1, record))
    client = memory_world.connect()
    sub = client.subscribe("sow_and_subscribe", "orders")
    client.until(lambda: sub in client.ready)
    assert client.held(sub) == {"1": record}
    client.close()
    assert json.loads(memory_world.gateway.get("/v1/topics/orders/records/1")[2])["data"] == record
    lines = [json.loads(line) for line in memory_world.gateway.get("/v1/topics/orders/sow")[2].splitlines()]
    assert record in [line.get("data") for line in lines]
    connection = http.client.HTTPConnection(memory_world.gateway.address, timeout=60)
    connection.request("GET", "/v1/topics/orders/subscribe?op=sow_and_subscribe")
    answer = connection.getresponse()
    while b'"a":' not in (line := answer.readline()):
        pass
    assert line.count(b'{"a":') == DEPTH_MAX - 2
    connection.close()


def test_lines_of_json_are_published_with_an_ack_each(memory_world):
    """A POST of several lines publishes each of them, and answers with an ack for each."""
    status, _, body = memory_world.gateway.get(
        "/v1/topics/orders/publish", data=b'{"id":9,"qty":1}\n{"id":10,"qty":2}\n'
    )
    acks = [json.loads(line) for line in body.splitlines()]
    assert (status, [ack["sow_key"] for ack in acks]) == (200, ["9", "10"])
    status, _, body = memory_world.gateway.get("/v1/topics/orders/delta_publish", data=b'{"id":9,"note":"n"}')
    assert status == 200
    assert json.loads(memory_world.gateway.get("/v1/topics/orders/records/9")[2])["data"] == {
        "id": 9,
        "qty": 1,
        "note": "n",
    }
    assert memory_world.gateway.get("/v1/topics/orders/publish", data=b"{")[0] == 400


def test_operators_see_life_readiness_and_metrics(shared):
    """The gateway answers livez, readyz and metrics; the OpenAPI document names each path."""
    assert shared.gateway.get("/livez")[0] == 200
    assert shared.gateway.get("/readyz")[0] == 200
    assert b"sowstream_gateway_connections" in shared.gateway.get("/metrics")[2]
    document = json.loads(shared.gateway.get("/v1/openapi.json")[2])
    assert "/v1/topics/{topic}/sow" in document["paths"]
    assert shared.gateway.get("/../pyproject.toml")[0] == 404
    assert shared.gateway.get("/%2e%2e/%2e%2e/gateway.py")[0] == 404
