"""A broker that denies by default, with a listener for client certificates, one for SCRAM, and one for tokens."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from processor.trial.broker import EmbeddedBroker, embedded
from processor.trial.broker.server import HOST, Server
from tests.certificates import Authority
from tests.programs.faults.broker.ports import quiet_port
from tests.secured.token_endpoint import AUDIENCE, TokenEndpoint, secret_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pytest

Mechanism: TypeAlias = Literal["SCRAM", "MUTUAL", "TOKEN"]
"""A listener: TLS with a password, with a client certificate, or with a token."""

MECHANISMS: Final[tuple[Mechanism, ...]] = get_args(Mechanism)
PRINCIPALS: Final = (
    "deployer", "worker", "conflater", "viewer", "gateway", "publisher", "subscriber", "consumer", "dlq", "settler",
)  # fmt: skip
"""The users, one for each role."""

_ALLOWED_URLS: Final = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="


class SecuredBroker:
    """A running broker, its authority and its token endpoint."""

    def __init__(self, files: Path, endpoint: TokenEndpoint) -> None:
        """Issue the certificates; the broker is started by `secured_broker`."""
        self.files = files
        self.endpoint = endpoint
        self.authority = Authority(files / "tls")
        self.bootstrap = ""
        """The address of a listener where every client is an administrator."""
        self.admin: AdminClient
        self.addresses = {mechanism: f"{HOST}:{quiet_port()}" for mechanism in MECHANISMS}
        self.authority.issue("server", f"IP:{HOST}")

    def login(self, mechanism: Mechanism, name: str, **changes: str) -> dict[str, str]:
        """The section `kafka` of a principal."""
        settings = {
            "bootstrap.servers": self.addresses[mechanism],
            "ssl.ca.location": str(self.authority.file),
            "security.protocol": "SSL" if mechanism == "MUTUAL" else "SASL_SSL",
        }
        if mechanism == "MUTUAL":
            if not (self.authority.folder / f"{name}.pem").exists():
                self.authority.issue(name, f"IP:{HOST}")
            settings["ssl.certificate.location"] = str(self.authority.folder / f"{name}.pem")
            settings["ssl.key.location"] = str(self.authority.folder / f"{name}.key")
        elif mechanism == "SCRAM":
            settings["sasl.mechanism"] = "SCRAM-SHA-512"
            settings["sasl.username"] = name
            settings["sasl.password"] = secret_of(name)
        else:
            settings["sasl.mechanism"] = "OAUTHBEARER"
            settings["sasl.oauthbearer.method"] = "oidc"
            settings["sasl.oauthbearer.client.id"] = name
            settings["sasl.oauthbearer.client.secret"] = secret_of(name)
            settings["sasl.oauthbearer.token.endpoint.url"] = self.endpoint.url
        return settings | changes

    def set_passwords(self, passwords: Mapping[str, str]) -> None:
        """Set the passwords of principals; their former ones are refused from then on."""
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        changes = [
            UserScramCredentialUpsertion(name, credential, password.encode()) for name, password in passwords.items()
        ]
        for done in self.admin.alter_user_scram_credentials(changes).values():
            done.result(120)

    def settings(self) -> str:
        """Kafka's settings besides those of the embedded broker."""
        protocols = {"SCRAM": "SASL_SSL", "MUTUAL": "SSL", "TOKEN": "SASL_SSL"}
        mapped = ",".join(f"{listener}:{protocol}" for listener, protocol in protocols.items())
        security = "org.apache.kafka.common.security"
        handler = "listener.name.token.oauthbearer.sasl.server.callback.handler.class"
        lines = [
            f"listener.security.protocol.map={mapped},PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name=PLAINTEXT",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found=false",
            "super.users=User:ANONYMOUS",
            r"ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/",
            "listener.name.mutual.ssl.client.auth=required",
            "listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512",
            f"listener.name.scram.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;",
            "listener.name.token.sasl.enabled.mechanisms=OAUTHBEARER",
            f"listener.name.token.oauthbearer.sasl.jaas.config={security}.oauthbearer.OAuthBearerLoginModule required;",
            f"{handler}={security}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            f"sasl.oauthbearer.jwks.endpoint.url={self.endpoint.keys_file.as_uri()}",
            f"sasl.oauthbearer.expected.audience={AUDIENCE}",
            # A connection ends with its token, or logs in again.
            "listener.name.token.oauthbearer.connections.max.reauth.ms=3600000",
        ]
        for listener in protocols:
            prefix = f"listener.name.{listener.lower()}.ssl"
            lines += [
                f"{prefix}.keystore.type=PEM",
                f"{prefix}.keystore.location={self.authority.folder}/server.both.pem",
                f"{prefix}.truststore.type=PEM",
                f"{prefix}.truststore.location={self.authority.file}",
            ]
        return "\n".join(lines)


@contextmanager
def secured_broker(files: Path, patch: pytest.MonkeyPatch) -> Iterator[SecuredBroker]:
    """Start a broker and a token endpoint.

    Args:
        files: a folder for certificates and keys.
        patch: replaces the settings of the embedded broker.
    """
    with TokenEndpoint(files) as endpoint:
        secured = SecuredBroker(files, endpoint)

        class Secured(Server):
            """A server with three more listeners."""

            def prepare(self) -> None:
                """Add settings: of one that occurs twice the last one counts."""
                super().prepare()
                file = self.data_dir / "server.properties"
                text = file.read_text()
                added = ",".join(f"{name}://{address}" for name, address in secured.addresses.items())
                for name in ("listeners", "advertised.listeners"):
                    text += f"\n{name}={added},{re.findall(rf'^{name}=(.*)$', text, re.MULTILINE)[-1]}"
                file.write_text(f"{text}\n{secured.settings()}")

            def commands(self) -> list[list[str]]:
                """Allow Java to read the keys of the token endpoint."""
                allowed = f"{_ALLOWED_URLS}{endpoint.keys_file.as_uri()}"
                return [[java, allowed, *rest] for java, *rest in super().commands()]

        patch.setattr(embedded, "Server", Secured)
        with EmbeddedBroker() as broker:
            secured.bootstrap = broker.bootstrap
            secured.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            secured.set_passwords({name: secret_of(name) for name in PRINCIPALS})
            yield secured
