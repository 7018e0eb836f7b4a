"""Tokens, entitlements and origins: users see and change their own records only, and changes of rights act at once."""

import contextlib
import json
import time

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from processor.config import Config
from processor.config.gateway import JwtConfig
from processor.errors import ConfigurationError
from processor.gateway.access.entitlements import NO_RIGHTS, Entitlements
from processor.gateway.access.identity import AccessDenied, Identity, TokensFile, _JwtVerifier
from processor.gateway.gateway import Gateway
from processor.gateway.sessions.session_subscriptions import SessionSubscriptions
from processor.merge import KeyFields
from tests.certificates import signing_key
from tests.gateway.memory import RIGHTS, TOKENS
from tests.waiting import PATIENCE_S, until


def test_a_user_sees_only_its_records_and_fields(guarded):
    """A role's filter and select list apply in snapshots, updates and out-of-focus messages."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options={"oof": True})
    client.until(lambda: sub in client.ready)
    assert client.held(sub) == {"1": {"id": 1, "desk": "x", "qty": 1}}
    guarded.world.put(2, desk="x", secret=22, qty=2)
    client.until(lambda: client.held(sub).get("2") == {"id": 2, "desk": "x", "qty": 2})
    guarded.world.put(2, desk="y", secret=23, qty=99)
    client.until(lambda: "2" not in client.held(sub))
    [oof] = [m for m in client.messages if m.get("command") == "oof"]
    assert oof["reason"] == "entitlement"
    assert oof["data"] == {"id": 2, "desk": "x", "qty": 2}
    assert "secret" not in json.dumps(client.messages)
    client.close()


@pytest.mark.parametrize(
    "asked",
    [
        {"filter": "/secret = 1"},
        {"filter": "/secret IS NOT NULL"},
        {"filter": "MESSAGE_SIZE() > 0"},
        {"options": {"select": "-/,+/secret"}, "filter": "/secret > 0"},
    ],
)
def test_hidden_fields_cannot_be_found_out_by_asking(guarded, asked):
    """A filter sees a hidden field as NULL, and the size of a record with hidden fields, too."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow", "orders", **asked)
    client.until(lambda: sub in client.ready)
    assert client.held(sub) == {}
    client.close()


def test_an_order_by_a_hidden_field_tells_nothing(guarded):
    """An order by a hidden field is the order of the keys."""
    guarded.world.put(0, desk="x", secret=9)
    for order in ("/secret", "/secret DESC"):
        client = guarded.world.connect("t-bob")
        sub = client.subscribe("sow", "orders", options={"order_by": order})
        client.until(lambda sub=sub, client=client: sub in client.ready)
        assert list(client.held(sub)) == ["0", "1"]
        client.close()


def test_a_user_without_an_entry_sees_no_topic(guarded):
    """A user without an entry is denied topics, queries, records and publishes."""
    client = guarded.world.connect("t-eve")
    assert client.ask("sow", topic="orders")["reason"] == "not_entitled"
    assert client.ask("publish", topic="orders", data={"id": 1})["reason"] == "not_entitled"
    bearer = {"Authorization": "Bearer t-eve"}
    assert json.loads(guarded.world.gateway.get("/v1/topics", bearer)[2])["topics"] == []
    assert guarded.world.gateway.get("/v1/topics/orders/records/1", bearer)[0] == 403
    assert guarded.world.gateway.get("/v1/topics/orders/records/2", {"Authorization": "Bearer t-bob"})[0] == 404
    assert guarded.world.gateway.get("/v1/topics")[0] == 401
    client.close()


def test_publishing_needs_a_right_that_the_merged_record_matches(guarded):
    """A publish whose merged record does not match the right fails, and changes nothing."""
    client = guarded.world.connect("t-bob")
    assert client.ask("publish", topic="orders", data={"id": 5, "desk": "y"}, ack="processed")["status"] == "failure"
    assert client.ask("delta_publish", topic="orders", data={"id": 1, "desk": "y"})["reason"] == "not_entitled"
    assert client.ask("delta_publish", topic="orders", data={"id": 2, "qty": 3})["reason"] == "not_entitled"
    assert client.ask("sow_delete", topic="orders", key="1")["reason"] == "not_entitled"
    assert client.ask("delta_publish", topic="orders", data={"id": 1, "qty": 7}, ack="persisted")["status"] == "success"
    ann = guarded.world.connect("t-ann")
    sub = ann.subscribe("sow", "orders")
    ann.until(lambda: sub in ann.ready)
    assert ann.held(sub) == {
        "1": {"id": 1, "desk": "x", "secret": 1, "qty": 7},
        "2": {"id": 2, "desk": "y", "secret": 2, "qty": 2},
    }
    client.close()
    ann.close()


