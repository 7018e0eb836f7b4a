"""Watches the consumer group for what would come to this worker: asks now and then, and never waits for the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from processor.errors import Stop
from processor.runtime.standby.assignment_forecast import inherited

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.descriptions import Group, GroupQuestion

log = structlog.stdlib.get_logger("sowstream.standby")

_INTERVAL_S = 1.5  # Also how long a standby may keep a directory from an owner that has come to share it.
_ANSWER_TIMEOUT_S = 5.0


class Lookout:
    """Tells what one worker should be a standby for. One thread only."""

    def __init__(self, admin: Admin, *, group: str, topic: str, replicas: int) -> None:
        """Prepare to look; nothing is asked yet.

        Args:
            admin: whom to ask.
            group: the consumer group.
            topic: what it reads.
            replicas: how many standbys each partition has.
        """
        self._admin = admin
        self._group = group
        self._topic = topic
        self._replicas = replicas
        self._question: GroupQuestion | None = None
        self._next_s = 0.0
        self._complaint = ""
        self._seen: tuple[Group, str] | None = None
        self.wanted: frozenset[int] = frozenset()
        """The partitions that would come to this worker, as of the last time that the group was settled."""
        self.beside: frozenset[tuple[int, str]] = frozenset()
        """The partitions of the other members at this worker's address, each with its owner, as of the same time."""

    def look(self, member: Callable[[], str], now_s: float) -> None:
        """Take an answer that has come, or ask if it is time.

        Args:
            member: tells our own member id, empty while we are no member; asked only when there is an answer.
            now_s: the monotonic clock.
        """
        if self._question is not None:
            if not self._question.is_answered:
                return
            question, self._question = self._question, None
            try:
                self._take(question.answer(), member())
            except Stop as error:
                self._complain(str(error))
        elif now_s >= self._next_s:
            self._next_s = now_s + _INTERVAL_S
            self._question = self._admin.ask_group(self._group, self._topic, _ANSWER_TIMEOUT_S)

    def _take(self, group: Group, member: str) -> None:
        """While partitions move, and while we are out of it, what is known stays."""
        self._complaint = ""
        if group.is_stable and member in group.assigned and self._seen != (group, member):
            self._seen = group, member
            self.wanted = inherited(group.assigned, group.assignor, member, self._replicas, group.hosts)
            self.beside = frozenset(
                (partition, other)
                for other in group.assigned.keys() - {member}
                if group.hosts[other] == group.hosts[member]
                for partition in group.assigned[other]
            )

    def _complain(self, why: str) -> None:
        """Once for each reason: it is asked again and again."""
        if why != self._complaint:
            self._complaint = why
            log.warning("cannot see who would take partitions over", group=self._group, why=why)
