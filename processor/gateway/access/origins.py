"""The check of the header `Origin`: pages of other sites may connect only if they are listed."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit


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
