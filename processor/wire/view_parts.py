"""The records of a view's internal topics: keys that sort by group, and the values of contributions.

A key is a group and a member of it, so that the members of a group stand together in a table::

    length of the group     big-endian uint32
    group                   the bytes of the row's key, or of a join's common key
    `m`                     one byte, so that a member with an empty key comes behind the group's beginning
    member                  the key of the record

A record that is in another partition than its key's own has `p` and the partition, big-endian uint32, in place of the
`m`: another partition may have a record with the same key, which is another member.

A contribution is a JSON array: timestamp in milliseconds, partition, offset, grouping values, arguments. The state of
the first stage has for each record the group that it is in: `g` and the group, or `p` and the group where the part has
the partition. With partial aggregation it has such a value as the key of each group of which a part was sent, and the
state is `1`; of a group whose totals are not in memory `1`, a word of the instance that wrote them, a colon, and as
JSON the totals, see `GroupTotals`. Each partition of a stage has the fingerprint of the view's definition in its marks.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.values.key_text import KEY_VERSION

if TYPE_CHECKING:
    from processor.config import ViewConfig
    from processor.record import Headers

_LENGTH: Final = struct.Struct(">I")
_MEMBER: Final = b"m"
_GROUP: Final = b"g"
_AWAY: Final = b"p"
_PARTITION: Final = struct.Struct(">I")

GroupTotals: TypeAlias = tuple[int, Sequence[tuple[int, int, int]], Sequence[tuple[bool, Sequence[tuple[int, int]]]]]
"""The members of a group; of each argument the count, the sum and its decimals; and of each extreme whether values were
forgotten, and those nearest to it, which is the last: a number and its decimals, 0 for an integer."""

SENT: Final = b"1"
"""The state of a group of which a part was sent."""

DEFINITION_MARK: Final = b"definition"
"""The mark of a stage's partition with the fingerprint of the view that it was built for."""

AWAY_WORD: Final = b" away"
"""Behind the fingerprint where a member has its partition: versions that do not know such members refuse the state."""

ROUTE_HEADERS: Final[Headers] = [("version", b"1")]
"""The headers of a record of the first stage's state, as every SOW record has them."""


def group_prefix(group: bytes) -> bytes:
    """Return the beginning of the keys of a group's members, which sort behind it."""
    return _LENGTH.pack(len(group)) + group


def member_key(group: bytes, member: bytes) -> bytes:
    """Return the key of a member of a group."""
    return _LENGTH.pack(len(group)) + group + _MEMBER + member


def away_prefix(group: bytes, partition: int) -> bytes:
    """Return the beginning of the keys of a group's members in a partition that is not that of their keys."""
    return group_prefix(group) + _AWAY + _PARTITION.pack(partition)


def group_of(key: bytes) -> bytes:
    """Return the group of a member's key.

    Raises:
        ValueError: it is no such key.
    """
    end = _LENGTH.size + int.from_bytes(key[: _LENGTH.size], "big")
    if end >= len(key):
        raise ValueError(f"{key!r:.100} is no key of a view's part")
    return key[_LENGTH.size : end]


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """Return the group and the member of a member's key.

    Raises:
        ValueError: it is no such key.
    """
    group = group_of(key)
    return group, key[_LENGTH.size + len(group) + len(_MEMBER) :]


def route_value(group: bytes) -> bytes:
    """Return the value of the first stage's state: the group that a record is in."""
    return _GROUP + group


def away_route_value(group: bytes) -> bytes:
    """Return the same of a record in a partition that is not that of its key."""
    return _AWAY + group


def is_away_route(value: bytes) -> bool:
    """Return whether such a value is that of a record in a partition that is not that of its key."""
    return value.startswith(_AWAY)


def group_of_route(value: bytes) -> bytes:
    """Return the group of such a value."""
    return value[len(_GROUP) :]


def totals_state(word: bytes, totals: GroupTotals) -> bytes:
    """Return the state of a group whose totals are not in memory.

    Args:
        word: that of the instance, without a colon.
        totals: the totals.
    """
    return b"%b%b:%b" % (SENT, word, json.dumps(totals, separators=(",", ":")).encode())


def totals_of_state(state: bytes, word: bytes) -> GroupTotals | None:
    """Return the totals that an instance wrote; None: the state has none of that instance."""
    begin = b"%b%b:" % (SENT, word)
    if not state.startswith(begin):
        return None
    members, sums, extremes = json.loads(state[len(begin) :])
    return members, sums, extremes


def in_array(message: bytes) -> bytes:
    """Return a JSON message as the only element of an array; a space at its end marks long numbers, and stays there."""
    value = message.rstrip(b" ")
    return b"[" + value + b"]" + message[len(value) :]


_PARTS: Final = frozenset(("underlying", "filter", "group_by", "join", "join_method", "fields", "having", "partitions"))


def fingerprint(settings: ViewConfig, *, keys_version: int = KEY_VERSION) -> bytes:
    """Return a short text that two equal definitions share, and no others.

    Args:
        settings: the definition.
        keys_version: the version of the law by which grouping values and join keys make keys.
    """
    parts = settings.model_dump(mode="json", include=set(_PARTS))
    if settings.partial_aggregation:  # Other views keep the fingerprint that they had before there was this setting.
        parts["partial_aggregation"] = True
    # Records that meet by their own keys make no others, and neither does a view whose records are all one group.
    if keys_version > 1 and (settings.group_by or settings.join_method in {"repartition", "broadcast"}):
        parts["keys"] = keys_version
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32].encode()
