"""A command is carried out once: repeated under its idempotency key, or sent again as the gateway did not take it."""

import json
import threading

import pytest

from processor.client.gateway.sender import GatewaySender
from processor.client.publish.outbox import PublishOptions
from processor.errors import BrokerUnavailable, PublishRejected
from processor.gateway.access.requests import BadRequest
from processor.gateway.commands import turns
from processor.gateway.commands.turns import NumberOrder
from processor.gateway.publishes import KEPT_S, IdempotencyKeys
from tests.gateway.memory import Guarded, MemoryWorld
from tests.gateway.test_coming_back import CONNECTED

BODY = b'{"id": 1, "qty": 1}\n{"id": 2, "qty": 2}\n'


@pytest.fixture
def world(tmp_path):
    """A gateway with one topic."""
    made = MemoryWorld(state_dir=tmp_path)
    yield made
    made.close()


def post(world, body, key="k", op="publish", token=None, query=""):
    """The status and the answers of a POST."""
    headers = {"Idempotency-Key": key} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    status, _, text = world.gateway.get(f"/v1/topics/orders/{op}{query}", headers, data=body)
    return status, [json.loads(line) for line in text.splitlines()]


def test_a_repeat_changes_nothing(world):
    """The same request again is a success for each line, and no record has another version."""
    assert post(world, BODY)[0] == 200
    status, answers = post(world, BODY)
    assert (status, [one["reason"] for one in answers]) == (200, ["duplicate", "duplicate"])
    assert world.feeds["orders"].versions == {b"1": 1, b"2": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"body": BODY.replace(b"2}", b"3}")},
        {"body": BODY.splitlines()[0]},
        {"body": BODY, "op": "delta_publish"},
        {"body": BODY, "query": "?expiration=60"},
    ],
)
def test_another_request_under_a_key_is_refused(world, tmp_path, other):
    """Another body, command or parameter under a used key is 422 and changes nothing, also after a restart."""
    post(world, BODY)
    for gateway in (world, MemoryWorld(state_dir=tmp_path)):
        status, [problem] = post(gateway, **other)
        assert (status, problem["reason"]) == (422, "key_reused")
        if gateway is not world:
            assert gateway.feeds["orders"].versions == {}
            gateway.close()
    assert world.feeds["orders"].versions == {b"1": 1, b"2": 1}


def test_spaces_make_no_other_request(world):
    """A body with the same records is the same request, however its JSON is spaced."""
    post(world, BODY)
    assert post(world, BODY.replace(b" ", b""))[0] == 200


def test_a_failed_line_is_tried_again(world):
    """A repeat carries out the line that had failed, and leaves the others."""
    world.put(2, qty=0)
    body = b'{"id": 2, "qty": 5}'
    status, [answer] = post(world, body, query="?expect_version=2")
    assert (status, answer["reason"]) == (422, "conflict")
    world.put(2, qty=1)
    status, [answer] = post(world, body, query="?expect_version=2")
    assert (status, answer["reason"]) == (200, None)


def test_a_key_belongs_to_its_user_and_topic(tmp_path):
    """Another user may use the same key, and a key has at most 200 characters."""
    guarded = Guarded(tmp_path)
    try:
        bodies = {"t-ann": b'{"id": 5, "desk": "x"}', "t-bob": b'{"id": 6, "desk": "x"}'}
        assert [post(guarded.world, body, token=token)[0] for token, body in bodies.items()] == [200, 200]
        assert post(guarded.world, bodies["t-ann"], key="k" * 201, token="t-ann")[0] == 400
    finally:
        guarded.world.close()


def test_a_repeat_is_a_success_although_it_may_not_be_done_again(tmp_path):
    """A user that may create a record but not replace it gets a success for the repeat of what created it."""
    guarded = Guarded(tmp_path)
    try:
        body = b'{"id": 7, "desk": "x"}'
        assert post(guarded.world, body, token="t-bob")[0] == 200
        assert post(guarded.world, body, token="t-bob", key="other")[0] == 403
        status, [answer] = post(guarded.world, body, token="t-bob")
        assert (status, answer["reason"]) == (200, "duplicate")
        guarded.world.put(7, desk="y")
        status, [answer] = post(guarded.world, body, token="t-bob")
        assert (status, answer["reason"], answer.get("version")) == (200, "duplicate", None)
    finally:
        guarded.world.close()