def test_a_changed_entitlement_acts_within_a_second(guarded):
    """Records that may no longer be seen leave with the reason entitlement, and others enter, without a restart."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow_and_delta_subscribe", "orders", options={"oof": True})
    client.until(lambda: sub in client.ready)
    rights = json.loads(json.dumps(RIGHTS))
    rights["roles"]["desk"]["orders"]["read"] = "/desk = 'y'"
    guarded.write(guarded.rights, rights)
    client.until(lambda: client.held(sub) == {"2": {"id": 2, "desk": "y", "qty": 2}})
    [oof] = [m for m in client.messages if m.get("command") == "oof"]
    assert (oof["sow_key"], oof["reason"], oof["data"]) == ("1", "entitlement", {"id": 1})
    rights["roles"] = {}
    guarded.write(guarded.rights, rights)
    client.until(lambda: any(m.get("op") == "ended" for m in client.messages))
    assert client.held(sub) == {}
    client.close()


def test_a_file_that_cannot_be_used_changes_nothing(guarded):
    """A broken file of entitlements leaves the rights as they are."""
    with structlog.testing.capture_logs() as lines:
        guarded.rights.write_text("roles: {desk: {orders: {read: '/desk ='}}}")
        until(lambda: [line for line in lines if "cannot be used" in line["event"]], lambda: lines)
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow", "orders")
    client.until(lambda: sub in client.ready)
    assert set(client.held(sub)) == {"1"}
    client.close()


NO_YAML = pytest.mark.parametrize(
    "broken", ["t-ann: {user: [}", "t-ann: !!int x", "t-ann: 0x_", "t-ann: !!int ''", "t-ann: " + "1" * 5_000]
)
"""Files that are not YAML, or have values that are none of their kind."""


@NO_YAML
def test_a_right_is_withdrawn_while_the_file_of_tokens_is_broken(guarded, broken):
    """Each file is read by itself: a broken file of tokens does not delay a change of the entitlements."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow_and_subscribe", "orders", options={"oof": True})
    client.until(lambda: sub in client.ready)
    guarded.tokens.write_text(broken)
    guarded.write(guarded.rights, {**RIGHTS, "roles": {}})
    client.until(lambda: any(m.get("op") == "ended" for m in client.messages))
    assert client.held(sub) == {}
    client.close()


@NO_YAML
def test_a_token_is_revoked_while_the_entitlements_are_broken(guarded, broken):
    """A broken file of entitlements does not delay the end of a token, and is read again as soon as it is mended."""
    client = guarded.world.connect("t-bob")
    sub = client.subscribe("sow_and_subscribe", "orders")
    client.until(lambda: sub in client.ready)
    with structlog.testing.capture_logs() as lines:
        guarded.rights.write_text(broken)
        guarded.write(guarded.tokens, {name: one for name, one in TOKENS.items() if name != "t-bob"})
        with contextlib.suppress(ConnectionClosed):
            client.until(lambda: False)
        assert client.socket.close_code == 4401
        guarded.write(guarded.rights, {"roles": {}, "users": {}})
        until(lambda: [line for line in lines if line.get("file") == "entitlements"], lambda: lines)
    assert len([line for line in lines if "cannot be used" in line["event"]]) == 1


def test_a_session_in_which_changed_rights_fail_ends_and_the_others_lose_theirs(guarded, monkeypatch):
    """A session fails closed, and none keeps a withdrawn right as one before it failed."""
    clients = guarded.world.connect("t-ann"), guarded.world.connect("t-bob")
    for client in clients:
        sub = client.subscribe("sow_and_subscribe", "orders")
        client.until(lambda client=client, sub=sub: sub in client.ready)
    apply, failed = SessionSubscriptions.apply_rights, []

    async def fail_once(subscriptions):
        if not failed:
            failed.append(subscriptions)
            raise RuntimeError
        await apply(subscriptions)

    monkeypatch.setattr(SessionSubscriptions, "apply_rights", fail_once)
    guarded.write(guarded.rights, {"roles": {}, "users": {}})
    ends = []
    for client in clients:
        try:
            client.until(lambda client=client: any(m.get("op") == "ended" for m in client.messages))
            ends.append("no right")
            client.close()
        except ConnectionClosed:
            ends.append("closed")
    assert sorted(ends) == ["closed", "no right"]


