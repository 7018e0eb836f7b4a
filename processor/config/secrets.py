"""Hides secrets from logs: passwords, tokens, credentials in addresses."""

from __future__ import annotations

import re
from typing import Any

_SECRET_WORDS = (
    "password", "passwd", "passphrase", "secret", "token", "credential", "user.info", "sasl.jaas", "oauthbearer.config",
    "key.pem", "keystore.key", "api_key", "api.key", "apikey", "access_key", "access.key", "private_key", "private.key",
    "authorization",
)  # fmt: skip
_SECRET_NAME = re.compile(rf"{'|'.join(map(re.escape, _SECRET_WORDS))}|(?<![a-z])(?:pass|pwd)(?![a-z])")
_CREDENTIALS = re.compile(r"//(?:[^/\s]*:\S+|[^/\s]+)@")
"""Up to the last `@`: a password may have `@` and `/`."""
_AUTHORIZATION = re.compile(r"(?:basic|bearer)\s+\S+", re.IGNORECASE)

_NAMED_BY_USERS = frozenset(("topics", "conflated", "views", "queues", "processors"))
"""Sections with names of topics, which mean no secret."""


def hide_secret(name: str, value: str) -> str:
    """The value of a property, or stars if its name means a secret; an address without its credentials."""
    return "****" if _is_secret(name) or _AUTHORIZATION.fullmatch(value) else _CREDENTIALS.sub("//****@", value)


def without_credentials(addresses: str) -> str:
    """Addresses, separated by commas, fit for a message, as `shown_address`."""
    return ",".join(map(shown_address, addresses.split(",")))


def shown_address(address: str) -> str:
    """An address, fit for a message: without user, password, query and fragment.

    It may be none: in `user:password@host`, which has no scheme, a parser of addresses finds no password.
    """
    address = re.split("[?#]", address.strip(), maxsplit=1)[0]
    scheme, separator, rest = address.partition("://")
    if not separator or "@" in scheme:
        return address.rpartition("@")[2]
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name.lower()) is not None


def hide_secrets(tree: Any, name: str = "") -> Any:
    """Hide the secrets in a tree of values: all below a secret name, as plug-ins have numbers, lists and mappings."""
    if isinstance(tree, dict):
        return {inner: hide_secrets(item, _meaning(name, str(inner), item)) for inner, item in tree.items()}
    if isinstance(tree, list):
        return [hide_secrets(item, name) for item in tree]
    if isinstance(tree, str):
        return hide_secret(name, tree)
    return tree if tree is None or isinstance(tree, bool) or not _is_secret(name) else "****"


def _meaning(outer: str, inner: str, item: Any) -> str:
    """The name that says whether a value below two names is a secret."""
    if _is_secret(outer):
        return outer
    return "" if outer in _NAMED_BY_USERS and isinstance(item, dict) else inner
