r"""The last record of each partition of a topic that has moved: a tombstone whose key names the topic in its place.

::

    key      \0sowstream/moved/orders_12
    value    none
    headers  version 1

Readers of ours stop at it with an error that names the topic. To others it is a delete of a key that never was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.wire.headers import Name

if TYPE_CHECKING:
    from processor.record import Outgoing

_BEGINNING: Final = b"\0sowstream/moved/"


def moved_record(name: str) -> Outgoing:
    """Return the record of a topic whose place the topic of this name has taken."""
    return _BEGINNING + name.encode(), None, [(Name.VERSION, b"1")]


def moved_to(key: bytes | None) -> str | None:
    """Return the topic that a record with this key names; None for a record of any other kind."""
    if key is None or not key.startswith(_BEGINNING):
        return None
    return key[len(_BEGINNING) :].decode(errors="replace")
