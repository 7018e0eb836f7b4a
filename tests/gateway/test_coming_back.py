"""A client and a gateway go on when the other one, a view, a token or the network was away."""

import http.client
import json
import socket
import threading
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from processor.client import Client
from processor.client.gateway import answers as tokens
from processor.client.gateway.gateway_http import GatewayAddress, GatewayHttp, LinkTimes
from processor.client.gateway.link import GatewayLink
from processor.client.gateway.sender import GatewaySender
from processor.client.publish.outbox import PublishOptions
from processor.config.gateway import JwtConfig
from processor.errors import BrokerUnavailable, Stop
from processor.gateway.access.identity import AccessDenied
from processor.gateway.access.requests import BadRequest
from tests.gateway.memory import MemoryWorld
from tests.gateway.proxy import FaultyProxy
from tests.waiting import until


@pytest.fixture
def world():
    """A gateway with two topics, whose requests wait for a view at most half a second."""
    made = MemoryWorld("orders", "prices")
    made.gateway.gateway.ready_timeout_s = 0.5
    yield made
    made.close()


def test_other_requests_do_not_wait_behind_one_that_waits_for_a_view(world):
    """While a subscription waits for a view that has not caught up, other requests of its connection are answered."""
    world.gateway.gateway.ready_timeout_s = 60
    world.put(1, "prices", px=1)
    world.gateway.call(world.feeds["orders"].hold)
    client = world.connect()
    waiting = client.send("sow_and_subscribe", topic="orders")
    ended = client.send("sow_and_subscribe", topic="orders")
    assert client.ask("ping")["status"] == "success"
    assert client.ask("unsubscribe", sub=ended)["status"] == "success"
    prices = client.subscribe("sow_and_subscribe", "prices")
    client.until(lambda: prices in client.ready)
    assert client.ask("publish", topic="prices", data={"id": 2}, ack="persisted")["status"] == "success"
    assert waiting not in client.acks
    world.put(1, qty=1)
    world.gateway.call(world.feeds["orders"].restart)
    client.until(lambda: waiting in client.ready and ended in client.acks)
    assert client.held(waiting) == {"1": {"id": 1, "qty": 1}}
    assert client.acks[ended]["reason"] == "no_such_subscription"
    client.close()


def test_a_view_that_is_late_is_answered_with_unavailable(world):
    """A request whose view has not caught up in time fails with the one reason that says: try again."""
    world.gateway.call(world.feeds["orders"].hold)
    client = world.connect()
    for op in ("sow", "subscribe", "sow_and_delta_subscribe"):
        assert client.ask(op, topic="orders")["reason"] == "unavailable"
    assert world.gateway.get("/v1/topics/orders/sow")[0] == 503
    assert world.gateway.get("/v1/topics/orders/subscribe")[0] == 503
    client.close()


def test_publishes_that_wait_keep_their_order_and_hold_up_nothing_else(world):
    """While a publish waits for Kafka, a ping is answered, and the publishes behind it keep their order."""
    publishing = world.gateway.gateway.publishing
    send, gate = publishing._send, []

    def slow(name, op, topic, arguments):
        while not gate:
            time.sleep(0.01)
        return send(name, op, topic, arguments)

    publishing._send = slow
    client = world.connect()
    names = [client.send("publish", topic="orders", data={"id": 1, "n": n}, ack="persisted") for n in range(20)]
    assert client.ask("ping")["status"] == "success"
    assert not set(names) & set(client.acks)
    gate.append(True)
    client.until(lambda: set(names) <= set(client.acks))
    assert [name for name in client.acks if name in names] == names
    assert json.loads(world.gateway.get("/v1/topics/orders/records/1")[2])["data"] == {"id": 1, "n": 19}
    client.close()


def test_a_quiet_stream_of_events_has_comments(world):
    """Server-Sent Events of a quiet topic have a comment before a proxy would cut the connection."""
    assert world.gateway.gateway.comment_interval_s == 15
    world.gateway.gateway.comment_interval_s = 0.05
    connection = http.client.HTTPConnection(world.gateway.address, timeout=60)
    connection.request("GET", "/v1/topics/orders/subscribe?op=subscribe")
    answer = connection.getresponse()
    lines = [answer.readline() for _ in range(8)]
    assert lines.count(b":\n") >= 2
    world.put(1, qty=1)
    while b'"qty":1' not in answer.readline():
        pass
    connection.close()
    until(lambda: not world.gateway.gateway.sessions)


