"""Wrong credentials on a real broker: each has a sentence of its own, and none hangs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.certificates import Authority
from tests.programs.faults.broker.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.secured.estate import Estate
    from tests.secured.secured_broker import SecuredBroker

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

ENDS_S = 100.0
"""A fault that stays is reported long before the time is over for which an absent Kafka is waited for."""


def wrong_password(broker: SecuredBroker, _folder: Path) -> dict[str, str]:
    """A password that the broker does not know."""
    return broker.login("SCRAM", "worker", **{"sasl.password": "canary-wrong"})


def unknown_authority(broker: SecuredBroker, folder: Path) -> dict[str, str]:
    """A client that trusts another authority."""
    return broker.login("SCRAM", "worker", **{"ssl.ca.location": str(Authority(folder / "other").file)})


def wrong_host(broker: SecuredBroker, _folder: Path) -> dict[str, str]:
    """A name of the broker's host that is not in its certificate."""
    address = broker.addresses["SCRAM"].replace("127.0.0.1", "localhost")
    return broker.login("SCRAM", "worker", **{"bootstrap.servers": address})


def expired_certificate(broker: SecuredBroker, _folder: Path) -> dict[str, str]:
    """A client certificate whose time is over."""
    broker.authority.issue("late", "IP:127.0.0.1", days=-1)
    return broker.login("MUTUAL", "late")


def no_certificate(broker: SecuredBroker, _folder: Path) -> dict[str, str]:
    """A client without a certificate on a port that requires one."""
    login = broker.login("MUTUAL", "worker")
    return {name: text for name, text in login.items() if not name.startswith(("ssl.cert", "ssl.key"))}


def strange_certificate(broker: SecuredBroker, folder: Path) -> dict[str, str]:
    """A client certificate of another authority."""
    other = Authority(folder / "strange")
    other.issue("worker", "IP:127.0.0.1")
    files = {"ssl.certificate.location": other.folder / "worker.pem", "ssl.key.location": other.folder / "worker.key"}
    return broker.login("MUTUAL", "worker", **{name: str(file) for name, file in files.items()})


def wrong_secret(broker: SecuredBroker, _folder: Path) -> dict[str, str]:
    """A secret that the token endpoint does not know."""
    return broker.login("TOKEN", "worker", **{"sasl.oauthbearer.client.secret": "canary-wrong"})


def dead_endpoint(broker: SecuredBroker, _folder: Path) -> dict[str, str]:
    """A token endpoint that is not there."""
    url = f"http://127.0.0.1:{quiet_port()}/token"
    return broker.login("TOKEN", "worker", **{"sasl.oauthbearer.token.endpoint.url": url})


FAULTS: dict[str, tuple[Callable[[SecuredBroker, Path], dict[str, str]], str, str]] = {
    "wrong password": (wrong_password, "refuses the login", "sasl.password"),
    "unknown authority": (unknown_authority, "an authority that is not trusted", "ssl.ca.location"),
    "wrong host": (wrong_host, "certificate is for another name", "use an address with a name of the certificate"),
    "expired certificate": (
        expired_certificate,
        "does not accept the client's certificate",
        "ssl.certificate.location",
    ),
    "no certificate": (no_certificate, "does not accept the client's certificate", "ssl.certificate.location"),
    "strange certificate": (strange_certificate, "does not accept the client's cert", "ssl.certificate.location"),
    "wrong secret": (wrong_secret, "no login token was issued", "sasl.oauthbearer"),
    "dead endpoint": (dead_endpoint, "no login token was issued", "the endpoint"),
}
COMMANDS = ("worker", "sow", "publish", "doctor")


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_by_each_command(estate: Estate, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker, reader, publisher and doctor name the fault and the property, without the secret, and end in time."""
    monkeypatch.setenv("SOWSTREAM_CONNECT_TIMEOUT_S", "150")
    login, sentence, remedy = FAULTS[fault]
    kafka = login(estate.broker, estate.directory)
    file = estate.with_login("wrong", kafka)
    for command in COMMANDS:
        words = [command] if command == "doctor" else [command, estate.name]
        began_s = time.monotonic()
        done = estate.run_file(file, *words, text='{"id":1}\n')
        seconds = time.monotonic() - began_s
        output = done.stdout + done.stderr
        assert done.returncode in (1, 2), (command, output)
        assert sentence in output, (command, output)
        assert remedy in output, (command, output)
        assert "canary" not in output, command
        assert seconds < ENDS_S, command


def test_a_queue_consumer_names_a_wrong_login(estate: Estate) -> None:
    """The consumer of a queue, another Kafka client, ends with the same reasons."""
    estate.create_topics()
    estate.grant(estate.printed_acls())
    for fault in ("wrong password", "wrong secret", "dead endpoint"):
        login, sentence, _ = FAULTS[fault]
        file = estate.with_login("wrong", login(estate.broker, estate.directory))
        done = estate.run_file(file, "queue", "take", estate.queue, "--count", "1", "--timeout", "120")
        assert done.returncode in (1, 2), (fault, done.stderr)
        assert sentence in done.stderr, (fault, done.stderr)
        assert "canary" not in done.stderr, fault
