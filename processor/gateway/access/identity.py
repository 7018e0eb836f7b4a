"""Tokens and the identities that they prove: JSON Web Tokens, or a file with tokens."""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt
import structlog
import yaml

from processor.config.gateway import AuthConfig, JwtConfig
from processor.config.yaml_values import parse, problem_of
from processor.errors import ConfigurationError, SowstreamError
from processor.gateway.access.issuer_keys import IssuerKeys, KeysUnavailable, UnknownKey
from processor.gateway.sessions.requests import BadRequest
from processor.record import Value
from processor.values.pointer import names

log = structlog.stdlib.get_logger("sowstream.gateway")

TOKEN_CHARACTERS_MAX: Final = 16_384
"""Longest token."""


class AccessDenied(SowstreamError):
    """A token does not prove an identity, or an identity may not do something; the message never has the token."""


class Identity(NamedTuple):
    """A client of the gateway, as its token proves it."""

    user: str
    """The name of the user."""
    roles: tuple[str, ...] = ()
    """The roles of the user."""
    expires_at_s: float | None = None
    """Time at which the session of the token ends, seconds since the epoch: its end and the leeway; None: never."""
    token_id: str | None = None
    """The claim `jti` of a JSON Web Token, or the digest of a token of the file."""

    @property
    def is_expired(self) -> bool:
        """True if the token has expired."""
        return self.expires_at_s is not None and time.time() >= self.expires_at_s


ANONYMOUS: Final = Identity("anonymous")
"""Everybody, where the setting `auth` is `none`."""


class Authenticator:
    """Verifies tokens. `verify` may ask the issuer for keys, so it is called on a thread."""

    def __init__(self, auth: AuthConfig | None) -> None:
        """Read the keys and the tokens file.

        Args:
            auth: the setting; None: everybody is `ANONYMOUS`.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        self._auth = auth
        self._jwt = None if auth is None or auth.jwt is None else _JwtVerifier(auth.jwt)
        self._tokens = None if auth is None or auth.tokens_file is None else TokensFile(auth.tokens_file)

    @property
    def is_required(self) -> bool:
        """True if a client needs a token."""
        return self._auth is not None

    @property
    def file(self) -> Path | None:
        """The tokens file."""
        return None if self._tokens is None else self._tokens.path

    def reload(self) -> None:
        """Read the tokens file again.

        Raises:
            ConfigurationError: it cannot be read; the tokens stay as they are.
        """
        if self._tokens is not None:
            self._tokens.load()

    def verify(self, token: str | None) -> Identity:
        """The identity that a token proves.

        Raises:
            AccessDenied: it proves none.
            BadRequest: `unavailable`: nothing can be said about it now.
        """
        if self._auth is None:
            return ANONYMOUS
        if not token:
            raise AccessDenied("a token is needed")
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise AccessDenied("the token is too long")
        if self._tokens is not None and (identity := self._tokens.find(token)) is not None:
            return identity
        if self._jwt is None:
            raise AccessDenied("the token is not valid")
        return self._jwt.verify(token)

    def is_revoked(self, identity: Identity) -> bool:
        """Return whether a token of the file, which was valid, is not there any more."""
        return self._tokens is not None and self._tokens.lacks(identity)


class _JwtVerifier:
    """Verifies JSON Web Tokens with the issuer's public keys."""

    def __init__(self, settings: JwtConfig) -> None:
        self._settings = settings
        self._key: Any = None
        self._keys = None if settings.jwks_url is None else IssuerKeys(settings.jwks_url)
        self._missing: set[str] = set()  # Claims that a token lacked, and that were logged.
        if settings.public_key_file is not None:
            try:
                self._key = settings.public_key_file.read_bytes()
            except OSError as error:
                raise ConfigurationError(f"gateway.auth.jwt.public_key_file: {error}") from None

    def verify(self, token: str) -> Identity:
        settings = self._settings
        try:
            claims = jwt.decode(
                token,
                self._key if self._keys is None else self._keys.find(jwt.get_unverified_header(token).get("kid")),
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except KeysUnavailable:
            raise BadRequest("unavailable", "the issuer's keys cannot be fetched now; try again later") from None
        except (jwt.PyJWTError, UnknownKey, ValueError, TypeError) as error:
            # The type alone: a message may quote the token.
            raise AccessDenied(f"the token is not valid ({type(error).__name__})") from None
        user, roles = self._claim(claims, settings.user_claim), self._claim(claims, settings.roles_claim)
        roles = roles.split() if isinstance(roles, str) else [] if roles is None else roles
        if type(user) is not str or type(roles) is not list or not all(type(role) is str for role in roles):
            raise AccessDenied("the token's claims of the user or the roles are no texts")
        token_id = claims.get("jti")
        ends_s = float(claims["exp"]) + settings.leeway_s
        return Identity(user, tuple(roles), ends_s, token_id if type(token_id) is str else None)

    def _claim(self, claims: dict[str, Any], name: str) -> Value:
        """The value of a claim; None if the token has none, which is logged once."""
        value: Value = claims
        for member in names(name) if name.startswith("/") else (name,):
            value = value.get(member) if type(value) is dict else None
        if value is None and name not in self._missing:
            self._missing.add(name)
            log.warning("a token has no such claim; look at gateway.auth.jwt", claim=name)
        return value


class TokensFile:
    """Tokens with their identities, from a YAML file: `token: {user: ann, roles: [desk]}`."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigurationError: it cannot be read.
        """
        self.path: Final = path
        self._salt = hashlib.sha256(str(id(self)).encode()).digest()
        self._lock = threading.Lock()
        self._identities: dict[str, Identity] = {}
        self.load()

    def load(self) -> None:
        """Read the file again."""
        try:
            tree = parse(self.path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self.path}: {type(error).__name__}; the tokens cannot be read") from None
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{self.path}: {problem_of(error, hides_names=True)}") from None
        identities = {}
        entries = tree.items() if type(tree) is dict else [(None, None)]
        for number, (token, described) in enumerate(entries, 1):
            if type(token) is not str or type(described) is not dict or not set(described) <= {"user", "roles"}:
                raise ConfigurationError(f"{self.path}: entry {number} is not `token: {{user: NAME, roles: [ROLE]}}`")
            user, roles = described.get("user"), described.get("roles", [])
            if type(user) is not str or type(roles) is not list or not all(type(role) is str for role in roles):
                raise ConfigurationError(f"{self.path}: entry {number}: user is a text, roles a list of texts")
            digest = self._digest(token)
            identities[digest] = Identity(user, tuple(roles), None, digest)
        with self._lock:
            self._identities = identities

    def find(self, token: str) -> Identity | None:
        """The identity of a token; looked up by its digest, so that the time does not depend on the token."""
        with self._lock:
            return self._identities.get(self._digest(token))

    def lacks(self, identity: Identity) -> bool:
        """True if the identity came from the file, and its token is not there any more or has another identity."""
        if identity.token_id is None or identity.expires_at_s is not None:
            return False
        with self._lock:
            return self._identities.get(identity.token_id) != identity

    def _digest(self, token: str) -> str:
        return hmac.new(self._salt, token.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
