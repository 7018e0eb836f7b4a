"""The records of a view's internal topics: keys that sort by group, and the values of contributions.

A key is a group and a member of it, so that the members of a group stand together in a table::

    length of the group     big-endian uint32
    group                   the bytes of the row's key, or of a join's common key
    `m`                     one byte, so that a member with an empty key comes behind the group's beginning; or `p`
    member                  the key of the record; behind `p` the number of an input partition

A contribution is a JSON array: timestamp in milliseconds, partition, offset, grouping values, arguments. Of the records
of a partition together it has, in place of the arguments, the number of records and the state of each aggregate, and at
the end the text `combined`.

The state of the first stage has for each record the group that it is in, `g` and the group, or in a view that combines,
under such a value as the key, `1` for each group of which a part was sent. Both may stand under one key, one after the
other, while a view begins to combine.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from processor.record import Headers

_LENGTH: Final = struct.Struct(">I")
_MEMBER: Final = b"m"
_PARTITION: Final = b"p"
_GROUP: Final = b"g"
_SENT: Final = b"1"

COMBINED_MARK: Final = "combined"
"""The last element of the contribution of all records of a partition."""

ROUTE_HEADERS: Final[Headers] = [("version", b"1")]
"""The headers of a record of the first stage's state, as every SOW record has them."""


def group_prefix(group: bytes) -> bytes:
    """Return the beginning of the keys of a group's members, which sort behind it."""
    return _LENGTH.pack(len(group)) + group


def member_key(group: bytes, member: bytes) -> bytes:
    """Return the key of a member of a group."""
    return _LENGTH.pack(len(group)) + group + _MEMBER + member


def partition_key(group: bytes, partition: int) -> bytes:
    """Return the key of the part of a group's records in an input partition."""
    return _LENGTH.pack(len(group)) + group + _PARTITION + b"%d" % partition


def group_of(key: bytes) -> bytes:
    """Return the group of a member's key.

    Raises:
        ValueError: it is no such key.
    """
    end = _LENGTH.size + int.from_bytes(key[: _LENGTH.size], "big")
    if end >= len(key):
        raise ValueError(f"{key!r:.100} is no key of a view's part")
    return key[_LENGTH.size : end]


def member_of(key: bytes) -> bytes:
    """Return the member's own part of a key."""
    return key[_LENGTH.size + len(group_of(key)) + len(_MEMBER) :]


def route_value(group: bytes) -> bytes:
    """Return the value of the first stage's state: the group that a record is in."""
    return _GROUP + group


def group_of_route(value: bytes) -> bytes:
    """Return the group of such a value."""
    return value[len(_GROUP) :]


def sent_value(former: bytes | None, *, is_sent: bool) -> bytes | None:
    """Return the state of a group, of which a part was sent or not, next to that of a record with the same key.

    Args:
        former: the state under the key before; None: there is none.
        is_sent: whether a part of the group was sent.

    Returns:
        None: neither needs a state.
    """
    return ((_SENT if is_sent else b"") + (former or b"").removeprefix(_SENT)) or None


def is_sent_value(value: bytes) -> bool:
    """Return whether a state says that a part of a group was sent."""
    return value.startswith(_SENT)


def former_group(value: bytes) -> bytes | None:
    """Return the group of a record of which a part was sent before the view combined; None: it has none."""
    route = value.removeprefix(_SENT)
    return group_of_route(route) if route else None


def in_array(message: bytes) -> bytes:
    """Return a JSON message as the only element of an array; a space at its end marks long numbers, and stays there."""
    value = message.rstrip(b" ")
    return b"[" + value + b"]" + message[len(value) :]
