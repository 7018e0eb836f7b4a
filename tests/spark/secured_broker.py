"""A broker with TLS, SCRAM and client certificates, and the settings of its clients in both dialects."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from processor.trial.broker import EmbeddedBroker, embedded
from processor.trial.broker.server import HOST, Server
from tests.programs.faults.broker.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

USER = "spark"
PASSWORD = 'hunter"2\\;= ü'
"""A password with every character that a login module quotes."""


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """A running broker."""

    bootstrap: str
    """The address of a listener where every client is an administrator."""
    scram: str
    """The address of the listener with TLS and SCRAM."""
    mutual: str
    """The address of the listener with client certificates."""
    files: Path
    """The folder of its certificates: `ca.pem`, `client.pem`, `client.key`, `client.p12`, all with `STORE_PASSWORD`."""


_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
STORE_PASSWORD = "store-hunter2"


def secured_broker(files: Path, patch: pytest.MonkeyPatch) -> Iterator[SecuredBroker]:
    """Start a broker; for a fixture.

    Args:
        files: a folder for certificates.
        patch: replaces the settings of the embedded broker.
    """
    _certificates(files)
    addresses = {name: f"{HOST}:{quiet_port()}" for name in ("SECURE", "MUTUAL")}

    class Secured(Server):
        """A server with two more listeners."""

        def prepare(self) -> None:
            """Add settings: of one that occurs twice the last one counts."""
            super().prepare()
            file = self.data_dir / "server.properties"
            text = file.read_text()
            added = ",".join(f"{name}://{address}" for name, address in addresses.items())
            for name in ("listeners", "advertised.listeners"):
                text += f"\n{name}={added},{re.findall(rf'^{name}=(.*)$', text, re.MULTILINE)[-1]}"
            file.write_text(f"{text}\n{_settings(files)}")

    patch.setattr(embedded, "Server", Secured)
    with EmbeddedBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        secret = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        for done in admin.alter_user_scram_credentials([secret]).values():
            done.result(120)
        yield SecuredBroker(broker.bootstrap, addresses["SECURE"], addresses["MUTUAL"], files)


def _settings(files: Path) -> str:
    lines = [
        "listener.security.protocol.map=SECURE:SASL_SSL,MUTUAL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        "listener.name.secure.sasl.enabled.mechanisms=SCRAM-SHA-512",
        f"listener.name.secure.scram-sha-512.sasl.jaas.config={_SCRAM_MODULE} required;",
        "listener.name.mutual.ssl.client.auth=required",
    ]
    for listener in ("secure", "mutual"):
        lines += [
            f"listener.name.{listener}.ssl.keystore.type=PEM",
            f"listener.name.{listener}.ssl.keystore.location={files}/server.both.pem",
            f"listener.name.{listener}.ssl.truststore.type=PEM",
            f"listener.name.{listener}.ssl.truststore.location={files}/ca.pem",
        ]
    return "\n".join(lines)


def _certificates(files: Path) -> None:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=files)

    ca = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority"]
    openssl("req", *ca, "-keyout", "ca.key", "-out", "ca.pem")
    (files / "names").write_text(f"subjectAltName=IP:{HOST}")
    for name in ("server", "client"):
        # The keys are in PKCS#8.
        new = ["-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
        both = (files / f"{name}.key").read_text() + (files / f"{name}.pem").read_text()
        (files / f"{name}.both.pem").write_text(both)
    store = ["-export", "-in", "client.pem", "-inkey", "client.key", "-passout", f"pass:{STORE_PASSWORD}"]
    openssl("pkcs12", *store, "-out", "client.p12")
