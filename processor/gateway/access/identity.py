"""Authentication: tokens, the identities that they prove, the keys of their issuers, and the pages that may connect.

Tokens are JSON Web Tokens, or in a file. An issuer's public keys outlive its outage. Pages of other sites may connect
only if they are listed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import jwt
import structlog
import yaml

from processor.config.gateway import AuthConfig, JwtConfig
from processor.config.yaml_values import parse, problem_of
from processor.errors import ConfigurationError, SowstreamError
from processor.gateway.access.requests import BadRequest
from processor.record import Value
from processor.values.pointer import names


def is_allowed(origin: str | None, host: str | None, allowed: Sequence[str]) -> bool:
    """Return whether a page of an origin may connect.

    Args:
        origin: the header; None: the client is no browser.
        host: the header `Host`: pages of the gateway itself may always connect.
        allowed: the listed origins.
    """
    if origin is None:
        return True
    if origin in allowed:
        return True
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == str(host).lower()
    except ValueError:
        return False


def is_own_name(host: str | None, origins: Sequence[str], hosts: Sequence[str] = ()) -> bool:
    """Return whether a header `Host` is an address, `localhost`, or the name of a listed host or origin.

    A gateway that needs no tokens refuses other names: they are of sites that have their name lead here, so that a
    browser takes the gateway for a part of them.
    """
    try:
        name = urlsplit(f"//{host or ''}").hostname
        if not name or name == "localhost" or name.endswith(".localhost"):
            return True
        if name in hosts or any(urlsplit(origin).hostname == name for origin in origins):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


log = structlog.stdlib.get_logger("sowstream.gateway")

FETCH_TIMEOUT_S: Final = 5.0
"""Longest wait for the issuer."""
FRESH_S: Final = 300.0
"""Keys that are older are fetched again, while tokens are verified with them."""
KEPT_S: Final = 86_400.0
"""Keys are used so long after the last answer of the issuer: a key that it has withdrawn meanwhile must end."""
PAUSE_S: Final = 5.0
"""Time between the end of a fetch and the next one: tokens with names of unknown keys ask for no more."""


class KeysUnavailable(Exception):
    """The issuer cannot be asked for a key now, so that nothing can be said about the token."""


class UnknownKey(Exception):
    """The issuer has no such key."""


class KeyNotFetched(Exception):
    """The issuer is to be asked for a key, by a caller that may wait for it."""


class IssuerKeys:
    """The keys of one issuer by their names. Any thread; one fetch runs at a time, on a thread of its own."""

    def __init__(self, url: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without keys; `clock_s` is a clock that is never set back."""
        # Its caches are not used: they end with the first fetch that fails after their time.
        self._client = jwt.PyJWKClient(url, cache_keys=False, cache_jwk_set=False, timeout=FETCH_TIMEOUT_S)
        self._clock_s = clock_s
        self._changed = threading.Condition()
        self._keys: dict[str | None, Any] = {}
        self._answered_s: float | None = None
        self._fetched_s: float | None = None
        self._is_fetching = False
        self._is_failing = False

    def find(self, name: str | None, *, may_wait: bool = True) -> Any:
        """The key of a name. Waits for the issuer only if the name is not known.

        Raises:
            UnknownKey: the issuer has none.
            KeysUnavailable: the issuer does not answer.
            KeyNotFetched: the caller would have to wait, and may not.
        """
        with self._changed:
            now_s = self._clock_s()
            age_s = None if self._answered_s is None else now_s - self._answered_s
            key = self._keys.get(name) if age_s is not None and age_s < KEPT_S else None
            if key is not None:
                if age_s is not None and age_s > FRESH_S:
                    self._begin_fetch(now_s)
                return key
            asks = self._begin_fetch(now_s)
            if asks and not may_wait:
                raise KeyNotFetched
            if asks:
                self._changed.wait_for(lambda: not self._is_fetching, timeout=FETCH_TIMEOUT_S * 2)
            if (key := self._keys.get(name)) is not None:
                return key
            if not asks or self._is_failing or self._is_fetching:
                raise KeysUnavailable  # Also of a key that the issuer may have published since it was asked.
            raise UnknownKey

    def _begin_fetch(self, now_s: float) -> bool:
        """Begin a fetch unless one has ended just now; returns whether one runs."""
        if not self._is_fetching and (self._fetched_s is None or now_s - self._fetched_s >= PAUSE_S):
            self._is_fetching = True
            threading.Thread(target=self._fetch, name="issuer-keys", daemon=True).start()
        return self._is_fetching

    def _fetch(self) -> None:
        keys: dict[str | None, Any] | None = None
        try:
            keys = {key.key_id: key.key for key in self._client.get_signing_keys(refresh=True)}
        except Exception as error:  # noqa: BLE001 - An issuer may answer with anything; known keys go on.
            log.warning("the keys of the issuer cannot be fetched; known ones go on", error=type(error).__name__)
        with self._changed:
            self._is_fetching, self._is_failing = False, keys is None
            self._fetched_s = now_s = self._clock_s()
            if keys is not None:
                self._keys, self._answered_s = keys, now_s
            elif self._answered_s is not None and now_s - self._answered_s >= KEPT_S:
                self._keys = {}
            self._changed.notify_all()


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

    def read_tokens(self) -> None:
        """Read the tokens file again.

        Raises:
            ConfigurationError: it cannot be read; the tokens stay as they are.
        """
        if self._tokens is not None:
            self._tokens.load()

    def read_key(self) -> None:
        """Read the issuer's public key again, if it is in a file.

        Raises:
            ConfigurationError: it cannot be used; the former one counts.
        """
        if self._jwt is not None:
            self._jwt.read_key()

    def verify(self, token: str | None, *, may_wait: bool = True) -> Identity:
        """The identity that a token proves.

        Raises:
            AccessDenied: it proves none.
            BadRequest: `unavailable`: nothing can be said about it now.
            KeyNotFetched: the issuer is to be asked for its key, for which the caller may not wait.
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
        return self._jwt.verify(token, may_wait=may_wait)

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
        self.read_key()

    def read_key(self) -> None:
        """Read the file with the key, if there is one. Raises a `ConfigurationError`."""
        file = self._settings.public_key_file
        if file is None:
            return
        try:
            key = file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"gateway.auth.jwt.public_key_file: {error}") from None
        if not any(_takes(name, key) for name in self._settings.algorithms):
            kinds = ", ".join(self._settings.algorithms)
            raise ConfigurationError(f"gateway.auth.jwt.public_key_file: {file} is no public key, PEM, of {kinds}")
        self._key = key

    def verify(self, token: str, *, may_wait: bool = True) -> Identity:
        settings, keys = self._settings, self._keys
        try:
            key = self._key
            if keys is not None:
                key = keys.find(jwt.get_unverified_header(token).get("kid"), may_wait=may_wait)
            claims = jwt.decode(
                token,
                key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
            ends_s = float(claims["exp"]) + settings.leeway_s
        except KeysUnavailable:
            raise BadRequest("unavailable", "the issuer's keys cannot be fetched now; try again later") from None
        except (jwt.PyJWTError, UnknownKey, ValueError, TypeError, OverflowError) as error:
            # The type alone: a message may quote the token.
            raise AccessDenied(f"the token is not valid ({type(error).__name__})") from None
        user, roles = self._claim(claims, settings.user_claim), self._claim(claims, settings.roles_claim)
        roles = roles.split() if isinstance(roles, str) else [] if roles is None else roles
        if type(user) is not str or type(roles) is not list or not all(type(role) is str for role in roles):
            raise AccessDenied("the token's claims of the user or the roles are no texts")
        token_id = claims.get("jti")
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


def _takes(algorithm: str, key: bytes) -> bool:
    """Return whether an algorithm verifies signatures with a key."""
    try:
        jwt.get_algorithm_by_name(algorithm).prepare_key(key)
    except (jwt.PyJWTError, ValueError, TypeError):
        return False
    return True


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