def test_keys_are_forgotten_after_a_day(tmp_path, monkeypatch):
    """A key may be used for another request after a day, and no earlier."""
    keys, clock = IdempotencyKeys(tmp_path / "keys"), [1_000_000.0]
    monkeypatch.setattr("processor.gateway.publishes.time.time", lambda: clock[0])
    keys.note("a", "1")
    clock[0] += KEPT_S - 1
    with pytest.raises(BadRequest):
        keys.note("a", "2")
    clock[0] += 2
    IdempotencyKeys(tmp_path / "keys").note("a", "2")
    keys.close()


class Refusing:
    """A gateway in memory whose way to Kafka fails for some commands, and notes what it sent."""

    def __init__(self, **settings):
        self.world = MemoryWorld("orders", "prices", **settings)
        publishing = self.world.gateway.gateway.publishing
        self.send, publishing._send = publishing._send, self._send
        self.faults = {}
        """By sequence: the errors with which the next attempts fail."""
        self.sent = []
        """The topics and sequences that came through."""
        self.gate = threading.Event()
        """Commands wait for it."""
        self.gate.set()

    def _send(self, name, op, topic, arguments):
        self.gate.wait(60)
        number = arguments.get("sequence")
        if errors := self.faults.get(number):
            raise errors.pop(0)
        self.sent.append((topic, number))
        return self.send(name, op, topic, arguments)

    def sender(self, **times):
        """A Python client's sender with short waits."""
        return GatewaySender(f"http://{self.world.gateway.address}", None, "py", CONNECTED._replace(**times))

    def records(self, topic="orders"):
        """The records of a topic by id."""
        rows = self.world.gateway.get(f"/v1/topics/{topic}/sow")[2].splitlines()
        return {row["data"]["id"]: row["data"] for row in map(json.loads, rows) if row.get("command") == "sow"}


@pytest.fixture
def refusing():
    """A gateway with two topics."""
    made = Refusing()
    yield made
    made.gate.set()
    made.world.close()


def publish(sender, number, topic="orders"):
    """Publish a record of its own for a number."""
    return sender.send("publish", topic, {"id": number}, None, PublishOptions(ack="persisted", sequence=number))


def away(times):
    """The errors of some attempts while Kafka does not answer."""
    return [BrokerUnavailable("Kafka does not answer") for _ in range(times)]


def test_a_numbered_command_is_sent_again_and_none_overtakes_it(refusing):
    """Of many commands under way some are not taken at first: each is taken once, in the order of the numbers."""
    refusing.faults = {3: away(1), 4: away(2), 20: away(3), 21: [BadRequest("too_many", "a budget is used up")]}
    refusing.gate.clear()
    sender = refusing.sender()
    futures = [publish(sender, number) for number in range(1, 41)]
    refusing.gate.set()
    futures += [publish(sender, number) for number in range(41, 61)]
    acks = [future.result(60) for future in futures]
    sender.close()
    assert [(ack.status, ack.is_duplicate) for ack in acks] == [("success", False)] * 60
    assert refusing.sent == [("orders", number) for number in range(1, 61)]
    assert refusing.records() == {number: {"id": number} for number in range(1, 61)}


def test_other_topics_and_commands_without_a_number_go_on(refusing):
    """While the commands of one topic wait, those of another topic are taken, and those without a number, too."""
    refusing.faults = {1: away(10**4)}
    sender = refusing.sender(publish_s=600.0)
    waiting = [publish(sender, 1), publish(sender, 2)]
    assert publish(sender, 5, "prices").result(60).status == "success"
    plain = sender.send("publish", "orders", {"id": 9}, None, PublishOptions(ack="persisted"))
    assert plain.result(60).status == "success"
    assert not any(future.done() for future in waiting)
    refusing.faults.clear()
    assert [future.result(60).is_duplicate for future in waiting] == [False, False]
    sender.close()
    assert refusing.records() == {number: {"id": number} for number in (1, 2, 9)}


def test_the_caller_gets_other_failures_and_the_end_of_the_time(refusing):
    """A failure that is no "not now" is given at once; at the end of its time a command fails with those behind it."""
    refusing.faults = {1: [PublishRejected("undecodable", "it is no record")], 2: away(10**4)}
    sender = refusing.sender(publish_s=0.3)
    futures = [publish(sender, number) for number in (1, 2, 3)]
    with pytest.raises(PublishRejected, match="no record"):
        futures[0].result(60)
    for future in futures[1:]:
        with pytest.raises(BrokerUnavailable):
            future.result(60)
    assert refusing.sent == []
    refusing.faults.clear()
    assert publish(sender, 2).result(60).is_duplicate is False
    assert publish(sender, 3).result(60).is_duplicate is False
    sender.close()


