"""JSON Pointer (RFC 6901): the spelling of paths where they are data.

A pointer names members of objects. Into an array nothing merges, so no pointer here leads into one.
"""

from __future__ import annotations

import re
from typing import Final

_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


def child(parent: str, name: str) -> str:
    """The pointer of a member: `/customer` and `a/b` give `/customer/a~1b`. The record itself is the empty string."""
    if "~" in name or "/" in name:
        name = name.replace("~", "~0").replace("/", "~1")
    return f"{parent}/{name}"


def names(pointer: str) -> tuple[str, ...]:
    """The member names a pointer leads through: `/customer/a~1b` gives `("customer", "a/b")`.

    Raises:
        ValueError: not a JSON Pointer.
    """
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON Pointer: it does not start with /")
    if _BAD_ESCAPE.search(pointer):
        raise ValueError(f"{pointer!r} is not a JSON Pointer: ~ stands alone; write ~0")
    # In this order: the other way, `~01` would become `/`.
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))
