"""The share session with one broker: which partitions it knows, and the number of the next request.

fetch 0, all partitions            fetch or acknowledge 1, 2, …: only the differences
(closed) --------------------------> open ---------------------------------------------------> open
^                                   |
+--------- restart: the connection or the broker has lost it ---- or acknowledge -1: closed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from processor.kafka.share_member.lease_book import RENEW, ack_batches
from processor.kafka.share_member.protocol import ACQUIRE_EXACTLY, ShareAcknowledgeRequest, ShareFetchRequest

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping

    from processor.kafka.share_member.lease_book import Outcomes

_OPEN, _CLOSE = 0, -1
_EPOCH_MAX: Final = 2**31 - 1
_MIN_BYTES: Final = 1
_BYTES_MAX: Final = 50 * 1024 * 1024


class ShareSession:
    """The share session of one member with one broker. It sends nothing itself; one request at a time."""

    def __init__(self, group: str, member_id: str) -> None:
        self._group, self._member_id = group, member_id
        self._epoch = _OPEN
        self._topic: uuid.UUID | None = None
        self._partitions: frozenset[int] = frozenset()
        self._next: tuple[uuid.UUID | None, frozenset[int]] = None, frozenset()

    @property
    def is_open(self) -> bool:
        """Whether the broker knows the session: outcomes need one."""
        return self._epoch != _OPEN

    def fetch(
        self, topic: uuid.UUID, partitions: Iterable[int], outcomes: Outcomes, *, records_max: int, wait_ms: int
    ) -> Any:
        """A request for records, which acknowledges others.

        Args:
            topic: the topic's id.
            partitions: the partitions to read.
            outcomes: outcomes of records of these partitions; none while the session is not open.
            records_max: most records.
            wait_ms: the longest wait for the first record, milliseconds.
        """
        wanted = frozenset(partitions)
        # A topic that was created again is another one to the broker.
        present = self._partitions if topic == self._topic else frozenset()
        named = sorted((wanted - present) | outcomes.keys())
        part = ShareFetchRequest.FetchTopic.FetchPartition
        topics = [
            ShareFetchRequest.FetchTopic(
                topic_id=topic,
                partitions=[
                    part(partition_index=each, acknowledgement_batches=_batches(part, outcomes.get(each, {})))
                    for each in named
                ],
            )
        ]
        forgotten = [] if self._topic is None or not self.is_open else self._forgotten(topic, wanted)
        self._next = topic, wanted
        return ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=wait_ms,
            min_bytes=_MIN_BYTES,
            max_bytes=_BYTES_MAX,
            max_records=records_max,
            batch_size=records_max,
            share_acquire_mode=ACQUIRE_EXACTLY,
            topics=topics if named else [],
            forgotten_topics_data=forgotten,
        )

    def acknowledge(self, topic: uuid.UUID | None, outcomes: Outcomes, *, closes: bool = False) -> Any:
        """A request that acknowledges only; `closes` ends the session with it, and gives back what is held."""
        part = ShareAcknowledgeRequest.AcknowledgeTopic.AcknowledgePartition
        parts = [
            part(partition_index=each, acknowledgement_batches=_batches(part, outcomes[each]))
            for each in sorted(outcomes)
        ]
        renews = any(code == RENEW for each in outcomes.values() for code in each.values())
        self._next = self._topic, self._partitions
        return ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=_CLOSE if closes else self._epoch,
            is_renew_ack=renews,
            topics=[ShareAcknowledgeRequest.AcknowledgeTopic(topic_id=topic, partitions=parts)] if parts else [],
        )

    def went_on(self) -> None:
        """The broker has taken the request."""
        self._epoch = self._epoch + 1 if self._epoch < _EPOCH_MAX else 1
        self._topic, self._partitions = self._next

    def restart(self) -> None:
        """Begin again: the next request opens a session."""
        self._epoch, self._topic, self._partitions = _OPEN, None, frozenset()

    def _forgotten(self, topic: uuid.UUID, wanted: frozenset[int]) -> list[Any]:
        gone = self._partitions - wanted if topic == self._topic else self._partitions
        if not gone:
            return []
        return [ShareFetchRequest.ForgottenTopic(topic_id=self._topic, partitions=sorted(gone))]


def _batches(part: Any, outcomes: Mapping[int, int]) -> list[Any]:
    return [
        part.AcknowledgementBatch(first_offset=each.first, last_offset=each.last, acknowledge_types=[each.code])
        for each in ack_batches(outcomes)
    ]
