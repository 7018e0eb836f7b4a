"""Provokes each connection fault and prints the words of confluent-kafka, kcat and Sowstream next to each other.

`python -m tests.programs.connection_words` takes four minutes and needs kcat. Its output is the last two tables of
processor/docs/reference/connection-faults.md: the faults of a connection, and the rights that a user may lack.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from processor.cli.main import run as run_command
from processor.client import Client
from processor.errors import Stop
from processor.trial.broker import EmbeddedBroker, embedded
from tests.certificates import Authority
from tests.endtoend.test_principals import _SECURE, Secured, login
from tests.kafka.test_connection_faults import http_server, listener, mute, tls

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAIT_S: Final = 5
_CELL_MAX: Final = 400
"""Longest line of a cell, in characters."""

_ALWAYS: Final = ("Failed to get metadata: Local", "% ERROR: Failed to acquire metadata: Local")
"""The error of confluent-kafka and that of kcat, the same for all faults."""

# confluent-kafka delivers librdkafka's lines to a logger, and only while it is polled.
_CONFLUENT: Final = """
import logging, sys
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

lines = []
class Kept(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())

log = logging.getLogger("lines")
log.addHandler(Kept())
log.setLevel(1)
try:
    client = AdminClient(dict(word.split("=", 1) for word in sys.argv[2:]), logger=log)
    client.list_topics(timeout=float(sys.argv[1]))
    print("no error")
except KafkaException as error:
    print(error.args[0].str())
    if "client" in globals():
        client.poll(0)
for line in lines:
    print(line)