def test_a_revoked_token_ends_its_connection(guarded):
    """A token that is taken out of the file takes every record from its clients, and ends their connections."""
    client = guarded.world.connect("t-ann")
    sub = client.subscribe("sow_and_subscribe", "orders", options={"oof": True})
    client.until(lambda: sub in client.ready)
    guarded.write(guarded.tokens, {name: one for name, one in TOKENS.items() if name != "t-ann"})
    with contextlib.suppress(ConnectionClosed):
        client.until(lambda: False)
    assert client.socket.close_code == 4401
    assert client.held(sub) == {}
    assert {m["reason"] for m in client.messages if m.get("command") == "oof"} == {"entitlement"}


def test_an_upgrade_from_another_origin_is_refused(guarded):
    """A page of another site cannot connect; one of the gateway itself, and a program, can."""
    address = guarded.world.gateway.address
    for origin, is_refused in (("https://evil.example", True), (f"http://{address}", False), (None, False)):
        headers = {} if origin is None else {"Origin": origin}
        attempt = {"subprotocols": ["sowstream.v1"], "additional_headers": headers, "compression": None,
                   "open_timeout": PATIENCE_S}  # fmt: skip
        if is_refused:
            with pytest.raises(InvalidStatus) as caught, connect(f"ws://{address}/v1/ws", **attempt):
                pass
            assert caught.value.response.status_code == 403
        else:
            with connect(f"ws://{address}/v1/ws", **attempt):
                pass


def test_an_oversized_frame_ends_the_connection(guarded):
    """A frame larger than the limit closes the connection with 1009, at its head: what follows is not read."""
    client = guarded.world.connect("t-ann")
    # Without a body: a connection that ends with bytes unread is reset, and the reset may overtake the reason.
    client.socket.socket.sendall(b"\x81\xff" + (2_000_000).to_bytes(8) + b"mask")
    with contextlib.suppress(ConnectionClosed):
        client.until(lambda: False)
    assert client.socket.close_code == 1009


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """Verifies tokens that our key has signed."""
    file = tmp_path_factory.mktemp("keys") / "public.pem"
    public = signing_key("ours").public_key()
    file.write_bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return _JwtVerifier(JwtConfig(public_key_file=file, issuer="us", audience="gateway")), file


