"""An idempotency key stands for one request: a repeat is safe, and another body is refused."""

import json

import pytest

from processor.gateway.access.requests import BadRequest
from processor.gateway.publishes import KEPT_S, IdempotencyKeys
from tests.gateway.memory import MemoryWorld
from tests.gateway.test_rights import Guarded

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
