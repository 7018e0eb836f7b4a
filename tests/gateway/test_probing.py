"""Attempts to find out hidden records and fields by asking, and to change what a right does not cover."""

import asyncio
import http.client
import json
import socket
from concurrent.futures import Future

import pytest

from processor.gateway.access.identity import is_own_name
from tests.gateway.memory import RIGHTS
from tests.waiting import until

BEARER = {"Authorization": "Bearer t-bob"}


def grant(guarded, **desk):
    """Change the rights of the role desk, and wait until they act."""
    rights = json.loads(json.dumps(RIGHTS))
    rights["roles"]["desk"]["orders"] |= desk
    guarded.write(guarded.rights, rights)
    guarded.world.gateway.call(guarded.world.gateway.gateway.entitlements.load)


def test_conflation_by_a_hidden_field_joins_no_records(guarded):
    """With `conflation_key` on a hidden field each record is delivered, whether or not its hidden values are equal."""
    guarded.world.put(3, desk="x", secret="same", qty=0)
    guarded.world.put(4, desk="x", secret="same", qty=0)
    client = guarded.world.connect("t-bob")
    options = {"conflation": "100ms", "conflation_key": ["/secret"]}
    sub = client.subscribe("sow_and_subscribe", "orders", options=options)
    client.until(lambda: sub in client.ready)
    guarded.world.put(3, desk="x", secret="same", qty=1)
    guarded.world.put(4, desk="x", secret="same", qty=1)
    client.until(lambda: client.held(sub)["4"]["qty"] == 1)
    client.until(lambda: client.held(sub)["3"]["qty"] == 1)
    client.close()


def test_a_delete_by_filter_sees_visible_fields_only(guarded):
    """A delete by a filter on a hidden field deletes nothing, and one on a visible field only visible records."""
    grant(guarded, delete=True)
    guarded.world.put(3, desk="x", secret=3, qty=3)
    client = guarded.world.connect("t-bob")
    assert client.ask("sow_delete", topic="orders", filter="/secret = 1", ack="persisted")["status"] == "success"
    assert set(guarded.world.feeds["orders"].records) == {b"1", b"2", b"3"}
    assert client.ask("sow_delete", topic="orders", filter="/qty > 1", ack="persisted")["status"] == "success"
    assert set(guarded.world.feeds["orders"].records) == {b"1", b"2"}
    grant(guarded, read=False, delete=True)
    assert client.ask("sow_delete", topic="orders", filter="/qty > 1")["reason"] == "not_entitled"
    client.close()


def test_a_topic_without_rights_looks_like_one_that_does_not_exist(guarded):
    """To a user without rights, the answers for a topic and for a name that is none differ in the name alone."""
    client = guarded.world.connect("t-eve")
    for op, fields in (("publish", {"data": {"id": 1}}), ("sow_delete", {"key": "1"}), ("sow", {})):
        answers = [client.ask(op, topic=topic, **fields) for topic in ("orders", "nowhere")]
        details = [one["detail"].replace(name, "?") for one, name in zip(answers, ("orders", "nowhere"), strict=True)]
        assert details[0] == details[1], details
        assert {one["reason"] for one in answers} == {"not_entitled"}
    client.close()


def test_the_expected_version_of_a_client_is_the_one_that_was_checked(guarded):
    """A client whose right has a filter cannot expect another version than that of the record that was checked."""
    client = guarded.world.connect("t-bob")
    answer = client.ask("delta_publish", topic="orders", data={"id": 1, "qty": 5}, expect_version=2)
    assert (answer["status"], answer["reason"], answer["version"]) == ("failure", "conflict", 1)
    assert (
        client.ask("delta_publish", topic="orders", data={"id": 1, "qty": 5}, expect_version=1)["status"] == "success"
    )
    client.close()


def test_a_topic_that_changes_its_messages_takes_none_under_a_right_with_a_filter(guarded):
    """A message of which sequence groups may leave out a part is refused: the record after it is not known."""
    settings = guarded.world.config.topic("orders")
    changed = settings.model_copy(update={"sequence_groups": [{"by": "/n", "fields": ["/desk"]}]})
    guarded.world.gateway.gateway.publishing._checked._config = guarded.world.config.model_copy(
        update={"topics": {"orders": changed}}
    )
    client = guarded.world.connect("t-bob")
    for op in ("publish", "delta_publish"):
        answer = client.ask(op, topic="orders", data={"id": 1, "desk": "x", "n": 0})
        assert answer["reason"] == "not_entitled"
    client.close()


def test_an_element_of_an_array_is_found_at_its_visible_place(guarded):
    """A filter on an array that projection has made shorter finds the same records with an index as without one."""
    grant(guarded, select="-/legs,+/legs/px")
    guarded.world.put(5, desk="x", legs=[{"hidden": 1}, {"px": 7}])
    client = guarded.world.connect("t-bob")
    for _ in range(3):  # The second query of a path builds an index.
        sub = client.subscribe("sow", "orders", filter="/legs[0]/px = 7")
        client.until(lambda sub=sub: sub in client.ready)
        assert set(client.held(sub)) == {"5"}
    sub = client.subscribe("sow_and_subscribe", "orders", filter="/legs[0]/px = 8")
    client.until(lambda: sub in client.ready)
    guarded.world.put(6, desk="x", legs=[{"hidden": 1}, {"px": 8}])
    client.until(lambda: set(client.held(sub)) == {"6"})
    client.close()


