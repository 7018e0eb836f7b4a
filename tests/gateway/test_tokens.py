"""Tokens of an issuer: its clock and ours, claims by JSON Pointer, keys that outlive its outage; renewed files."""

import contextlib
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from processor.client import Client
from processor.client.gateway.gateway_http import GatewayAddress, GatewayHttp, LinkTimes
from processor.client.gateway.link import GatewayLink
from processor.config.gateway import JwtConfig
from processor.errors import BrokerUnavailable, ConfigurationError
from processor.gateway.access.identity import (
    FRESH_S,
    KEPT_S,
    PAUSE_S,
    AccessDenied,
    IssuerKeys,
    KeyNotFetched,
    KeysUnavailable,
    UnknownKey,
    _JwtVerifier,
)
from tests.certificates import Authority, signing_key
from tests.gateway.memory import MemoryWorld
from tests.waiting import PATIENCE_S, until


def public(key, kid):
    """A public key as an issuer publishes it."""
    return {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


class Issuer:
    """An issuer of tokens, whose server can be away, or hang."""

    def __init__(self):
        self.keys = [public(signing_key("ours"), "k1")]
        self.is_away = False
        self.hangs = threading.Event()
        self.hangs.set()
        self.asked = 0
        self.redirect = ""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if not self.path.startswith("/keys"):
                    self.send_response(302)
                    self.send_header("Location", issuer.redirect)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                issuer.asked += 1
                issuer.hangs.wait(60)
                body = json.dumps({"keys": issuer.keys}).encode()
                self.send_response(503 if issuer.is_away else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments):
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"

    def token(self, key="ours", kid="k1", **changes):
        """A token that the key of this name signs; a claim that is None is left out."""
        claims = {"sub": "ann", "iss": "us", "aud": "gateway", "exp": time.time() + 60, **changes}
        return jwt.encode(
            {name: value for name, value in claims.items() if value is not None},
            signing_key(key),
            algorithm="RS256",
            headers={"kid": kid},
        )

    def verifier(self, **settings):
        """Verifies its tokens."""
        return _JwtVerifier(JwtConfig(jwks_url=self.url, issuer="us", audience="gateway", **settings))


@pytest.fixture
def issuer():
    """An issuer on a port of its own."""
    made = Issuer()
    yield made
    made.hangs.set()
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def world(issuer, tmp_path):
    """A gateway with tokens of the issuer."""
    rights = tmp_path / "entitlements.yaml"
    rights.write_text(yaml.safe_dump({"users": {"ann": {"orders": {"read": True, "publish": True}}}}))
    auth = {"jwt": {"jwks_url": issuer.url, "issuer": "us", "audience": "gateway"}}
    made = MemoryWorld(auth=auth, entitlements=rights)
    yield made
    made.close()


@pytest.mark.parametrize("claim", ["iat", "nbf", "exp"])
def test_a_clock_that_differs_by_less_than_the_leeway_changes_nothing(issuer, claim):
    """A token counts though it begins 150 s ahead, or ended then, with a leeway of 300 s; 450 s are too many."""
    difference_s = -1 if claim == "exp" else 1
    near, far = (issuer.token(**{claim: time.time() + difference_s * seconds}) for seconds in (150, 450))
    assert JwtConfig.model_fields["leeway_s"].default == 10
    verifier = issuer.verifier(leeway_s=300)
    assert verifier.verify(near).user == "ann"
    assert not verifier.verify(near).is_expired
    with pytest.raises(AccessDenied):
        verifier.verify(far)
    with pytest.raises(AccessDenied):
        issuer.verifier(leeway_s=0).verify(near)


def test_claims_are_found_by_json_pointer(issuer):
    """Roles and users come from members of objects, such as Keycloak's, and from names with slashes that begin none."""
    nested = {"realm_access": {"roles": ["desk", "ops"]}, "id/x": {"name": "bob"}, "https://us/roles": "a b"}
    verifier = issuer.verifier(roles_claim="/realm_access/roles", user_claim="/id~1x/name")
    assert verifier.verify(issuer.token(**nested))[:2] == ("bob", ("desk", "ops"))
    assert issuer.verifier(roles_claim="https://us/roles").verify(issuer.token(**nested)).roles == ("a", "b")
    with pytest.raises(ValueError, match="roles_claim"):
        JwtConfig(jwks_url=issuer.url, issuer="us", audience="gateway", roles_claim="/a//b")


def test_a_missing_claim_is_logged_once(issuer):
    """A token without roles has none, one without a user is refused, and the log names each claim once."""
    verifier = issuer.verifier(roles_claim="/realm_access/roles")
    with capture_logs() as logs:
        for _ in range(3):
            assert verifier.verify(issuer.token(realm_access={"other": 1})).roles == ()
            with pytest.raises(AccessDenied):
                verifier.verify(issuer.token(sub=None))
    assert [one["claim"] for one in logs if "claim" in one] == ["/realm_access/roles", "sub"]


def test_known_keys_outlive_an_outage_of_the_issuer(issuer):
    """While the issuer is away its keys verify tokens for a day; an unknown key is unavailable, not unknown."""
    now_s = [0.0]
    keys = IssuerKeys(issuer.url, clock_s=lambda: now_s[0])
    keys.find("k1")
    now_s[0] += PAUSE_S
    with pytest.raises(UnknownKey):
        keys.find("k2")
    issuer.is_away = True
    now_s[0] += FRESH_S
    keys.find("k1")
    now_s[0] += PAUSE_S
    with pytest.raises(KeysUnavailable):
        keys.find("k2")
    keys.find("k1")
    now_s[0] += KEPT_S
    with pytest.raises(KeysUnavailable):
        keys.find("k1")
    issuer.is_away, issuer.keys = False, [public(signing_key("ours"), "k2")]
    now_s[0] += PAUSE_S
    keys.find("k2")
    with pytest.raises(KeysUnavailable):
        keys.find("k1")  # Asked for just now, so that nothing can be said.
    now_s[0] += PAUSE_S
    with pytest.raises(UnknownKey):
        keys.find("k1")


def test_unknown_keys_do_not_ask_the_issuer_each_time(issuer):
    """A hundred tokens with names of unknown keys ask the issuer once within the pause."""
    keys = IssuerKeys(issuer.url, clock_s=lambda: 0.0)
    for number in range(100):
        with pytest.raises((UnknownKey, KeysUnavailable)):
            keys.find(f"none-{number}")
    assert issuer.asked == 1


def test_a_fetch_that_fails_late_is_followed_by_a_pause(issuer):
    """The pause begins with the end of a fetch: a token whose key is unknown does not wait for an issuer that hangs."""
    now_s = [0.0]
    keys = IssuerKeys(issuer.url, clock_s=lambda: now_s[0])
    issuer.hangs.clear()
    issuer.is_away = True
    with pytest.raises(KeyNotFetched):
        keys.find("k1", may_wait=False)
    now_s[0] += PAUSE_S
    issuer.hangs.set()
    for _ in range(2):
        with pytest.raises(KeysUnavailable):
            keys.find("k1")
    assert issuer.asked == 1
    issuer.is_away = False
    now_s[0] += PAUSE_S
    keys.find("k1")


def test_not_now_is_told_apart_from_no(issuer, world):
    """A token that cannot be verified now gets 503 and closes with 4503, a wrong one 401 and 4401."""

    def closed_with(token):
        client = world.connect()
        answer = client.ask("logon", token=token)
        assert answer["status"] == "failure"
        with pytest.raises(ConnectionClosed):
            client.until(lambda: False)
        return answer["reason"], client.socket.close_code

    bearer = {"Authorization": f"Bearer {issuer.token()}"}
    issuer.is_away = True
    status, headers, body = world.gateway.get("/v1/topics", bearer)
    assert (status, headers["retry-after"], json.loads(body)["reason"]) == (503, "1", "unavailable")
    assert closed_with(issuer.token()) == ("unavailable", 4503)
    assert closed_with("x") == ("logon_failed", 4401)
    assert world.gateway.get("/v1/topics", {"Authorization": "Bearer x"})[0] == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_python_client_follows_no_redirect_with_its_token(issuer, host):
    """A client whose gateway's address redirects sends nothing to the other one, and its error has that address."""
    address, times = issuer.url.removesuffix("/keys"), LinkTimes(open_s=60.0, first_s=0.0)
    calls = {
        "http": GatewayHttp(GatewayAddress(address), "SECRET", times).topics,
        "ws": GatewayLink(address, "SECRET", "py", times).open,
    }
    for scheme, call in calls.items():
        issuer.redirect = f"{scheme}://{host}:{issuer.server.server_port}/keys"
        with pytest.raises(BrokerUnavailable, match=f"redirects to '{issuer.redirect}'"):
            call()
    assert issuer.asked == 0


@pytest.mark.parametrize(
    "address",
    [
        *("me:PASSWORD@host:8080", "http://me:PASSWORD@[::1", "host:8080/?token=PASSWORD", "http://host:x?k=PASSWORD"),
        *("http://:8080?k=PASSWORD", "http://me,PASSWORD@", "http://me:PASSWORD@:8080"),
    ],
)
def test_an_address_that_cannot_be_used_is_shown_without_secrets(address):
    """The error of an address without a scheme, or with half of one, has the host, and no password or token."""
    with pytest.raises(ConfigurationError, match="is not an address; write http://HOST:PORT") as caught:
        GatewayAddress(address)
    assert "PASSWORD" not in str(caught.value)


def test_no_message_of_a_client_has_the_secrets_of_its_address(issuer):
    """The client's text, its log and its errors have the address without its query; a password in it is refused."""
    times = LinkTimes(open_s=60.0, first_s=0.0)
    address = f"{issuer.url.removesuffix('keys')}sow?key=SECRET"
    with pytest.raises(ConfigurationError, match="a password is in the address of 'http://desk/sow'; leave it") as no:
        GatewayAddress("http://me:SECRET@desk/sow?key=SECRET")
    link, asked = GatewayLink(address, None, "py", times), GatewayHttp(GatewayAddress(address), "SECRET\n", times)
    issuer.redirect = address
    shown = [str(no.value), repr(Client("py", gateway=address)), repr(Client("py", gateway="http://me:SECRET@desk"))]
    for call in (link.open, asked.topics, GatewayHttp(GatewayAddress(address), None, times).topics):
        with pytest.raises(BrokerUnavailable) as caught, capture_logs() as logged:
            call()
        shown += [str(caught.value), str(logged)]
    assert not [text for text in shown if "SECRET" in text]
    assert f"redirects to '{address.removesuffix('?key=SECRET')}'" in shown[-2]


def test_a_renewal_that_cannot_be_verified_now_leaves_the_session(issuer, world):
    """While the issuer is away, a session whose token cannot be renewed goes on with the one that it has."""
    client = world.connect(issuer.token())
    issuer.is_away = True
    assert client.ask("logon", token=issuer.token("another", "k2"))["reason"] == "unavailable"
    assert client.ask("ping")["status"] == "success"
    client.close()


def test_a_hanging_issuer_holds_up_nothing_else(issuer, world):
    """While verifications wait for a new key, health pages and sessions answer, and known keys verify tokens."""
    client = world.connect(issuer.token())
    issuer.hangs.clear()
    unknown = {"Authorization": f"Bearer {issuer.token('another', 'k2')}"}
    statuses = []
    hanging = [
        threading.Thread(target=lambda: statuses.append(world.gateway.get("/v1/topics", unknown)[0])) for _ in range(40)
    ]
    verifier = world.gateway.gateway.authenticator._jwt
    verifier._keys._fetched_s = None  # The issuer may be asked again at once.
    verifier._keys._client.timeout = 60
    for one in hanging:
        one.start()
    until(lambda: issuer.asked == 2)
    assert world.gateway.get("/v1/topics", {"Authorization": f"Bearer {issuer.token()}"})[0] == 200
    assert not statuses
    assert world.gateway.get("/livez")[0] == 200
    assert client.ask("publish", topic="orders", data={"id": 1}, ack="persisted")["status"] == "success"
    issuer.hangs.set()
    for one in hanging:
        one.join()
    assert set(statuses) <= {401, 503}
    client.close()


def pem(name):
    """The public key of the signing key of this name."""
    public = signing_key(name).public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def replace(path, content):
    """Write a file in one step."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def test_a_renewed_public_key_counts_without_a_restart(issuer, tmp_path):
    """A gateway reads a changed `public_key_file` again, and one that has no key leaves the former one."""
    file, rights = tmp_path / "public.pem", tmp_path / "entitlements.yaml"
    file.write_bytes(pem("ours"))
    rights.write_text("{}")
    auth = {"jwt": {"public_key_file": file, "issuer": "us", "audience": "gateway"}}
    world = MemoryWorld(auth=auth, entitlements=rights)

    def status(key):
        bearer = {"Authorization": f"Bearer {issuer.token(key)}"}
        return world.gateway.get("/v1/topics", bearer)[0]

    try:
        assert (status("ours"), status("another")) == (200, 401)
        with capture_logs() as lines:
            replace(file, b"-----BEGIN PUBLIC KEY-----")
            until(lambda: [line for line in lines if "is no public key" in line.get("error", "")], lambda: lines)
        assert status("ours") == 200
        replace(file, pem("another"))
        until(lambda: (status("ours"), status("another")) == (401, 200))
    finally:
        world.close()
    file.write_bytes(b"x")
    with pytest.raises(ConfigurationError, match="is no public key, PEM, of RS256, ES256, EdDSA"):
        _JwtVerifier(JwtConfig(**auth["jwt"]))


@pytest.mark.parametrize("kind", [("rsa:2048",), ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")], ids=["rsa", "ec"])
def test_a_renewed_certificate_counts_without_a_restart(tmp_path, kind):
    """New connections get a renewed certificate as soon as its key, of any type, is there; open ones go on."""
    authority = Authority(tmp_path / "tls")
    authority.issue("first", "IP:127.0.0.1", key=kind)
    authority.issue("second", "IP:127.0.0.1")
    certificate, key = tmp_path / "gateway.pem", tmp_path / "gateway.key"

    def take(name):
        return tuple((authority.folder / f"{name}.{kind}").read_bytes() for kind in ("pem", "key"))

    certificate.write_bytes(take("first")[0])
    key.write_bytes(take("first")[1])
    world = MemoryWorld(wait=False, tls={"certificate": certificate, "key": key})

    def served():
        with contextlib.suppress(OSError):
            return ssl.get_server_certificate(("127.0.0.1", world.gateway.port), timeout=PATIENCE_S)
        return None

    try:
        until(lambda: served() == take("first")[0].decode())
        context = ssl.create_default_context(cafile=str(authority.file))
        with connect(f"wss://{world.gateway.address}/v1/ws", subprotocols=["sowstream.v1"], ssl=context) as socket:
            with capture_logs() as lines:
                replace(certificate, take("second")[0])
                until(lambda: [line for line in lines if "cannot be used" in line["event"]], lambda: lines)
            assert served() == take("first")[0].decode()
            replace(key, take("second")[1])
            until(lambda: served() == take("second")[0].decode())
            socket.send('{"op": "ping", "id": "1"}')
            assert json.loads(socket.recv(PATIENCE_S))["status"] == "success"
    finally:
        world.close()