QUICK = LinkTimes(backoff_s=0.01, backoff_max_s=0.05, open_s=0.5, first_s=120.0, silence_s=0.3, answer_s=2.0)
CONNECTED = QUICK._replace(open_s=60.0, silence_s=60.0, answer_s=60.0)
"""A busy gateway does not lose its clients: only a closed socket does."""


class Site:
    """A gateway behind a proxy that fails, and its Python clients with short limits."""

    def __init__(self, **settings):
        self.world = MemoryWorld("orders", "prices", **settings)
        self.proxy = FaultyProxy(self.world.gateway.port, path="/sow")
        self.world.gateway.gateway.ready_timeout_s = 0.2

    def client(self, **settings):
        """A client with short limits."""
        client = Client("py", gateway=f"http://{self.proxy.address}/sow/?desk=x%2Fy", **settings)
        client._reader.times = QUICK
        return client

    def close(self):
        """End both."""
        self.proxy.close()
        self.world.close()


@pytest.fixture
def site():
    """A gateway behind a proxy."""
    made = Site()
    yield made
    made.close()


def until_is(view, wanted):
    """Refresh a view until it has some records."""

    def has_them():
        view.refresh(0.1)
        return dict(view) == wanted

    until(has_them, lambda: (dict(view), wanted), pause_s=0)


def pass_time(view):
    """Some turns of a view's feed, whose messages the view gets later."""
    feed = feed_of(view)
    view._subscription._buffer.extend(feed.fetch(0.1))


def feed_of(view):
    """The feed of a view."""
    return view._subscription._topic_feed


def until_lost(view):
    """Let time pass until a view's feed knows that its connection is gone."""
    until(lambda: pass_time(view) or not feed_of(view).is_live)


def until_live(view):
    """Let time pass until a view's feed follows its topics: on a busy machine it may lose a connection by itself."""
    until(lambda: pass_time(view) or feed_of(view).is_live)


def test_the_path_and_the_query_of_an_address_are_kept(site):
    """A client whose gateway is below a path of a proxy asks below that path, with the query of the address."""
    site.world.put(1, qty=1)
    with site.client() as client:
        assert client.get("orders", "1").data == {"id": 1, "qty": 1}
        assert client.get("orders", 1).data == {"id": 1, "qty": 1}
    assert {line.split()[1] for line in site.proxy.requests} == {
        "/sow/v1/ws?desk=x%2Fy",
        "/sow/v1/topics?desk=x%2Fy",
    }


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://desk/sow", "wss://desk/sow/v1/ws"),
        ("https://desk/a/b//?tenant=x", "wss://desk/a/b/v1/ws?tenant=x"),
        ("http://[::1]:8080", "ws://[::1]:8080/v1/ws"),
        ("http://desk/caf%C3%A9/%2Fx#page", "ws://desk/caf%C3%A9/%2Fx/v1/ws"),
        ("http://desk/café?é= /%20?", "ws://desk/caf%C3%A9/v1/ws?%C3%A9=%20/%20?"),
        ("ws://desk:1/v1/ws", "ws://desk:1/v1/ws"),
    ],
)
def test_an_address_is_understood_as_in_javascript(url, address):
    """Paths, queries, IPv6 hosts and percent-encoding give the same address as in the JavaScript client."""
    assert GatewayLink(url, None, "py")._address == address


def test_an_attempt_to_connect_goes_on_over_several_turns(site):
    """A reader whose turns are shorter than an attempt to connect is connected again."""
    site.world.put(1, qty=1)
    with site.client() as client, client.view("orders") as view:
        feed = feed_of(view)
        site.proxy.cut()
        until(lambda: not view._subscription._buffer.extend(feed.fetch(0.0)) and not feed.is_live)
        until(lambda: not view._subscription._buffer.extend(feed.fetch(0.0)) and feed.is_live)


@pytest.mark.parametrize("fault", ["cut", "freeze", "refuse", "silent", "503"])
def test_a_view_goes_on_after_any_fault_of_the_network(site, fault):
    """After connections that are cut, dead without a word, refused or never answered a view has the records again."""
    site.world.put(1, qty=1)
    with site.client() as client, client.view("orders") as view:
        until_is(view, {"1": {"id": 1, "qty": 1}})
        until_live(view)
        if fault in ("cut", "freeze"):
            getattr(site.proxy, fault)()
        else:
            site.proxy.mode = fault
            site.proxy.cut()
            until_lost(view)
        for number in range(20):
            site.world.put(1, qty=number)
            pass_time(view)
            if fault not in ("cut", "freeze"):
                assert not feed_of(view).is_live
        site.proxy.mode = "pass"
        site.world.delete(1)
        site.world.put(2, qty=2)
        until_is(view, {"2": {"id": 2, "qty": 2}})
        until_live(view)