def test_commands_without_a_number_fail_at_once(refusing):
    """A command without a number that is not taken now fails: whether it may be sent again, only its caller knows."""
    refusing.faults = {None: away(1)}
    sender = refusing.sender()
    future = sender.send("publish", "orders", {"id": 1}, None, PublishOptions(ack="persisted"))
    with pytest.raises(BrokerUnavailable, match="Kafka does not answer"):
        future.result(60)
    sender.close()


def test_no_line_of_a_body_overtakes_one_that_was_not_taken(refusing):
    """A body whose second line is not taken now is sent again under its Idempotency-Key: each line is in the SOW."""
    refusing.faults = {2: away(1)}
    body = b'{"id": 1}\n{"id": 2}\n{"id": 3}\n'
    ask = ("/v1/topics/orders/publish", {"Idempotency-Key": "k"}, body)
    reasons = [json.loads(line)["reason"] for line in refusing.world.gateway.get(*ask)[2].splitlines()]
    assert reasons == [None, "unavailable", "unavailable"]
    again = [json.loads(line) for line in refusing.world.gateway.get(*ask)[2].splitlines()]
    assert [(one["status"], one["reason"]) for one in again] == [
        ("success", "duplicate"),
        ("success", None),
        ("success", None),
    ]
    assert refusing.records() == {number: {"id": number} for number in (1, 2, 3)}


@pytest.mark.parametrize(
    ("faults", "key", "lines", "status"),
    [
        ({None: 1}, None, 1, 503),
        ({None: 2}, None, 2, 503),
        ({None: 1}, None, 2, 422),
        ({2: 1}, "k", 2, 503),
        ({1: 1}, "k", 1, 503),
    ],
)
def test_a_body_that_cannot_be_taken_now_is_answered_with_503(refusing, faults, key, lines, status):
    """Where "not now" is the only failure, and a repeat does nothing twice, the status says so."""
    refusing.faults = {number: away(times) for number, times in faults.items()}
    body = b'{"id": 1}\n{"id": 2}\n'[: lines * 10]
    headers = {} if key is None else {"Idempotency-Key": key}
    answered, fields, text = refusing.world.gateway.get("/v1/topics/orders/publish", headers, body)
    assert (answered, fields.get("retry-after")) == (status, "1" if status == 503 else None)
    assert "unavailable" in [json.loads(line)["reason"] for line in text.splitlines()]


def test_a_frame_that_finds_no_place_to_be_read_holds_up_those_behind_it(refusing):
    """A long frame that no thread takes now waits, and the frames behind it with it: no command overtakes it."""
    gateway, refused = refusing.world.gateway.gateway, []
    parsed = gateway.parsed

    async def full(data, parse):
        if len(data) > 2_000 and len(refused) < 3:
            refused.append(True)
            raise BadRequest("unavailable", "too many wait")
        return await parsed(data, parse)

    gateway.parsed = full
    client = refusing.world.connect()
    long = client.send("publish", topic="orders", data={"id": 1, "note": "n" * 4_000}, ack="persisted", sequence=1)
    short = client.send("publish", topic="orders", data={"id": 2}, ack="persisted", sequence=2)
    client.until(lambda: short in client.acks)
    assert [client.acks[name]["status"] for name in (long, short)] == ["success"] * 2
    assert len(refused) == 3
    assert refusing.sent == [("orders", 1), ("orders", 2)]
    client.close()


def test_a_number_that_does_not_come_again_is_given_up():
    """Higher numbers are refused until the lowest missed one comes again, or has not come for a minute."""
    now_s = 0.0
    order = NumberOrder(lambda: now_s)

    def is_sent(number, topic="orders"):
        try:
            order.check(topic, number)
        except BadRequest as error:
            order.note(topic, number, error.reason)
            return False
        return True

    order.note("orders", 5, "unavailable")
    assert [is_sent(number) for number in (6, 7, 6)] == [False] * 3
    assert is_sent(6, "prices")
    assert is_sent(None)
    assert is_sent(4)
    assert [is_sent(number) for number in (5, 8, 6, 8, 7, 8, 9)] == [True, False, True, False, True, True, True]
    assert not order._missed
    order.note("orders", 10, "undecodable")
    assert is_sent(11)
    order.note("orders", 12, "too_many")
    now_s = turns._MISSED_S - 1
    assert not is_sent(13)
    now_s = turns._MISSED_S + 1
    assert not is_sent(14)
    now_s = 2 * turns._MISSED_S + 2
    assert is_sent(15)
    assert not order._missed
    for number in range(turns._MISSED_MAX * 2, 0, -1):
        order.note("orders", number, "unavailable")
    heap, times = order._missed["orders"]
    assert len(heap) == len(times) == turns._MISSED_MAX