"""


@contextmanager
def silent() -> Iterator[str]:
    """A port whose queue of connections is full: it answers no further one, as a firewall that drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def faults(stack: ExitStack, folder: Path, plain: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each fault with the properties of a client that meets it; `plain` is a Kafka without TLS and logins."""
    authority, other = Authority(folder / "one"), Authority(folder / "two")
    certificate = authority.issue("broker", "IP:127.0.0.1")
    secure = {"security.protocol": "SSL", "ssl.ca.location": str(authority.file)}
    address = "bootstrap.servers"
    yield "unknown_host", {address: "nosuchhost.invalid:9092"}
    yield "refused", {address: "127.0.0.1:1"}
    yield "unreachable", {address: "[2001:db8::1]:9092"}
    yield "silent", {address: stack.enter_context(silent())}
    yield "mute", {address: stack.enter_context(listener(mute))}
    yield "closed", {address: stack.enter_context(listener(lambda connection: connection.close()))}
    yield "http", {address: stack.enter_context(http_server())}
    port = stack.enter_context(listener(tls(certificate)))
    yield "plain_to_tls", {address: port}
    yield "tls_to_plain", {address: plain, **secure}
    yield "untrusted", {address: port, **secure, "ssl.ca.location": str(other.file)}
    wrong = authority.issue("other", "DNS:other.example")
    yield "wrong_name", {address: stack.enter_context(listener(tls(wrong))), **secure}
    expired = authority.issue("old", "IP:127.0.0.1", days=-1)
    yield "expired", {address: stack.enter_context(listener(tls(expired))), **secure}
    demanding = stack.enter_context(listener(tls(certificate, clients=authority.file)))
    yield "client_certificate", {address: demanding, **secure}
    yield "login_missing", {address: _SECURE}
    yield "login_unwanted", login("worker") | {address: plain}
    yield "mechanism", login("worker") | {"sasl.mechanism": "SCRAM-SHA-512"}
    yield "password", login("worker") | {"sasl.password": "wrong"}
    yield (
        "no_token",
        {
            address: _SECURE,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "secret",
            "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
        },
    )


def of_confluent(properties: dict[str, str]) -> str:
    """The exception of confluent-kafka's `list_topics`, and librdkafka's lines, which its user must fetch."""
    words = [f"{name}={value}" for name, value in properties.items()]
    command = [sys.executable, "-c", _CONFLUENT, str(_WAIT_S), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    exception, *lines = done.stdout.splitlines() or [done.stderr.splitlines()[-1]]
    return cell([exception, *(re.sub(r"^\S+ \[\S+#\S+\] *", "", line) for line in lines)])


def of_kcat(properties: dict[str, str]) -> str:
    """The lines of `kcat -L`."""
    words = [word for name, value in properties.items() for word in ("-X", f"{name}={value}")]
    command = ["kcat", "-L", "-m", str(_WAIT_S), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return cell(done.stderr.splitlines())


def of_sowstream(properties: dict[str, str], file: Path) -> str:
    """The line of `sowstream sow orders` with its exit code and time; then that of a Python client, if it differs."""
    file.write_text(
        yaml.safe_dump({"kafka": properties, "connect_timeout_s": _WAIT_S, "topics": {"orders": {"partitions": 1}}})
    )
    began_s = time.monotonic()
    code, lines = command_lines("sow", "orders", "-c", str(file))
    took_s = time.monotonic() - began_s
    try:
        Client("words", file).sow("orders")
    except Stop as error:
        lines += [] if str(error) in lines else [f"from Python: {error}"]
    return f"{cell(lines)} (exit code {code}, {took_s:.1f} s)"


def command_lines(*words: str, given: str = "") -> tuple[int, list[str]]:
    """Run `sowstream`; returns its exit code and the lines for a user, without those of the log."""
    command = [sys.executable, "-m", "processor.cli.main", *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    lines = [line.removeprefix("sowstream: ") for line in done.stderr.splitlines() if not line.startswith("{")]
    return done.returncode, lines


def missing_rights(folder: Path, plain: str) -> Iterator[tuple[str, str, str, str]]:
    """Each missing right with the three words; `plain` is the listener on which every client is an administrator."""
    file = folder / "sowstream.yaml"

    def settings(kafka: dict[str, str]) -> str:
        file.write_text(yaml.safe_dump({"kafka": kafka, "topics": {"orders": {"partitions": 1}}}))
        return str(file)

    with redirect_stdout(sys.stderr):
        assert run_command(["topics", "apply", "-c", settings({"bootstrap.servers": plain})]) == 0

    def of_command(user: str, *words: str) -> str:
        code, lines = command_lines(*words, "-c", settings(login(user)), given='{"id": 1}\n')
        return f"{cell(lines)} (exit code {code})"

    def of_kcat_as(user: str, *words: str) -> str:
        options = [word for name, value in login(user).items() for word in ("-X", f"{name}={value}")]
        done = subprocess.run(
            ["timeout", "8", "kcat", *options, *words], input="1\n", capture_output=True, text=True, check=False
        )
        return cell(done.stderr.splitlines())

    def consumed(topic: str, *, by_group: bool) -> str:
        consumer = Consumer(login("worker") | {"group.id": "sowstream.orders", "auto.offset.reset": "earliest"})
        with closing(consumer):
            if by_group:
                consumer.subscribe([topic])
            else:
                consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            messages = consumer.consume(2, 10)
            return cell([message.error().str() for message in messages if message.error()])

    kcat = of_kcat_as("subscriber", "-C", "-e", "-t", "orders.sow")
    yield (
        "right to read the topic",
        consumed("orders.sow", by_group=False),
        kcat,
        of_command("subscriber", "sow", "orders"),
    )
    sent = refusals_of(Producer(login("publisher")), "orders.publish")
    kcat = of_kcat_as("publisher", "-P", "-t", "orders.publish")
    yield "right to write the topic", sent, kcat, of_command("publisher", "publish", "orders")
    everything = (AclOperation.ALL, AclPermissionType.ALLOW)
    rights = [
        AclBinding(kind, "*", ResourcePatternType.LITERAL, "User:worker", "*", *everything)
        for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID)
    ]
    admin = AdminClient({"bootstrap.servers": plain})
    for granted in admin.create_acls(rights).values():
        granted.result(30)
    kcat = of_kcat_as("worker", "-G", "sowstream.orders", "orders.publish")
    yield (
        "right to the group",
        consumed("orders.publish", by_group=True),
        kcat,
        of_command("worker", "worker", "orders"),
    )


def refusals_of(producer: Producer, topic: str) -> str:
    """The error of one record."""
    lines: list[str] = []
    producer.produce(topic, b"1", on_delivery=lambda error, _: lines.append(error.str() if error else "no error"))
    producer.flush(20)
    return cell(lines)


def cell(lines: list[str]) -> str:
    """Lines as a cell of a table: each once, without places and times that differ between runs."""
    plain = []
    for line in lines:
        text = re.sub(r"^(%\d\|.*?\| )?(\[thrd:.*?/bootstrap\]: *)?(\S*/bootstrap: *)?", "", line.strip())
        text = re.sub(r" *\(after \d+ms.*?\)|,? *\d* *(identical error\(s\) )?suppressed\)", "", text)
        text = re.sub(r"looking at the cluster at \S+: ", "", text)
        text = re.sub(r"127\.0\.0\.1[:#]\d+|/tmp/\S+/(?=\w+\.pem)", "…", text).replace("|", "\\|").replace("`", "'")
        text = text if len(text) <= _CELL_MAX else f"{text[:_CELL_MAX]}…"
        if text and text not in plain and not text.startswith(_ALWAYS):
            plain.append(text)
    return "<br>".join(plain[:3]) or "nothing"


def main() -> int:
    """Print the table."""
    if shutil.which("kcat") is None:
        print("kcat is not installed: apt-get install kcat", file=sys.stderr)
        return 2
    embedded.Server = Secured  # type: ignore[misc,attr-defined]
    print("| fault | confluent-kafka | kcat | the line of `sowstream` |\n|---|---|---|---|")
    with (
        EmbeddedBroker(start_timeout_s=300) as broker,
        ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="sowstream-words-") as folder,
    ):
        file = Path(folder, "words.yaml")
        for name, properties in faults(stack, Path(folder), broker.bootstrap):
            cells = (of_confluent(properties), of_kcat(properties), of_sowstream(properties, file))
            print(f"| `{name}` | {' | '.join(cells)} |", flush=True)
        print("\n| missing | confluent-kafka | kcat | the line of `sowstream` |\n|---|---|---|---|")
        for row in missing_rights(Path(folder), broker.bootstrap):
            print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