def test_a_view_that_is_late_is_asked_for_again_by_every_call(site):
    """While the gateway's view is late, subscriptions, queries and `get` wait; those on other topics go on."""
    site.world.put(1, qty=1)
    site.world.put(1, "prices", px=1)
    with site.client() as client, client.view("orders") as view, client.connect(timeout_s=60) as connection:
        until_is(view, {"1": {"id": 1, "qty": 1}})
        site.world.gateway.call(site.world.feeds["orders"].hold)
        site.proxy.cut()
        answers = []
        calls = [
            lambda: client.get("orders", "1").data["qty"],
            lambda: client.sow("orders").to_pandas()["qty"][0],
            lambda: next(m.data["qty"] for m in client.sow_and_subscribe("orders") if m.command == "sow"),
        ]
        threads = [threading.Thread(target=lambda call=call: answers.append(call())) for call in calls]
        for thread in threads:
            thread.start()
        connection.sow_and_subscribe("orders", sub_id="o")
        connection.sow_and_subscribe("prices", sub_id="p")
        messages = iter(connection)
        assert [next(messages).sub_ids for _ in range(3)] == [("p",)] * 3
        until_lost(view)
        for _ in range(10):
            pass_time(view)
            assert not feed_of(view).is_live
        assert not answers
        site.world.put(1, qty=2)
        site.world.gateway.call(site.world.feeds["orders"].restart)
        for thread in threads:
            thread.join(60)
        assert answers == [2, 2, 2]
        assert next(one for one in messages if one.sub_ids == ("o",) and one.command == "sow").data["qty"] == 2
        until_is(view, {"1": {"id": 1, "qty": 2}})