def _signed_with_the_public_key(file):
    """A token whose signature takes the public key for a shared secret."""
    import base64
    import hashlib
    import hmac

    def part(tree):
        return base64.urlsafe_b64encode(json.dumps(tree).encode()).rstrip(b"=")

    text = part({"alg": "HS256", "typ": "JWT"}) + b"." + part(claims())
    mac = hmac.new(file.read_bytes(), text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def claims(**changes):
    """The claims of a valid token."""
    tree = {"sub": "ann", "roles": ["desk"], "iss": "us", "aud": "gateway", "exp": time.time() + 60, "jti": "1"}
    return {name: value for name, value in {**tree, **changes}.items() if value is not None}


def test_a_valid_token_proves_user_roles_and_expiry(verifier):
    """A signed token proves its user, its roles and the time at which it expires."""
    expires_s = int(time.time()) + 600
    identity = verifier[0].verify(jwt.encode(claims(exp=expires_s), signing_key("ours"), algorithm="RS256"))
    assert (identity.user, identity.roles, identity.token_id) == ("ann", ("desk",), "1")
    assert identity.expires_at_s == expires_s + 10  # The leeway.


@pytest.mark.parametrize(
    "forged",
    [
        lambda file: jwt.encode(claims(), signing_key("another"), algorithm="RS256"),
        lambda file: jwt.encode(claims(), None, algorithm="none"),
        lambda file: jwt.encode(claims(exp=time.time() - 11), signing_key("ours"), algorithm="RS256"),
        lambda file: jwt.encode(claims(exp=10**400), signing_key("ours"), algorithm="RS256"),
        lambda file: jwt.encode(claims(exp=None), signing_key("ours"), algorithm="RS256"),
        lambda file: jwt.encode(claims(aud="other"), signing_key("ours"), algorithm="RS256"),
        lambda file: jwt.encode(claims(aud=None), signing_key("ours"), algorithm="RS256"),
        lambda file: jwt.encode(claims(iss="them"), signing_key("ours"), algorithm="RS256"),
        lambda file: jwt.encode(claims(sub=None), signing_key("ours"), algorithm="RS256"),
        lambda file: jwt.encode(claims(roles=[1]), signing_key("ours"), algorithm="RS256"),
        lambda file: jwt.encode(claims(), signing_key("ours"), algorithm="RS512"),
        lambda file: "not.a.token",
        _signed_with_the_public_key,
    ],
)
def test_a_forged_token_proves_nothing(verifier, forged):
    """Another key, no signature, an expired or wrong claim, and the public key as a secret are all refused."""
    token = forged(verifier[1])
    with pytest.raises(AccessDenied) as caught:
        verifier[0].verify(token)
    assert token not in str(caught.value)


def test_rights_that_are_computed_while_the_file_is_read_again_are_not_kept(tmp_path):
    """A right that the file withdraws while the rights of its user are computed for the first time is gone at once."""
    file = tmp_path / "entitlements.yaml"
    file.write_text("users: {ann: {orders: {read: true, select: -/secret, publish: true}}}")
    withdraws = []

    def key_fields(_topic):
        if withdraws:  # The rights are computed just now.
            file.write_text(withdraws.pop())
            entitlements.load()
        return KeyFields(("/id",))

    entitlements, ann = Entitlements(file, key_fields, ("orders",)), Identity("ann")
    withdraws.append("users: {}")
    entitlements.rights(ann, "orders")
    assert not withdraws
    assert entitlements.rights(ann, "orders") == NO_RIGHTS


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("roles:\n  a: {orders: {read: true}}\n  a: {orders: {read: false}}", 3),
        ("users: {}\nroles: {}\nusers: {ann: {orders: {read: true}}}", 3),
        ("users:\n  ann:\n    orders: {read: '/a = 1'}\n    orders: {read: true}", 4),
        ("users:\n  ann:\n    orders: {read: '/a = 1',\n      read: true}", 4),
        ("revoked: [a]\nrevoked: []", 2),
    ],
)
def test_a_name_twice_in_the_rights_is_refused(tmp_path, text, line):
    """A role, user, topic, right or list of revoked tokens that stands twice is an error with its line."""
    file = tmp_path / "entitlements.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=f"stands here and in line .* in line {line},"):
        Entitlements(file, lambda _topic: KeyFields(("/id",)), ("orders",))


@pytest.mark.parametrize(
    ("right", "error"),
    [
        ("publish: 'MESSAGE_SIZE() < 100'", "MESSAGE_SIZE is not known of a record that is published"),
        ("publish: \"NOT (/a = 1 AND CORRELATION_ID() = 'x')\"", "CORRELATION_ID is not known"),
        ("publish: 'LAST_UPDATED() IS NULL'", "LAST_UPDATED is not known"),
        ("select:", "roles.desk.orders.select: .*nothing stands here"),
        ("select: null", "roles.desk.orders.select: .*nothing stands here"),
    ],
)
def test_a_right_that_would_be_wider_than_it_looks_is_refused(tmp_path, right, error):
    """A filter on what is not known before a record is written, and an empty select list, are errors at the start."""
    file = tmp_path / "entitlements.yaml"
    file.write_text(f"roles:\n  desk:\n    orders:\n      read: true\n      {right}\n")
    with pytest.raises(ConfigurationError, match=error):
        Entitlements(file, lambda _topic: KeyFields(("/id",)), ("orders",))


@pytest.mark.parametrize("settings", [{"message_type": "binary"}, {"message_type": "protobuf"}])
def test_a_select_list_on_records_of_bytes_is_refused(tmp_path, settings):
    """No field of bytes can be hidden: they would be shown whole."""
    file = tmp_path / "entitlements.yaml"
    file.write_text("roles: {desk: {files: {read: true, select: '-/secret'}}}")
    sections = {"auth": "none", "entitlements": file}
    with pytest.raises(ConfigurationError, match=r"roles\.desk\.files\.select: its records are bytes"):
        Gateway(Config(topics={"files": {"key": "explicit"} | settings}, gateway=sections))


def test_a_token_twice_is_refused_without_showing_it(tmp_path):
    """A token that stands twice is an error with its line, and the error does not have the token."""
    file = tmp_path / "tokens.yaml"
    file.write_text("s3cret-1: {user: ann}\nother: {user: eve}\ns3cret-1: {user: bob}\n")
    with pytest.raises(ConfigurationError, match="in line 1, in line 3") as caught:
        TokensFile(file)
    assert "s3cret" not in str(caught.value)
