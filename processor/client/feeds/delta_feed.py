"""A feed of the deltas that a worker wrote to the delta topic: for plain delta subscriptions, which need no state."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from processor.client.feeds.continuity import KEYS_MAX, split
from processor.client.feeds.many_feeds import TopicFeed
from processor.errors import BrokerUnavailable, ConfigurationError, PositionLost, RecordRejected, Stop
from processor.record import Record
from processor.subscriptions import Message, Options, SubscriptionSpec, Topic
from processor.subscriptions.request.subscribed_topic import key_text
from processor.subscriptions.request.subscriber_message import MessageBuilder
from processor.wire.subscriber_headers import read_delta_headers, read_removed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.client.feeds.continuity import Continuity, ReadAgain
    from processor.client.feeds.snapshot_boundary import SnapshotBoundary

log = logging.getLogger("sowstream.client")


class DeltaFeed(TopicFeed[SubscriptionSpec]):
    """Delivers the records of a delta topic; a subscription with `oof`, which gets deletes, uses the engine's feed.

    A delta that does not apply to the version delivered last shows that another is missing. Then the full record is
    read from the SOW topic and delivered.
    """

    def __init__(self, topic: Topic, boundary: SnapshotBoundary, options: Options, read_again: ReadAgain) -> None:
        """Begin at a snapshot boundary, which belongs to the feed from then on.

        Args:
            topic: parses the records.
            boundary: the ends of the delta topic.
            options: the options of a plain delta subscription.
            read_again: reads records of the SOW topic.
        """
        self._deltas = DeltaMessages(topic, options)
        self._topic = topic
        self._boundary = boundary
        self._read_again = read_again
        self._checks = split(KEYS_MAX, boundary.ends)
        self._is_checked = topic.codec.can_delta  # A full record does not depend on an earlier one.
        self._failure: Stop | None = None
        self._healed = 0
        boundary.follow()

    @property
    def is_live(self) -> bool:
        """Always: there is no snapshot."""
        return True

    @property
    def is_over(self) -> bool:
        """Never."""
        return False

    @property
    def healed(self) -> int:
        """Number of records that were read again because a delta was missing."""
        return self._healed

    @property
    def unchecked(self) -> int:
        """Number of keys that were dropped because there were too many, so that their next delta was not checked."""
        return sum(check.forgotten for check in self._checks.values())

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn."""
        if self._failure is not None:
            raise self._failure
        messages: list[Message] = []
        try:
            fetched = self._boundary.after(wait_s)
            for partition, records in fetched.batches:
                self._take(partition, records, messages)
            for partition, end in fetched.ends.items():
                self._reach(partition, end, messages)
            for partition, check in self._checks.items():
                if check.broken:
                    self._heal(partition, check, messages)
        except Stop as error:
            if not messages:
                raise
            self._failure = error  # Raised after the messages before it.
        return messages

    def _take(self, partition: int, records: Sequence[Record], messages: list[Message]) -> None:
        """Add the messages of the next records of a partition."""
        if not records:
            return
        check = self._checks[partition]
        in_use = check if self._is_checked else None
        message_of = self._deltas.message
        for record in records:
            if check.settles_at <= record.offset:
                self._take(partition, check.settle(record.offset), messages)
            if (message := message_of(record, partition, in_use)) is not None:
                messages.append(message)
        check.position = max(check.position, records[-1].offset + 1)

    def _reach(self, partition: int, position: int, messages: list[Message]) -> None:
        """Move a partition to a position before which nothing is left to read."""
        check = self._checks[partition]
        check.position = max(check.position, position)
        if check.settles_at <= check.position:
            self._take(partition, check.settle(check.position), messages)

    def _heal(self, partition: int, check: Continuity, messages: list[Message]) -> None:
        """Read the records of broken keys again, and add them in full; deleted ones are not delivered."""
        broken = dict(check.broken)
        try:
            records, until = self._read_again(partition, broken.keys(), min(broken.values()))
        except BrokerUnavailable as error:
            log.warning("subscription to %s: deltas are missing; trying again: %s", self._topic.name, error)
            return
        log.warning(
            "subscription to %s: partition %d lacks deltas of %d keys, such as %.100r; their records were read again",
            self._topic.name,
            partition,
            len(broken),
            next(iter(broken)),
        )
        for key in broken:
            record = records.get(key)
            version: int | None = 0
            if record is not None and record.value is not None:
                messages.append(self._deltas.whole(record, partition))
                version = read_delta_headers(record.headers).version
            check.heal(key, version, until)
            self._healed += 1
        self._reach(partition, check.position, messages)

    def add(self, request: SubscriptionSpec, sub_id: str | None) -> str:  # noqa: ARG002
        """Always rejected: other subscriptions need the records."""
        raise ConfigurationError(
            "this subscription reads written deltas, which cannot serve other subscriptions: give it a sub_id when "
            "it is opened, or open the other one by itself"
        )

    def remove(self, sub_id: str) -> None:
        """Always rejected: the only subscription has no name."""
        raise ConfigurationError(f"there is no subscription {sub_id!r}")

    def begin_again(self, reason: str) -> None:
        """Always rejected: there is no snapshot."""
        raise PositionLost(f"{self._topic.name}: {reason}")

    def close(self, *, delivered: bool) -> None:  # noqa: ARG002
        """End it."""
        self._boundary.close()


class DeltaMessages:
    """Converts records of a delta topic to messages."""

    def __init__(self, topic: Topic, options: Options) -> None:
        self._topic = topic
        self._name = topic.name
        codec = self._codec = topic.codec
        self._own, self._can_delta = codec.decode_own, codec.can_delta
        self._reads_headers = codec.uses_headers and codec.can_delta
        self._no_empties = options.no_empties
        self._builder = MessageBuilder(topic, options, delta=True)

    def message(self, record: Record, partition: int, check: Continuity | None = None) -> Message | None:
        """The message of a record of the delta topic; None if it has none.

        Args:
            record: the record.
            partition: its partition.
            check: decides whether it may be delivered; None: it always may.

        Raises:
            Stop: a worker cannot have written the record.
        """
        try:
            return self._message(record, check)
        except (RecordRejected, UnicodeDecodeError) as error:
            place = f"partition {partition}, offset {record.offset} of its delta topic, key {key_text(record)!r:.100},"
            raise Stop(f"{self._name}: {place} is not what a worker writes: {error}") from error

    def whole(self, record: Record, partition: int) -> Message:
        """The message of a record of the SOW topic, delivered in place of missing deltas.

        Raises:
            Stop: a worker cannot have written the record.
        """
        return self._builder.full("publish", record, self._topic.value(record, partition))

    def _message(self, record: Record, check: Continuity | None) -> Message | None:
        key, value, named, _, _ = record
        if key is None or value is None:
            return None
        headers = read_delta_headers(named)
        if check is not None and not check.admits(record, headers):
            return None
        kind, _, base, is_empty, removed = headers
        if kind in ("delete", "expire") or (is_empty and self._no_empties):
            return None
        # Some message types have a part of the delta in the headers.
        data = (
            self._codec.decode_command(value, named or [], is_delta=True) if self._reads_headers else self._own(value)
        )
        if type(data) is not dict and self._can_delta:
            raise RecordRejected("not_an_object", "a delta is an object")
        return self._builder.written_delta(
            record,
            data,
            delta=kind != "insert" and base != 0 and self._can_delta,
            removed=read_removed(removed),
        )
