"""Polls the consumer group for the partitions of which this worker should keep standbys, without blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from processor.errors import Stop
from processor.runtime.standby.assignment_forecast import standby_partitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.descriptions import ConsumerGroup, GroupQuestion

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
        self._question: GroupQuestion | None = None
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
        if group.is_stable and member in group.assigned and self._seen != (group, member):
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
