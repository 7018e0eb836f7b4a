"""Tokens of the login mechanism OAUTHBEARER: from a plug-in, or from a token endpoint (OIDC).

librdkafka asks a token endpoint itself; kafka-python, our other client, has the tokens of this file. A plug-in serves
both: an entry point of the group `sowstream.sasl_callbacks`, which the property `sasl.callback` of the section `kafka`
names. It is a function of the text in `sasl.oauthbearer.config` that returns the token and the time when it ends, in
seconds since the epoch; after these may come the principal and a mapping of SASL extensions.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from processor.entry_points import find_installed, load_installed
from processor.errors import BrokerUnavailable, ConfigurationError
from processor.kafka.connection_probe import trusting_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    SaslCallback: TypeAlias = Callable[[str], tuple[Any, ...]]
    """Returns a token, its end in seconds since the epoch, and perhaps the principal and the extensions."""

GROUP: Final = "sowstream.sasl_callbacks"
PROPERTY: Final = "sasl.callback"
"""The property that names a plug-in."""
_NOUN: Final = "SASL callback"
_TIMEOUT_S: Final = 10.0
_USED_SHARE: Final = 0.8
"""The share of a token's time after which a new one is fetched, as librdkafka does."""

_log = logging.getLogger("sowstream.kafka")


class Token(NamedTuple):
    """One token."""

    text: str
    """The token, as it is sent."""
    expires_s: float
    """When it ends, in seconds since the epoch."""
    extensions: Mapping[str, str]
    """SASL extensions."""


def with_callback(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a librdkafka client: the plug-in's name replaced by its function.

    Raises:
        ConfigurationError: no such plug-in is installed, or the mechanism is another one.
    """
    rest = {name: value for name, value in kafka.items() if name != PROPERTY}
    name = kafka.get(PROPERTY)
    return rest if name is None else rest | {"oauth_cb": _logged(_callback(kafka), str(name))}


def token_source(kafka: Mapping[str, str]) -> Callable[[], Token]:
    """A function that returns a valid token, fetched when the former one comes to its end; any thread may call it.

    Raises:
        ConfigurationError: no such plug-in is installed, or the properties name no way to a token.
    """
    config = kafka.get("sasl.oauthbearer.config", "")
    if PROPERTY in kafka:
        callback = _callback(kafka)
        return _Kept(lambda: _token_of(callback(config)))
    if kafka.get("sasl.oauthbearer.method", "").lower() != "oidc":
        raise ConfigurationError(
            f"the mechanism OAUTHBEARER needs tokens: set kafka.sasl.oauthbearer.method to oidc, or kafka.{PROPERTY} "
            "to an installed plug-in"
        )
    grant = kafka.get("sasl.oauthbearer.grant.type", "client_credentials")
    if grant != "client_credentials":
        raise ConfigurationError(
            "queues and `sowstream transactions` fetch tokens with the grant client_credentials, not with "
            f"kafka.sasl.oauthbearer.grant.type: {grant}"
        )
    missing = [name for name in _OIDC if not kafka.get(name)]
    if missing:
        raise ConfigurationError(f"kafka.{missing[0]} is missing, without which no token can be fetched")
    return _Kept(lambda: _fetch(kafka))


_OIDC: Final = (
    "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret",
)  # fmt: skip


def _callback(kafka: Mapping[str, str]) -> SaslCallback:
    mechanism = kafka.get("sasl.mechanisms") or kafka.get("sasl.mechanism") or ""
    if mechanism.upper() != "OAUTHBEARER":
        raise ConfigurationError(f"kafka.{PROPERTY} issues tokens: set kafka.sasl.mechanism to OAUTHBEARER")
    callback: SaslCallback = load_installed(find_installed(GROUP, _NOUN, kafka[PROPERTY]), _NOUN)
    return callback


def _logged(callback: SaslCallback, name: str) -> SaslCallback:
    """The function for librdkafka, which drops the text of an exception, and calls again after 10 s."""

    def called(config: str) -> tuple[Any, ...]:
        try:
            return callback(config)
        except Exception as error:
            _log.error("the %s %r issued no token: %s: %s", _NOUN, name, type(error).__name__, error)
            raise

    return called


def _token_of(answer: tuple[Any, ...]) -> Token:
    text, expires_s, *rest = answer
    return Token(str(text), float(expires_s), dict(rest[1]) if len(rest) > 1 else {})


class _Kept:
    """Keeps a token for most of its time."""

    def __init__(self, fetch: Callable[[], Token]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renewal_s = 0.0

    def __call__(self) -> Token:
        with self._lock:
            now_s = time.time()
            if self._token is None or now_s >= self._renewal_s:
                self._token = self._fetch()
                self._renewal_s = now_s + _USED_SHARE * (self._token.expires_s - now_s)
            return self._token


def _fetch(kafka: Mapping[str, str]) -> Token:
    """Ask the token endpoint (RFC 6749, section 4.4).

    Raises:
        BrokerUnavailable: it does not answer.
        ConfigurationError: it refuses, or its answer has no token.
    """
    url, client, secret = (kafka[name] for name in _OIDC)
    form = {"grant_type": "client_credentials"}
    if scope := kafka.get("sasl.oauthbearer.scope"):
        form["scope"] = scope
    credentials = base64.b64encode(f"{urllib.parse.quote(client)}:{urllib.parse.quote(secret)}".encode()).decode()
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode())  # noqa: S310 - the user's own setting
    request.add_unredirected_header("Authorization", f"Basic {credentials}")  # The secret is for this address alone.
    doing = f"fetching a token from {url}"
    context = None
    if url.lower().startswith("https:"):
        context = trusting_context(kafka.get("https.ca.location"), kafka.get("https.ca.pem"))
    began_s = time.time()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:  # noqa: S310
            body = json.load(answer)
        return Token(str(body["access_token"]), began_s + float(body["expires_in"]), _extensions(kafka))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500:
            raise BrokerUnavailable(f"{doing}: {error}") from None
        raise ConfigurationError(f"{doing}: {error}. Check kafka.sasl.oauthbearer.client.id and .secret") from None
    except OSError as error:
        raise BrokerUnavailable(f"{doing}: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{doing}: its answer is not one of OAuth 2.0: {error!r}") from None


def _extensions(kafka: Mapping[str, str]) -> dict[str, str]:
    """The SASL extensions of the properties: `name=value`, separated by commas."""
    pairs = (part.partition("=") for part in kafka.get("sasl.oauthbearer.extensions", "").split(",") if part)
    return {name.strip(): value.strip() for name, _, value in pairs}
