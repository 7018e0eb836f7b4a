"""Every role of the product on a broker that denies by default, with the ACLs that `topics apply --acls` prints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, Producer

from processor.client import Client
from processor.errors import ConfigurationError
from processor.repair.transactions.transaction_admin import Marker, TransactionAdmin
from tests.endtoend.oracle import last_per_key
from tests.programs.faults.broker.ports import quiet_port
from tests.secured.estate import Acl, Estate, lines
from tests.secured.secured_broker import MECHANISMS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

ROLES = ("worker", "conflater", "viewer", "gateway", "publisher", "subscriber", "consumer", "dlq", "settler")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_printed_acls_suffice_for_each_role(estate: Estate) -> None:
    """With the printed ACLs, and no others, every command of every role works with this login."""
    denied = estate.run("deployer", "topics", "apply")
    assert denied.returncode == 2, denied.stdout + denied.stderr
    estate.grant(estate.printed_acls())

    applied = estate.run("deployer", "topics", "apply")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    for who in ROLES:
        checked = estate.run(who, "doctor", "--role", who)
        assert checked.returncode == 0, (who, checked.stdout, checked.stderr)
    estate.start_as("worker", "worker", [estate.name])
    estate.start_as("conflater", "conflate", [estate.conflated])
    estate.start_as("viewer", "view", [estate.view])

    _publish(estate)
    estate.wait(lambda: len(last_per_key(estate.read("sow", estate.conflated))) == 41, "the copy having all records")
    estate.wait(lambda: len(last_per_key(estate.read("sow", estate.view))) == 20, "the view having its records")
    _read(estate)
    _consume(estate)
    _operate(estate)
    _serve(estate)


def test_rights_are_granted_at_once(estate: Estate) -> None:
    """`topics apply --grant` grants what the printed commands do, and prints what was missing; it needs `Alter`."""
    pairs = [word for who in ("deployer", *ROLES) for word in ("--grant", f"{who}={who}")]
    refused = estate.run("deployer", "topics", "apply", *pairs)
    assert refused.returncode == 2
    assert "Kafka refuses: this user lacks a right to the cluster: Alter" in refused.stderr
    estate.grant([Acl("deployer", "cluster", "kafka-cluster", is_prefix=False, operation="Alter")])
    before = estate.granted()

    first = estate.run("deployer", "topics", "apply", *pairs)
    assert first.returncode == 0, first.stderr
    wanted = {acl.binding for acl in estate.printed_acls()}
    assert estate.granted() - before == wanted
    assert f"{len(wanted)} rights granted; 0 were there already." in first.stderr
    estate.revoke([Acl("worker", "group", f"{estate.config.group_prefix}.{estate.name}", False, "Read")])
    again = estate.run("deployer", "topics", "apply", *pairs)
    assert again.stdout == f"User:worker\tgroup\t{estate.config.group_prefix}.{estate.name}\tRead\n"
    assert f"1 right granted; {len(wanted) - 1:,} were there already." in again.stderr
    none = estate.run("deployer", "topics", "apply", "--grant", "worker=worker")
    assert (none.returncode, none.stdout) == (0, "")
    assert "No user was named for deployer, conflater" in none.stderr


def test_a_missing_right_to_dead_letters_is_told_at_once(estate: Estate) -> None:
    """`queue status` without a right to the group of dead letters names it; it is not waited for."""
    estate.create_topics()
    letters = estate.config.letters_group(estate.queue)
    estate.grant(acl for acl in estate.printed_acls() if acl.name != letters)
    done = estate.run("dlq", "queue", "status", estate.queue)
    assert done.returncode == 2
    assert (
        f"looking up the group {letters}: Kafka refuses: this user lacks a right to the consumer group" in done.stderr
    )


def _publish(estate: Estate) -> None:
    records = [{"id": number, "state": "new" if number % 2 else "paid"} for number in range(40)]
    sent = estate.run("publisher", "publish", estate.name, text=lines(*records))
    assert "40 records sent" in sent.stderr, sent.stderr
    acked = estate.run("publisher", "publish", estate.name, "--ack", "persisted", text=lines({"id": 40}))
    assert acked.returncode == 0, acked.stderr


def _read(estate: Estate) -> None:
    read = estate.run("subscriber", "sow", estate.conflated)
    assert (read.returncode, read.stdout.count('"id":')) == (0, 41), read.stderr
    watched = estate.run("subscriber", "subscribe", estate.name, "--sow", "--delta", "--count", "41")
    assert watched.returncode == 0, watched.stderr
    got = estate.run("subscriber", "get", estate.view, "7")
    assert got.returncode == 0, got.stderr
    kept = estate.directory / "views"
    for _ in range(2):  # The second time, from the records that are kept.
        with Client("desk", estate.config_of("subscriber"), view_dir=kept) as desk:
            assert len(desk.view(estate.view)) == 20
    with Client("desk", estate.config_of("publisher")) as desk:
        assert desk.delta_publish(estate.name, {"id": 40, "note": "é"}, ack="persisted").result(120) is not None


def _consume(estate: Estate) -> None:
    taken = estate.run("consumer", "queue", "take", estate.queue, "--count", "20", "--timeout", "120")
    assert (taken.returncode, taken.stdout.count('"id":')) == (0, 20), taken.stderr


def _operate(estate: Estate) -> None:
    estate.publish([(b"1", b"no JSON", {})])
    estate.wait(lambda: len(estate.read("dlq")) == 1, "a dead letter")
    for words in (
        ("dlq", "list", estate.name),
        ("dlq", "replay", estate.name),
        ("queue", "status", estate.queue),
        ("status",),
        ("topics", "heal", estate.name),
        ("offsets", "show", estate.name),
    ):
        done = estate.run("dlq", *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    _look_at_transactions(estate)
    for role in ("sow", "delta"):
        assert _refusal(estate, f"{estate.conflated}.{role}") == KafkaError.TOPIC_AUTHORIZATION_FAILED


def _look_at_transactions(estate: Estate) -> None:
    """A principal with the right to end transactions sees their owners and writes a marker; a subscriber may not."""
    topic = estate.config.kafka_names.topic(estate.name, "ack")
    owner = f"{estate.config.group_prefix}.{estate.name}.x"
    producer = Producer({"bootstrap.servers": estate.bootstrap, "transactional.id": owner})
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(topic, b"{}", b"1", 0, timestamp=int(time.time() * 1000) - 60_000)
    assert producer.flush(120) == 0
    listed = estate.run("settler", "transactions", "list", estate.name)
    assert "\tOngoing, epoch 0\tunknown\t" in listed.stdout, listed.stdout + listed.stderr
    producer.abort_transaction(120)
    # Of a producer that nobody knows: it ends nothing, and Kafka asks for the same right.
    marker = Marker(topic, 0, 4711, 0, 0, 0, is_commit=True)
    with TransactionAdmin(estate.config_of("settler").kafka) as allowed:
        allowed.write(marker)
    readable = estate.config.kafka_names.topic(estate.name, "sow")
    with (
        TransactionAdmin(estate.config_of("subscriber").kafka) as forbidden,
        pytest.raises(ConfigurationError, match="refuses"),
    ):
        forbidden.write(marker._replace(topic=readable))


def _refusal(estate: Estate, topic: str) -> int | None:
    """Kafka's reason to refuse a record of a publisher."""
    codes: list[int] = []
    producer = Producer(estate.config_of("publisher").kafka)
    name = estate.config.kafka_names.topic(*topic.rsplit(".", 1))
    producer.produce(name, b"{}", b"1", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
    producer.flush(120)
    return codes[0] if codes else None


def _serve(estate: Estate) -> None:
    """The gateway answers a query over HTTP."""
    address = f"127.0.0.1:{quiet_port()}"
    log = estate.directory / "gateway.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "processor.cli.main", "gateway", "--listen", address]
        process = subprocess.Popen(
            [*command, "-c", str(estate.become("gateway"))], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        estate.wait(lambda: _count(address, estate.view) == 20, f"the gateway's answer ({log})")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, _text(log)


def _count(address: str, topic: str) -> int:
    """The number of records that the gateway has of a topic; -1 if it does not answer yet."""
    try:
        with urllib.request.urlopen(f"http://{address}/v1/topics/{topic}/sow", timeout=5) as answer:
            return sum(1 for line in answer if b'"id"' in line)
    except urllib.error.HTTPError as error:
        if error.code != 503:  # It does not have all records yet.
            raise
        return -1
    except OSError:
        return -1


def _text(log: Path) -> str:
    return json.dumps(log.read_text(errors="replace")[-2000:])
