"""Hides secrets from logs: passwords, tokens, credentials in addresses."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

_SECRET_WORDS = (
    "password", "passwd", "passphrase", "secret", "token", "credential", "user.info", "sasl.jaas", "oauthbearer.config",
    "key.pem", "keystore.key", "api_key", "api.key", "apikey", "access_key", "access.key", "private_key", "private.key",
)  # fmt: skip
_CREDENTIALS = re.compile(r"//[^/@\s]+@")


def hide_secret(name: str, value: str) -> str:
    """The value of a property, or stars if its name means a secret; an address without its credentials."""
    return "****" if _is_secret(name) else _CREDENTIALS.sub("//****@", value)


def without_credentials(addresses: str) -> str:
    """Addresses, separated by commas, reduced to scheme, host, port and path: user, password and query are left out."""
    parts = (urlsplit(address.strip()) for address in addresses.split(","))
    return ",".join(urlunsplit((part.scheme, part.netloc.rpartition("@")[2], part.path, "", "")) for part in parts)


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_WORDS)


def hide_secrets(tree: Any, name: str = "") -> Any:
    """Hide the secrets in a tree of values: plug-ins have passwords too, and some are numbers, or lists of them."""
    if isinstance(tree, dict):
        return {inner: hide_secrets(item, inner) for inner, item in tree.items()}
    if isinstance(tree, list):
        return [hide_secrets(item, name) for item in tree]
    if isinstance(tree, str):
        return hide_secret(name, tree)
    return tree if tree is None or isinstance(tree, bool) or not _is_secret(name) else "****"