def test_a_question_is_asked_again_after_an_answer_that_was_cut_short_or_is_no_http():
    """An answer that ends too soon, or is of another protocol, is that of an absent gateway: no error of a library."""
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]
    answers[-1] += b'{"topics": []}'
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            for text in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(text)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = GatewayAddress(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert GatewayHttp(address, None, CONNECTED).topics() == []
        thread.join(60)


def test_numbered_commands_are_sent_again_and_carried_out_once(site):
    """A command with a sequence survives a lost connection, and is carried out once; another one fails."""
    send, gate = site.world.gateway.gateway.publishing._send, threading.Event()

    def slow(name, op, topic, arguments):
        gate.wait(60)
        return send(name, op, topic, arguments)

    site.world.gateway.gateway.publishing._send = slow
    sender = GatewaySender(f"http://{site.proxy.address}/sow", None, "py", CONNECTED)
    options = [PublishOptions(ack="persisted", sequence=number) for number in (1, 2, 3, None)]
    futures = [sender.send("publish", "orders", {"id": 1, "n": n}, None, one) for n, one in enumerate(options)]
    site.proxy.mode = "refuse"
    site.proxy.cut()
    with pytest.raises(BrokerUnavailable, match="may have been"):
        futures[3].result(60)
    late = sender.send("publish", "orders", {"id": 1, "n": 9}, None, PublishOptions(ack="persisted", sequence=4))
    with pytest.raises(BrokerUnavailable, match="sequence"):
        sender.send("publish", "orders", {"id": 1}, None, PublishOptions())
    gate.set()
    site.proxy.mode = "pass"
    assert [future.result(60).status for future in (*futures[:3], late)] == ["success"] * 4
    sender.close()
    assert json.loads(site.world.gateway.get("/v1/topics/orders/records/1")[2])["data"] == {"id": 1, "n": 9}
    assert site.world.feeds["orders"].versions[b"1"] <= 5


@pytest.fixture
def issuer(tmp_path):
    """An issuer of tokens that a gateway behind a proxy trusts."""
    made = Issuer(tmp_path)
    yield made
    made.site.close()


class Issuer:
    """Gives JSON Web Tokens; the gateway's means to verify them can be away."""

    def __init__(self, directory):
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._key = key
        public = directory / "key.pem"
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        rights = directory / "entitlements.yaml"
        rights.write_text("users: {ann: {orders: {read: true}}}\n")
        claims = {"public_key_file": str(public), "issuer": "us", "audience": "gateway", "leeway_s": 0.0}
        if "leeway_s" not in JwtConfig.model_fields:
            del claims["leeway_s"]
        self.site = Site(auth={"jwt": claims}, entitlements=str(rights))
        self.life_s, self.given = 600.0, 0

    def token(self):
        """A new token."""
        self.given += 1
        claims = {"sub": "ann", "iss": "us", "aud": "gateway", "exp": time.time() + self.life_s, "jti": str(self.given)}
        return jwt.encode(claims, self._key, algorithm="RS256")


def test_a_token_is_renewed_before_its_end_on_the_same_connection(issuer, monkeypatch):
    """A Python client renews its token through its function: the connection stays, and no record leaves."""
    monkeypatch.setattr(tokens, "_RENEW_SHARE", 0.01)
    issuer.site.world.put(1, qty=1)
    messages = []
    with issuer.site.client(token=issuer.token) as client:
        client._reader.times = CONNECTED
        subscription = client.sow_and_delta_subscribe("orders", None, "oof", timeout_s=60)
        while issuer.given < 3 or len(messages) < 3:
            if (message := subscription.next_within(0.1)) is not None:
                messages.append(message)
    assert len(issuer.site.proxy.requests) == 1
    assert [message.command for message in messages] == ["group_begin", "sow", "group_end"]


def test_after_the_end_of_a_token_a_client_goes_on_from_its_bookmark(issuer):
    """A client whose token expired unnoticed resumes with a new one: no oof, no snapshot, only what has changed."""
    issuer.life_s = 3.0
    issuer.site.world.put(1, qty=1)
    with issuer.site.client(token=issuer.token) as client:
        subscription = client.sow_and_delta_subscribe("orders", None, "oof", timeout_s=60)
        while next(subscription).command != "group_end":
            pass
        while not subscription._topic_feed._served["1"].bookmark:
            subscription._topic_feed.fetch(0.1)
        until(lambda: not issuer.site.world.gateway.gateway.sessions)  # Nobody reads meanwhile.
        issuer.site.world.put(1, qty=2)
        message = next(subscription)
        assert (message.command, message.delta, message.data) == ("publish", True, {"id": 1, "qty": 2})
        subscription.close()


def test_a_token_that_cannot_be_verified_now_is_offered_again(issuer):
    """While the gateway cannot verify tokens a client with a fixed token goes on; a refusal ends it."""
    gateway = issuer.site.world.gateway.gateway
    verify, answers = gateway.verify, []

    async def away(token):
        if answers:
            raise answers[-1]
        return await verify(token)

    gateway.verify = away
    issuer.site.world.put(1, qty=1)
    with issuer.site.client(token=issuer.token()) as client, client.view("orders") as view:
        answers.append(BadRequest("unavailable", "the issuer's keys cannot be fetched now"))
        issuer.site.proxy.cut()
        until_lost(view)
        for _ in range(10):
            pass_time(view)
            assert not feed_of(view).is_live
        answers.clear()
        issuer.site.world.put(2, qty=2)
        until_is(view, {"1": {"id": 1, "qty": 1}, "2": {"id": 2, "qty": 2}})
        answers.append(AccessDenied("the token was revoked"))
        issuer.site.proxy.cut()
        with pytest.raises(Stop, match="revoked"):
            list(view.changes())


def test_a_function_for_tokens_that_fails_or_hangs_is_called_again(issuer):
    """A function that raises, and one that gives nothing in time, are called again for the next attempt."""
    issuer.site.world.put(1, qty=1)
    faults = [lambda: 1 / 0, lambda: time.sleep(2)]
    with issuer.site.client(token=lambda: faults.pop()() if faults else issuer.token()) as client:
        assert client.get("orders", "1").data == {"id": 1, "qty": 1}
    assert not faults


def test_a_slow_reader_gets_every_state(site):
    """A Python reader that pauses for longer than the limits of its connection misses nothing."""
    with site.client() as client, client.view("orders") as view:
        for turn in range(3):
            for number in range(40):
                site.world.put(number, turn=turn, note="n" * 20_000)
            time.sleep(0.8)  # Longer than a ping and its answer may take.
        until_is(view, {str(n): {"id": n, "turn": 2, "note": "n" * 20_000} for n in range(40)})
