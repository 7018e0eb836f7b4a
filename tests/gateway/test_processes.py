"""`sowstream gateway` as a program: several processes that share the port, TLS, and tokens by an issuer's keys."""

import contextlib
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from websockets.sync.client import connect

from processor.gateway.access.identity import PAUSE_S
from tests.certificates import Authority
from tests.programs.faults.broker.ports import quiet_port
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.long]


class Program:
    """A running `sowstream gateway`."""

    def __init__(self, kafka_world, *words, context=None, **section):
        self.address = f"127.0.0.1:{quiet_port()}"
        self.context = context
        tree = yaml.safe_load(kafka_world.file.read_text())
        kafka_world.file.write_text(yaml.safe_dump(tree | {"gateway": {"topics": [kafka_world.name], **section}}))
        self.worker = kafka_world.start("gateway", ["--listen", self.address, *words])
        kafka_world.wait(self.is_ready, "readiness of the gateway")

    def get(self, path, headers=None):
        """The status and the body of a request."""
        scheme = "http" if self.context is None else "https"
        request = urllib.request.Request(f"{scheme}://{self.address}{path}", headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=self.context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def is_ready(self):
        """True if it is ready."""
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def connect(self):
        """A WebSocket."""
        scheme = "ws" if self.context is None else "wss"
        return connect(f"{scheme}://{self.address}/v1/ws", subprotocols=["sowstream.v1"], compression=None,
                       open_timeout=PATIENCE_S, ping_interval=None, ssl=self.context)  # fmt: skip


def asked(socket, **request):
    """The answer to a request."""
    socket.send(json.dumps({"id": "1", **request}))
    while True:
        tree = json.loads(socket.recv(PATIENCE_S))
        for message in tree if isinstance(tree, list) else [tree]:
            if message.get("op") == "ack":
                return message


def test_several_processes_share_the_port(kafka_world, writer):
    """With `--processes 3` connections are spread over three processes with the same records, which end together."""
    writer.put(1, qty=5)
    program = Program(kafka_world, "--processes", "3")
    main = program.worker.process.pid
    until_s = time.monotonic() + PATIENCE_S
    while True:
        held = Counter()
        with contextlib.ExitStack() as stack:
            for _ in range(24):
                socket = stack.enter_context(program.connect())
                held[peer_process(socket, main)] += 1
            if len(held) == 3 or time.monotonic() > until_s:
                break
    assert len(held) == 3, held
    writer.put(2, qty=6)
    for _ in range(12):
        while True:
            status, body = program.get(f"/v1/topics/{kafka_world.name}/sow")
            keys = sorted(json.loads(line)["sow_key"] for line in body.splitlines()) if status == 200 else None
            if keys == ["1", "2"]:
                break
            assert time.monotonic() < until_s + PATIENCE_S, (status, body)
    children = serving_children(main)
    assert len(children) == 2
    assert program.worker.stop() == 0, program.worker.log()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists() and state_of(pid) != "Z"]


def test_a_killed_process_of_several_is_replaced(kafka_world, writer):
    """A gateway process that dies is replaced by a new one."""
    writer.put(1, qty=5)
    program = Program(kafka_world, "--processes", "2")
    main = program.worker.process.pid
    [victim] = serving_children(main)
    os.kill(victim, 9)
    kafka_world.wait(lambda: [pid for pid in serving_children(main) if pid != victim], "a new process")
    assert program.worker.stop() == 0, program.worker.log()


def children_of(pid):
    """The child processes of a process, and theirs."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *children_of(int(child))]
    return found


def serving_children(pid):
    """The children that serve, without Python's tracker of resources."""
    found = []
    for child in children_of(pid):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def state_of(pid):
    """The state of a process: `Z` is a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def peer_process(socket, main):
    """The process at the other end of a connection."""
    # Both ends: another test's connection may have the same port at one of them. A set: the file may have a row twice.
    ends = [socket.socket.getpeername()[1], socket.socket.getsockname()[1]]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    [inode] = {
        row[9] for row in rows if [int(end.rpartition(":")[2], 16) for end in row[1:3]] == ends and row[3] == "01"
    }
    for pid in (main, *children_of(main)):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                if str(link.readlink()) == f"socket:[{inode}]":
                    return pid
    return None


def test_tls_serves_every_way(kafka_world, writer, tmp_path):
    """With a certificate, HTTP and WebSocket are encrypted, and a client that does not trust it is not served."""
    writer.put(1, qty=5)
    authority = Authority(tmp_path / "tls")
    authority.issue("gateway", "IP:127.0.0.1")
    context = ssl.create_default_context(cafile=str(authority.file))
    folder = tmp_path / "tls"
    tls = {"certificate": str(folder / "gateway.pem"), "key": str(folder / "gateway.key")}
    program = Program(kafka_world, context=context, tls=tls)
    status, body = program.get(f"/v1/topics/{kafka_world.name}/records/1")
    assert (status, json.loads(body)["data"]) == (200, {"id": 1, "qty": 5})
    with program.connect() as socket:
        assert asked(socket, op="sow", topic=kafka_world.name)["status"] == "success"
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(f"wss://{program.address}/v1/ws", subprotocols=["sowstream.v1"]).__enter__()
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://{program.address}/livez", timeout=PATIENCE_S)


@pytest.fixture
def issuer():
    """A server of an issuer's public keys, which can change."""
    published = {"keys": []}
    asked_times = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked_times.append(time.monotonic())
            body = json.dumps(published).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments):
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/keys", published, asked_times
    server.shutdown()
    server.server_close()


def signed(key, kid, **changes):
    """A token."""
    claims = {"sub": "ann", "iss": "us", "aud": "gateway", "exp": time.time() + 60, **changes}
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": kid})


def public(key, kid):
    """A public key as an issuer publishes it."""
    return {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


def test_tokens_are_verified_with_the_issuers_keys(kafka_world, writer, tmp_path, issuer):
    """Keys come from `jwks_url`; a new key is found when it is used; unknown ones do not make the gateway ask often."""
    url, published, asked_times = issuer
    old, new, strange = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(3))
    published["keys"] = [public(old, "k1")]
    rights = tmp_path / "entitlements.yaml"
    rights.write_text(yaml.safe_dump({"users": {"ann": {kafka_world.name: {"read": True}}}}))
    writer.put(1, qty=5)
    program = Program(
        kafka_world, auth={"jwt": {"jwks_url": url, "issuer": "us", "audience": "gateway"}}, entitlements=str(rights)
    )

    def status(token):
        return program.get(f"/v1/topics/{kafka_world.name}/records/1", {"Authorization": f"Bearer {token}"})[0]

    assert status(signed(old, "k1")) == 200
    assert status(signed(strange, "k1")) == 401
    assert status(signed(old, "k1", aud="other")) == 401
    assert status(signed(old, "k1", exp=time.time() - 30)) == 401
    before, began_s = len(asked_times), time.monotonic()
    for number in range(20):
        assert status(signed(strange, f"none-{number}")) in (401, 503)
    questions = len(asked_times) - before
    assert questions <= (time.monotonic() - began_s) / PAUSE_S + 2, (
        "an unknown key is no reason to ask the issuer each time"
    )
    published["keys"] = [public(new, "k2")]
    kafka_world.wait(lambda: status(signed(new, "k2")) == 200, "the new key")
    with program.connect() as socket:
        assert asked(socket, op="logon", token=signed(new, "k2"))["status"] == "success"
    with program.connect() as socket:
        refused = asked(socket, op="logon", token=signed(strange, "k2"))
        assert refused["status"] == "failure"
