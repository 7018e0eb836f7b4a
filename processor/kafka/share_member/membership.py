"""The membership in a share group: the epoch of the member and its partitions, by the coordinator's heartbeats.

request 0                      error REJOIN
(new) ------------------------> joined ----------------------> (new), with the same id
|  request epoch: stays; answers may bring other partitions
|  request -1
v
left
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any, Final

from processor.kafka.share_member import answers
from processor.kafka.share_member.protocol import ShareGroupHeartbeatRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

_JOIN, _LEAVE = 0, -1
_FIRST_INTERVAL_S: Final = 0.1
_INTERVAL_S: Final = 5.0


class Membership:
    """One member of a share group that reads one topic. It sends nothing itself."""

    def __init__(self, group: str, topic: str) -> None:
        """Begin outside the group.

        Args:
            group: the share group.
            topic: the topic that the member reads.
        """
        self.group = group
        self.id = _new_id()
        """The member's id, which it chooses itself and keeps."""
        self.epoch = _JOIN
        """0: it is no member."""
        self.partitions: Mapping[uuid.UUID, frozenset[int]] = {}
        """The partitions that it is to read, by the id of their topic."""
        self.joins = 0
        """How often it has joined."""
        self._topic = topic
        self._interval_s = _INTERVAL_S
        self._waits_s = _FIRST_INTERVAL_S

    @property
    def heartbeat(self) -> Any:
        """The next heartbeat."""
        topics = [self._topic] if self.epoch == _JOIN else None
        return ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.id, member_epoch=self.epoch, subscribed_topic_names=topics
        )

    @property
    def farewell(self) -> Any:
        """The last heartbeat."""
        return ShareGroupHeartbeatRequest(group_id=self.group, member_id=self.id, member_epoch=_LEAVE)

    @property
    def pause_s(self) -> float:
        """The time to the next heartbeat: short while the coordinator has given no partitions, longer each time."""
        if self.partitions:
            return self._interval_s
        self._waits_s = min(self._interval_s, self._waits_s * 2)
        return self._waits_s

    def answered(self, answer: Any) -> int:
        """Apply an answer.

        Returns:
            The error code, if the heartbeat is to be repeated; 0 otherwise.

        Raises:
            Stop: the coordinator refuses the member.
        """
        code = answer.error_code
        if code:
            answers.raise_fatal(code, answer.error_message, f"the share group {self.group}")
            if code in answers.REJOIN:
                self.leave()
            return int(code)
        self.joins += self.epoch == _JOIN
        self.epoch = answer.member_epoch
        self._interval_s = answer.heartbeat_interval_ms / 1000 or _INTERVAL_S
        if answer.assignment is not None:
            assigned = answer.assignment.topic_partitions
            self.partitions = {each.topic_id: frozenset(each.partitions) for each in assigned if each.partitions}
            if not self.partitions:
                self._waits_s = _FIRST_INTERVAL_S
        return 0

    def leave(self) -> None:
        """Be outside the group, without partitions: the next heartbeat joins."""
        self.epoch, self.partitions, self._waits_s = _JOIN, {}, _FIRST_INTERVAL_S


def _new_id() -> str:
    """An id as Kafka's own clients make it: brokers read it as a UUID in base 64, and command lines trip on a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
