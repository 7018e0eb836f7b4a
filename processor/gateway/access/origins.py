"""The checks of the headers `Origin` and `Host`: pages of other sites may connect only if they are listed."""

from __future__ import annotations

import ipaddress
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
