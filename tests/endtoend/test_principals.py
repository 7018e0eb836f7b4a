"""Tests on a broker with authentication: what is said of a wrong login, and of a missing right.

The commands of `topics apply --acls` are run by Kafka's own tool, as printed. That they suffice for each role is
proved by `tests/secured/test_roles.py`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.staged_producer import StagedProducer
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.trial.broker import EmbeddedBroker, embedded
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from processor.trial.broker.server import HOST, Server
from tests import forked
from tests.endtoend.world import World
from tests.programs.faults.broker.ports import quiet_port
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(400)]

_PRINCIPALS = ("worker", "conflater", "publisher", "subscriber", "dlq", "settler")
_SECURE = f"{HOST}:{quiet_port()}"
_LOGINS = " ".join(f'user_{name}="{name}"' for name in _PRINCIPALS)


class Secured(Server):
    """A second listener that requires a name and a password; on the first one every client is an administrator."""

    def prepare(self) -> None:
        """Add settings: of one that occurs twice the last one counts."""
        super().prepare()
        file = self.data_dir / "server.properties"
        text = file.read_text()
        listeners = {name: re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)[-1] for name in _LISTENERS}
        more = [f"{name}=SECURE://{_SECURE},{value}" for name, value in listeners.items()]
        file.write_text("\n".join([text, *more, _SECURITY]))


_LISTENERS = ("listeners", "advertised.listeners")
_SECURITY = f"""\
listener.security.protocol.map=SECURE:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
listener.name.secure.sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required {_LOGINS};
inter.broker.listener.name=PLAINTEXT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


@pytest.fixture
def world(tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Create a world whose topics exist, and whose principals have no permissions."""
    monkeypatch.setattr(embedded, "Server", Secured)
    with EmbeddedBroker() as broker:
        made = World(broker.bootstrap, tmp_path, unique)
        yield made
        made.close()


def login(name: str) -> dict[str, str]:
    """Return the login settings of a client."""
    return {
        "bootstrap.servers": _SECURE,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": name,
        "sasl.password": name,
    }


def become(world: World, name: str) -> Path:
    """Return the settings of a principal."""
    file = world.directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(world.file.read_text()) | {"kafka": login(name)}))
    return file


def run(file: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command with these settings to its end."""
    return forked.run(*words, "-c", str(file), given=given)


def grant(command: str) -> str:
    """Run Kafka's ACL tool as printed."""
    words = shlex.split(re.sub(r"\$\{(\w+):\?\}", lambda found: found[1].lower(), command))
    assert words[0] == "kafka-acls"
    tool = [str(find_java()), "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", class_path()]
    done = subprocess.run(
        [*tool, "org.apache.kafka.tools.AclCommand", *words[1:]], capture_output=True, text=True, check=True
    )
    assert "Adding ACLs for resource" in done.stdout, done.stdout + done.stderr
    return done.stdout


def test_a_wrong_password_is_not_waited_for(world: World) -> None:
    """A client whose login is refused sees a silent Kafka; the reason is reported at once."""
    wrong = login("worker") | {"sasl.password": "wrong"}
    with pytest.raises(
        ConfigurationError, match=r"the broker refuses the login \(.*check kafka\.sasl\.username"
    ) as told:
        Admin(wrong, 600).cluster()
    assert "wrong" not in str(told.value)
    with pytest.raises(ConfigurationError, match=r"refuses the login"):
        TransactionalProducer(wrong, transactional_id="t", transaction_timeout_s=10.0).start()
    with pytest.raises(ConfigurationError, match=r"refuses the login"):
        StagedProducer(wrong, later=[["orders.sow"]], session_timeout_s=10.0).start()


def test_each_fault_of_a_login_has_its_own_sentence(world: World) -> None:
    """An unknown mechanism, a missing login and an unwanted one are told apart; none waits for the time limit."""
    faults = {
        "does not have the login mechanism of kafka.sasl.mechanism (supported mechanisms: PLAIN": login("worker")
        | {"sasl.mechanism": "SCRAM-SHA-512"},
        "as one that requires a login does": {"bootstrap.servers": _SECURE},
        "the port has no login": login("worker") | {"bootstrap.servers": world.bootstrap},
    }
    for sentence, properties in faults.items():
        with pytest.raises(Stop) as told:
            Admin(properties, 10).cluster()
        assert sentence in str(told.value)
        assert "To do: " in str(told.value)


def test_a_missing_right_is_not_called_a_missing_topic(world: World) -> None:
    """A publisher without rights learns which it lacks; the doctor lists them, and passes once they are granted."""
    publisher = become(world, "publisher")
    refused_line = run(publisher, "publish", world.name, given='{"id":1}\n')
    assert refused_line.returncode != 0
    assert "lacks a right to the topic" in refused_line.stderr
    assert "does not exist" not in refused_line.stderr
    worker = run(become(world, "worker"), "worker", world.name)
    assert "no right to Describe" in worker.stderr
    assert "does not exist" not in worker.stderr

    checked = run(publisher, "topics", "check")
    for shared in ("_sowstream.topics", "_sowstream.control"):
        assert f"warn\t{shared}\tis not to be seen by this user (no right to Describe)" in checked.stdout
    assert "does not exist" not in checked.stdout

    ill = run(publisher, "doctor", "--role", "publisher")
    assert ill.returncode == 1
    assert f"fail\t{world.name}.publish\tthis user lacks " in ill.stdout
    printed = run(world.file, "topics", "apply", "--acls")
    for command in printed.stdout.splitlines():
        if "PUBLISHER" in command:
            grant(command)
    # A broker goes by its rights a moment after the tool has written them.
    until(lambda: run(publisher, "doctor", "--role", "publisher").returncode == 0, "the rights being granted")
    well = run(publisher, "doctor", "--role", "publisher")
    assert (well.returncode, "fail" in well.stdout) == (0, False), well.stdout
    assert "ok\trole publisher\trights to " in well.stdout
    other = run(publisher, "doctor", "--role", "worker")
    assert other.returncode == 1
