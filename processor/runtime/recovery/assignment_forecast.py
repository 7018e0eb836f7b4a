"""Forecasts the next owner of a partition if its owner dies, by simulating the group's assignor.

librdkafka supports no custom assignors, and its own do not know which member has a standby of a partition. So each
worker forecasts the assignor's decision, and keeps standbys of the partitions that it would get itself. A wrong
forecast costs a restore, and nothing else.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.groups import ConsumerGroup
    from processor.kafka.admin.questions import Question

    Assigned = Mapping[str, Collection[int]]

_AT_KAFKA: Final = frozenset(("uniform", "range"))
"""Kafka's server-side assignors, of the newer group protocol."""


def successors(assigned: Assigned, assignor: str, length: int) -> dict[int, list[str]]:
    """List for each partition its next owner if the owner dies, the one after if that one dies too, and so on.

    Args:
        assigned: the partitions of each member, by member id.
        assignor: the assignor's name.
        length: the number of successors; fewer if there are not enough members.
    """
    forecasts: dict[tuple[str, ...], Assigned] = {(): assigned}
    successors_of: dict[int, list[str]] = {}
    for owner, partitions in assigned.items():
        for partition in partitions:
            dead: tuple[str, ...] = (owner,)
            while len(dead) <= length and len(dead) < len(assigned):
                if dead not in forecasts:
                    forecasts[dead] = after_death(forecasts[dead[:-1]], dead[-1:], assignor)
                dead += (next(member for member, owned in forecasts[dead].items() if partition in owned),)
            successors_of[partition] = list(dead[1:])
    return successors_of


def standby_partitions(
    assigned: Assigned, assignor: str, member: str, length: int, hosts: Mapping[str, str]
) -> frozenset[int]:
    """The partitions for which a member should keep standbys: it succeeds their owner, or their owner's machine.

    Args:
        assigned: the partitions of each member, by member id.
        assignor: the assignor's name.
        member: the member's id.
        length: the number of successors of each partition.
        hosts: the address of each member. Members of one machine die together, and may share a disk.
    """
    partitions = {partition for partition, heirs in successors(assigned, assignor, length).items() if member in heirs}
    for host in set(hosts.values()) - {hosts[member]}:
        dead = [other for other in assigned if hosts[other] == host]
        orphans = frozenset[int]().union(*(assigned[other] for other in dead))
        partitions |= orphans & after_death(assigned, dead, assignor)[member]
    return frozenset(partitions)


def after_death(assigned: Assigned, dead: Collection[str], assignor: str) -> dict[str, frozenset[int]]:
    """Forecast the assignment after the death of some members, but not all."""
    left = {member: set(partitions) for member, partitions in assigned.items() if member not in dead}
    orphans = [partition for member in dead for partition in assigned[member]]
    if assignor in _AT_KAFKA:
        _even_out(left, orphans)
    else:
        _fill_up(left, orphans)
    return {member: frozenset(partitions) for member, partitions in left.items()}


def _fill_up(left: dict[str, set[int]], orphans: Iterable[int]) -> None:
    """Assign like librdkafka's `cooperative-sticky`: each orphan to the member with the fewest, first by member id.

    The highest partition is assigned first, unless no member has any: librdkafka iterates over a map in this order.
    """
    has_any = any(left.values())
    members = [(len(partitions), member) for member, partitions in left.items()]
    heapq.heapify(members)
    for partition in sorted(orphans, reverse=has_any):
        count, member = members[0]
        left[member].add(partition)
        heapq.heapreplace(members, (count + 1, member))


def _even_out(left: dict[str, set[int]], orphans: Iterable[int]) -> None:
    """Assign like Kafka's `uniform`: fill up one member after the other to its share.

    A remainder stays with the members that have one partition more already; else the last members get it. `range` is
    treated in the same way, as it keeps as much as possible of the old assignment too.
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
    """Sort members in the iteration order of Java's `HashMap`, which is Kafka's order of members.

    Members of one bucket are in the order of insertion, which is unknown here and guessed to be that of their names.
    """
    keys = sorted(members)
    buckets = 16
    while len(keys) > buckets * 3 // 4:
        buckets *= 2
    return sorted(keys, key=lambda key: _spread(key) & (buckets - 1))


def _spread(text: str) -> int:
    """Compute Java's `String.hashCode`, with its upper half mixed into the lower one as in `HashMap`."""
    code = 0
    for character in text:  # A member id is ASCII.
        code = (code * 31 + ord(character)) & 0xFFFFFFFF
    return code ^ code >> 16


log = structlog.stdlib.get_logger("sowstream.standby")

_INTERVAL_S = 1.5  # Also the longest time that a standby may lock a directory which its new owner shares.
_ANSWER_TIMEOUT_S = 5.0


class GroupWatcher:
    """Determines the partitions of which one worker should keep standbys. One thread only."""

    def __init__(self, admin: Admin, *, group: str, topic: str, replicas: int) -> None:
        """Create it; no request is sent yet.

        Args:
            admin: sends the requests.
            group: the consumer group.
            topic: the topic that the group reads.
            replicas: the number of standbys of each partition.
        """
        self._admin = admin
        self._group = group
        self._topic = topic
        self._replicas = replicas
        self._question: Question[ConsumerGroup] | None = None
        self._next_s = 0.0
        self._last_error = ""
        self._seen: tuple[ConsumerGroup, str] | None = None
        self.partitions: frozenset[int] = frozenset()
        """The partitions that this worker would get next, as of the last time that the group was stable."""
        self.colocated: frozenset[tuple[int, str]] = frozenset()
        """The partitions of other members at this worker's address, each with its owner, as of the same time."""

    def look(self, member: Callable[[], str], now_s: float) -> None:
        """Take an answer that has arrived, or ask again after the interval.

        Args:
            member: returns the worker's member id, empty while it is no member; called only when there is an answer.
            now_s: the monotonic clock.
        """
        if self._question is not None:
            if not self._question.is_answered:
                return
            question, self._question = self._question, None
            try:
                self._take(question.answer(), member())
            except Stop as error:
                self._warn(str(error))
        elif now_s >= self._next_s:
            self._next_s = now_s + _INTERVAL_S
            self._question = self._admin.ask_group(self._group, self._topic, _ANSWER_TIMEOUT_S)

    def _take(self, group: ConsumerGroup, member: str) -> None:
        """Update the forecast, unless a rebalance is under way or this worker is no member."""
        self._last_error = ""
        if group.state == "stable" and member in group.assigned and self._seen != (group, member):
            self._seen = group, member
            self.partitions = standby_partitions(group.assigned, group.assignor, member, self._replicas, group.hosts)
            self.colocated = frozenset(
                (partition, other)
                for other in group.assigned.keys() - {member}
                if group.hosts[other] == group.hosts[member]
                for partition in group.assigned[other]
            )

    def _warn(self, why: str) -> None:
        """Log an error once, not each time that it recurs."""
        if why != self._last_error:
            self._last_error = why
            log.warning("cannot see who would take partitions over", group=self._group, why=why)
