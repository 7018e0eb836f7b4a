"""The section `gateway`: the address, the topics, the tokens and the limits of the gateway."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from processor.config.section import IntervalS, Section, TopicName

_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+):(?P<port>[0-9]{1,5})")
_POINTER: Final = r"^(/[^/]+)+$"

Pointer = Annotated[str, Field(pattern=_POINTER)]
"""The path of a field, such as `/customer`."""
Claim = Annotated[str, Field(pattern=r"^([^/].*|(/[^/]+)+)$")]
"""The name of a claim, or its JSON Pointer."""


class JwtConfig(Section):
    """Verification of JSON Web Tokens: `gateway.auth.jwt`."""

    jwks_url: str | None = None
    """The address of the issuer's public keys: https, or http on this machine."""
    public_key_file: Path | None = None
    """A file with one public key, PEM."""
    issuer: str
    """The required claim `iss`."""
    audience: str
    """The required claim `aud`."""
    algorithms: tuple[Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"], ...] = (
        "RS256",
        "ES256",
        "EdDSA",
    )
    """The accepted signatures, all of them with public keys."""
    roles_claim: Claim = "roles"
    """The claim with the roles of a user: its name, or a JSON Pointer such as `/realm_access/roles`."""
    user_claim: Claim = "sub"
    """The claim with the name of a user, likewise."""
    leeway_s: IntervalS = Field(default=10.0, ge=0, le=300)
    """Difference between the issuer's clock and this one's: a token counts so much earlier and longer."""

    @model_validator(mode="after")
    def _has_one_key(self) -> JwtConfig:
        if (self.jwks_url is None) == (self.public_key_file is None):
            raise ValueError("give one of jwks_url and public_key_file")
        if self.jwks_url is not None:
            _check_keys_address(self.jwks_url)
        return self


class AuthConfig(Section):
    """Proof of a client's identity: `gateway.auth`."""

    jwt: JwtConfig | None = None
    """JSON Web Tokens."""
    tokens_file: Path | None = None
    """A YAML file with tokens and their identities, for tests and small teams."""

    @model_validator(mode="after")
    def _has_a_way(self) -> AuthConfig:
        if self.jwt is None and self.tokens_file is None:
            raise ValueError("give jwt, tokens_file or both; or write `auth: none`")
        return self


class TlsConfig(Section):
    """The certificate of the gateway: `gateway.tls`."""

    certificate: Path
    """The certificate with its chain, PEM."""
    key: Path
    """Its private key, PEM."""


class GatewayLimits(Section):
    """The limits of one gateway process: `gateway.limits`."""

    connections: int = Field(default=10_000, ge=1)
    """WebSockets and Server-Sent Events at the same time; further ones are refused. A tenth of them may be without an
    identity yet. Health pages always answer."""
    connections_per_identity: int | None = Field(default=None, ge=1)
    """WebSockets, Server-Sent Events and other requests of one identity at the same time, where tokens are needed;
    none: a quarter of `connections`, 100 at least (or all)."""
    subscriptions_per_connection: int = Field(default=100, ge=1, le=10_000)
    """Subscriptions of one connection."""
    message_bytes: int = Field(default=1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    """Largest request."""
    queue_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    """Updates that wait for one client, per topic; beyond it they are conflated, per key."""
    publishes_per_s: int = Field(default=1000, ge=1)
    """Records that one identity publishes in a second, over HTTP too; further ones are answered with a failure."""
    publisher_names: int = Field(default=1000, ge=1)
    """Names (`client`) under which one identity sends commands with a `sequence` over WebSockets within 24 hours. A
    worker remembers 100,000 names of all publishers for each partition; commands under further names are refused."""
    requests_per_s: int = Field(default=2000, ge=1)
    """Requests of one identity in a second. Frames of a WebSocket wait beyond it; HTTP requests are refused."""
    words_per_s: int = Field(default=5000, ge=1)
    """Words and signs of filters and options, about 20 µs each, that are compiled for one identity in a second. What is
    not used stays for 2 seconds; further subscriptions are answered with a failure."""
    idle_timeout_s: IntervalS = Field(default=30.0, gt=0)
    """A client that takes nothing for so long, while messages wait for it, is closed."""
    history_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """Past updates of each topic that are kept for clients that resume."""


class GatewayConfig(Section):
    """The gateway for browsers: `gateway`."""

    listen: str = "127.0.0.1:8080"
    """Host and port; another host than this machine's own needs `auth`, or `auth: none` written out."""
    topics: tuple[TopicName, ...] | None = None
    """The topics that it serves; none: all that are configured."""
    indexes: dict[TopicName, tuple[tuple[Pointer, ...], ...]] = Field(default_factory=dict)
    """Fields by whose values records are found without a scan, for each topic: lists of one or several paths."""
    orders: dict[TopicName, tuple[str, ...]] = Field(default_factory=dict)
    """Orders that are kept sorted for each topic, such as `/price DESC, /id`: windows of all its records in one of them
    begin at once. An empty one is the order by key, in which the page begins. Each takes about 250 bytes a record."""
    auth: AuthConfig | Literal["none"] | None = None
    """Proof of a client's identity; `none`: it needs none."""
    tls: TlsConfig | None = None
    """The certificate; none: plain HTTP."""
    entitlements: Path | None = None
    """The file with the rights of roles and users; with `auth` it is required."""
    origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may connect, such as `https://desk.example.com`."""
    hosts: tuple[str, ...] = ()
    """Names under which clients reach a gateway without `auth`, such as `gateway` in a network of containers. Requests
    to other names are refused, except addresses, `localhost` and the hosts of `origins`."""
    limits: GatewayLimits = Field(default_factory=GatewayLimits)
    """Its limits."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of `listen`."""
        match = _ADDRESS.fullmatch(self.listen)
        assert match is not None
        return match["host"].strip("[]"), int(match["port"])

    @model_validator(mode="after")
    def _is_guarded(self) -> GatewayConfig:
        match = _ADDRESS.fullmatch(self.listen)
        if match is None or int(match["port"]) > 65_535:
            raise ValueError(f"listen: {self.listen!r} is not an address; write HOST:PORT, such as 127.0.0.1:8080")
        if self.auth is None and not _is_local(self.address[0]):
            raise ValueError(f"listen: {self.listen!r} can be reached from elsewhere; set auth, or write `auth: none`")
        if isinstance(self.auth, AuthConfig) and self.entitlements is None:
            raise ValueError("entitlements: with auth, a file has to say what each user may do; without it nobody may")
        return self


def _check_keys_address(url: str) -> None:
    """Refuse an address over which any machine on the way could send keys, and so sign tokens."""
    parts = urlsplit(url)  # It raises a ValueError of its own.
    if not parts.hostname or parts.scheme not in ("https", "http"):
        raise ValueError("jwks_url: expected an address, such as https://HOST/keys")
    if parts.scheme == "http" and not _is_local(parts.hostname):
        raise ValueError("jwks_url: keys that come over http may be anybody's; write https, or give a public_key_file")


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