def test_a_client_that_leaves_before_its_events_begin_leaves_nothing(guarded):
    """A client that goes away while the view catches up leaves no session behind."""
    gateway, feed = guarded.world.gateway, guarded.world.feeds["orders"]
    begins = asyncio.Event()

    async def ready(_timeout_s):
        await begins.wait()
        return feed.engine

    feed.ready = ready
    with socket.create_connection(("127.0.0.1", gateway.port)) as events:
        head = f"GET /v1/topics/orders/subscribe HTTP/1.1\r\nHost: {gateway.address}\r\nAuthorization: Bearer t-bob\r\n"
        events.sendall(f"{head}\r\n".encode())
        until(lambda: len(gateway.gateway.sessions) == 1)
    # Another request on another connection: the end of the first one has been seen by then.
    assert gateway.get("/livez")[0] == 200
    gateway.call(begins.set)
    until(lambda: not gateway.gateway.sessions)


def test_half_a_surrogate_pair_is_refused(guarded):
    """A text that is none is refused, in a request and in a body, and the connection goes on."""
    client = guarded.world.connect("t-bob")
    client.socket.send('{"op": "sow", "id": "\\ud800", "topic": "orders"}')
    client.until(lambda: "" in client.acks)
    assert "surrogate" in client.acks[""]["detail"]
    client.socket.send('{"op": "ping", "id": "\\ud83d\\ude00"}')
    client.until(lambda: "\N{GRINNING FACE}" in client.acks)
    client.close()
    status, _, body = guarded.world.gateway.get("/v1/topics/orders/publish", BEARER, b'{"id": "\\ud800", "desk": "x"}')
    assert (status, b"surrogate" in body) == (400, True)
    assert guarded.world.gateway.get("/v1/topics/orders/records/%ED%A0%80", BEARER)[0] == 404


def test_a_query_ends_when_its_token_is_revoked(guarded):
    """A query over HTTP that a client reads slowly ends when its token is taken out of the file."""
    for key in range(3_000):
        guarded.world.put(key, desk="x", qty=key, note="n" * 2_000)
    connection = http.client.HTTPConnection("127.0.0.1", guarded.world.gateway.port)
    connection.request("GET", "/v1/topics/orders/sow", headers=BEARER)
    answer = connection.getresponse()
    answer.read(1_000)
    guarded.write(guarded.tokens, {"t-ann": {"user": "ann"}})
    guarded.world.gateway.call(guarded.world.gateway.gateway.authenticator.read_tokens)
    with pytest.raises(http.client.IncompleteRead) as ended:
        answer.read()
    assert len(ended.value.partial) < 3_000 * 2_000
    connection.close()


def test_lines_are_published_without_waiting_for_each_others_acks(guarded):
    """The commands of one body are sent together, and are answered in their order."""
    sent, unanswered, publishing = [], [Future(), Future()], guarded.world.gateway.gateway.publishing
    send = publishing._send

    def counted(name, op, topic, arguments):
        sent.append((name, arguments["data"]["id"]))
        if len(sent) < 3:
            return unanswered[len(sent) - 1]
        return send(name, op, topic, arguments)

    publishing._send = counted
    bearer = {"Authorization": "Bearer t-ann", "Idempotency-Key": "k"}
    with socket.create_connection(("127.0.0.1", guarded.world.gateway.port)) as one:
        body = b'{"id": 7}\n{"id": 8}\n{"id": 9}\n'
        head = "".join(f"{name}: {value}\r\n" for name, value in bearer.items())
        head = f"POST /v1/topics/orders/publish HTTP/1.1\r\nHost: a\r\n{head}Content-Length: {len(body)}\r\n\r\n"
        one.sendall(head.encode() + body)
        until(lambda: len(sent) == 3)
        for future in unanswered:
            future.set_exception(TimeoutError("no ack"))
        assert one.recv(100)  # The gateway waits at its end for requests that are not answered yet.
    (name,) = {name for name, _ in sent}
    assert name.startswith("ann/key/k/"), "with the digest of the body"
    assert [key for _, key in sent] == [7, 8, 9]


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8080", True),
        ("[::1]:8080", True),
        ("desk.example.com", True),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("gateway:8080", True),
        ("gateway.evil.example", False),
        ("localhost.:8080", False),
        ("", True),
    ],
)
def test_names_of_this_machine(host, is_own):
    """Addresses, localhost, listed names and the hosts of listed origins are accepted, and names of others are not."""
    assert is_own_name(host, ("https://desk.example.com",), ("gateway",)) is is_own


def test_a_name_of_another_site_does_not_lead_to_a_gateway_without_tokens(memory_world):
    """A page whose own name leads to this machine can neither read nor connect, where no token is needed."""
    evil = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert memory_world.gateway.get("/v1/topics", evil)[0] == 403
    assert memory_world.gateway.get("/v1/topics")[0] == 200
    with socket.create_connection(("127.0.0.1", memory_world.gateway.port)) as one:
        one.sendall(
            b"GET /v1/ws HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Sec-WebSocket-Protocol: sowstream.v1\r\n\r\n"
        )
        assert one.recv(100).startswith(b"HTTP/1.1 403")
