"""The keys at which the two sides of a join meet: the texts of the fields that must be equal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from processor.filter.aggregate import plain
from processor.filter.evaluation import UNCOUNTED, compile_path
from processor.filter.value import first
from processor.values.key_text import group_key
from processor.values.pointer import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.api import Value

KEPT: Final = b"k"
"""Begins the member of a reference that lies where the rows are."""

LEFT: Final = b"l"
"""Begins the member of a record of the underlying, and of a reference to one."""

RIGHT: Final = b"r"
"""Begins the member of a record of a joined topic, and of the answer about one."""

BEFORE_RIGHT: Final = b"q"
"""Sorts behind all members that begin with `KEPT` or `LEFT` and before those that begin with `RIGHT`."""


def join_key(pointers: Iterable[str]) -> Callable[[Value], str | None]:
    """Return a function of a record: its key in a join, None where one of the fields is NULL, which equals nothing.

    Args:
        pointers: the fields, as JSON Pointers.
    """
    paths = [compile_path(names(pointer)) for pointer in pointers]

    def key(record: Value) -> str | None:
        values = tuple([plain(first(path(record, UNCOUNTED))) for path in paths])
        return None if None in values else group_key(values).decode(errors="surrogatepass")

    return key


def meeting(place: int, key: str) -> bytes:
    """Return the group in which the records with a key meet.

    Args:
        place: the number of the joined topic in the view, from 1.
        key: the key.
    """
    return b"%d/%b" % (place, key.encode(errors="surrogatepass"))


def answer_member(place: int, key: str = "") -> bytes:
    """Return the member of the answer about a partner; `key` is empty where the records meet by their own keys."""
    return RIGHT + meeting(place, key)


def write_keys(keys: list[str | None]) -> bytes:
    """Write the keys of a record of the underlying, one for each joined topic."""
    return json.dumps(keys).encode()


def read_keys(data: bytes) -> list[str | None]:
    """Read the keys that `write_keys` wrote."""
    keys: list[str | None] = json.loads(data)
    return keys
