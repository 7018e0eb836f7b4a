"""A queue's share group as its brokers show it: the positions, and the limit of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.client.queue.stall_guard import LOCKS, Sight
from processor.kafka.admin.share_groups import ShareGroups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ShareGroupView:
    """One share group and its topic."""

    def __init__(self, kafka: Mapping[str, str], group: str, topic: str, partitions: Sequence[int]) -> None:
        """Ask nothing yet.

        Args:
            kafka: librdkafka properties.
            group: the share group.
            topic: the queue topic.
            partitions: its partitions.
        """
        self._kafka, self._group, self._topic, self._partitions = kafka, group, topic, partitions

    def look(self) -> Sight:
        """Ask the brokers.

        Raises:
            SowstreamError: no answer in time, or Kafka refuses.
        """
        from processor.kafka.share_offsets.share_offsets import share_positions  # noqa: PLC0415 - slow, and for few

        settings = ShareGroups(self._kafka).settings(self._group)
        positions = share_positions(self._kafka, self._group, self._topic, self._partitions)
        waiting = {number: each.start for number, each in positions.items() if each.lag > 0}
        return Sight(int(settings.get(LOCKS, 0)), waiting)

    def set_locks(self, locks: int) -> None:
        """Set the limit.

        Raises:
            SowstreamError: Kafka refuses.
        """
        ShareGroups(self._kafka).set(self._group, {LOCKS: str(locks)})
