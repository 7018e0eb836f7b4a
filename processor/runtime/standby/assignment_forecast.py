"""Who takes a partition over when its owner dies: foretold by doing what the group's assignor would do.

No client of librdkafka can bring an assignor of its own, and the one that is used knows nothing of who keeps whose
state up to date. So it is the other way round: each worker foretells what the assignor will decide, and keeps a copy of
what would come to itself. A wrong guess costs a restore, and nothing else.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    Assigned = Mapping[str, Collection[int]]

_AT_KAFKA: Final = frozenset(("uniform", "range"))
"""Kafka's own assignors, of the newer group protocol."""


def chains(assigned: Assigned, assignor: str, length: int) -> dict[int, list[str]]:
    """For each partition who gets it when its owner dies, who when that one dies too, and so on.

    Args:
        assigned: the partitions of each member, by member id.
        assignor: the assignor's name.
        length: how many successors; fewer where there are no more members.
    """
    known: dict[tuple[str, ...], Assigned] = {(): assigned}
    found: dict[int, list[str]] = {}
    for owner, partitions in assigned.items():
        for partition in partitions:
            dead: tuple[str, ...] = (owner,)
            while len(dead) <= length and len(dead) < len(assigned):
                if dead not in known:
                    known[dead] = after_death(known[dead[:-1]], dead[-1:], assignor)
                dead += (_owner(known[dead], partition),)
            found[partition] = list(dead[1:])
    return found


def inherited(assigned: Assigned, assignor: str, member: str, length: int, hosts: Mapping[str, str]) -> frozenset[int]:
    """What a member should be a standby for: the partitions in whose chain it is, or that a dead machine leaves to it.

    Args:
        assigned: the partitions of each member, by member id.
        assignor: the assignor's name.
        member: the member's id.
        length: how long the chains are.
        hosts: where each member is. Those of one machine die together, and may have a disk in common.
    """
    found = {partition for partition, chain in chains(assigned, assignor, length).items() if member in chain}
    for host in set(hosts.values()) - {hosts[member]}:
        dead = [other for other in assigned if hosts[other] == host]
        orphans = frozenset[int]().union(*(assigned[other] for other in dead))
        found |= orphans & after_death(assigned, dead, assignor)[member]
    return frozenset(found)


def after_death(assigned: Assigned, dead: Collection[str], assignor: str) -> dict[str, frozenset[int]]:
    """Who has which partitions once these members are dead; some must be left."""
    left = {member: set(partitions) for member, partitions in assigned.items() if member not in dead}
    orphans = [partition for member in dead for partition in assigned[member]]
    if assignor in _AT_KAFKA:
        _even_out(left, orphans)
    else:
        _fill_up(left, orphans)
    return {member: frozenset(partitions) for member, partitions in left.items()}


def _owner(assigned: Assigned, partition: int) -> str:
    return next(member for member, partitions in assigned.items() if partition in partitions)


def _fill_up(left: dict[str, set[int]], orphans: Iterable[int]) -> None:
    """As librdkafka's `cooperative-sticky`: each orphan to whoever has least, of those to the first member id.

    The highest partition comes first, unless nobody has any: librdkafka goes through a map it fills from the front.
    """
    has_any = any(left.values())
    members = [(len(partitions), member) for member, partitions in left.items()]
    heapq.heapify(members)
    for partition in sorted(orphans, reverse=has_any):
        count, member = members[0]
        left[member].add(partition)
        heapq.heapreplace(members, (count + 1, member))


def _even_out(left: dict[str, set[int]], orphans: Iterable[int]) -> None:
    """As Kafka's `uniform`: the members one after the other are filled up to their share.

    What cannot be shared evenly stays with those who have one more already, else the last ones get it. `range` is taken
    for the same; it keeps what it can of the old assignment too.
    """
    unassigned = sorted(orphans)
    least, more = divmod(len(unassigned) + sum(map(len, left.values())), len(left))
    order = _in_java_order(left)
    rooms: dict[str, int] = {}
    for to_come, member in zip(range(len(order), 0, -1), order, strict=True):
        has_more = more > 0
        for partition in sorted(left[member])[least + has_more :]:
            left[member].discard(partition)
            unassigned.append(partition)
        rooms[member] = least + has_more - len(left[member])
        if has_more and rooms[member] > 0 and to_come > more:
            rooms[member] -= 1
        elif has_more:
            more -= 1
    for member, room in rooms.items():
        left[member].update(unassigned[:room])
        del unassigned[:room]


def _in_java_order(members: Iterable[str]) -> list[str]:
    """The order in which Java's `HashMap` gives these keys back, which is Kafka's order of members.

    Two in one bucket come as they were put in, which is not known here; by name is a guess.
    """
    keys = sorted(members)
    buckets = 16
    while len(keys) > buckets * 3 // 4:
        buckets *= 2
    return sorted(keys, key=lambda key: _spread(key) & (buckets - 1))


def _spread(text: str) -> int:
    """Java's `String.hashCode`, its upper half mixed into the lower one as `HashMap` does."""
    code = 0
    for character in text:  # A member id is ASCII.
        code = (code * 31 + ord(character)) & 0xFFFFFFFF
    return code ^ code >> 16
