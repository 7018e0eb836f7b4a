"""JSON Pointer (RFC 6901): the spelling of paths where they are data.

A pointer names members of objects. Into an array nothing merges, so no pointer here leads into one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Final, TypeAlias

from processor.errors import RecordRejected
from processor.record import Value
from processor.values.kinds import MISSING

Touched: TypeAlias = dict[str, "Touched"]
"""The touched members of an object, each with the touched members below it; an empty one was touched whole.

It holds names only: it may live as long as the interval and keeps no record alive.
"""

GONE_CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""Longest list of removed paths, in characters: it goes into one header of one record."""

_SHORT: Final = 256
"""A path up to this long, before each member of a record that may be stored, is no trouble."""

_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


def child(parent: str, name: str) -> str:
    """The pointer of a member: `/customer` and `a/b` give `/customer/a~1b`. The record itself is the empty string."""
    if "~" in name or "/" in name:
        name = name.replace("~", "~0").replace("/", "~1")
    return f"{parent}/{name}"


def note_gone(removed: list[str], path: str, gone: Collection[str]) -> None:
    """Append the pointers of members that an object at a path has lost.

    Each repeats the path: under one long name, a record of a megabyte has gigabytes of them.

    Raises:
        RecordRejected: `too_large`: more than a header may hold.
    """
    added = len(path) * len(gone)
    if len(path) > _SHORT and added + sum(map(len, removed)) > GONE_CHARACTERS_MAX:
        raise RecordRejected(
            "too_large",
            f"removed: the paths of what is gone, below {path[:100]!r}, have more than {GONE_CHARACTERS_MAX} "
            "characters; sow_delete the record, then publish it",
        )
    removed.extend([child(path, name) for name in gone])


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


def pointer_of(path: Iterable[str]) -> str:
    """The pointer of a path of names: the reverse of `names`."""
    pointer = ""
    for name in path:
        pointer = child(pointer, name)
    return pointer


def nested(paths: Iterable[tuple[str, ...]]) -> tuple[str, str] | None:
    """The pointers of a path that lies inside another one, and of that; None: a record can have a value at each."""
    # What lies inside a path comes right behind it.
    for outer, inner in pairwise(sorted(paths)):
        if len(inner) > len(outer) and inner[: len(outer)] == outer:
            return pointer_of(inner), pointer_of(outer)
    return None


def find(value: Value, path: tuple[str, ...]) -> Value:
    """The value at a path of names, or MISSING."""
    for name in path:
        if type(value) is not dict:
            return MISSING
        value = value.get(name, MISSING)
    return value
