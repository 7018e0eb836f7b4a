"""The deltas that the worker wrote, from the delta topic: for plain delta subscriptions, which need no state."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from processor.client.feeds.continuity import KEYS_MAX, delta_headers, split
from processor.errors import BrokerUnavailable, ConfigurationError, PositionLost, RecordRejected, Stop
from processor.record import Name, Record
from processor.subscriptions import Message, Options, SubscriptionSpec, Topic
from processor.subscriptions.message_builder import MessageBuilder
from processor.subscriptions.topic import key_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.client.feeds.continuity import Continuity
    from processor.client.feeds.reread import ReadAgain
    from processor.client.feeds.snapshot_boundary import Cut

log = logging.getLogger("sowstream.client")


class WrittenFeed:
    """Delivers each record of a delta topic; deletions are delivered with `oof` only, and so by another feed.

    A delta that does not apply to the version delivered last shows that one is missing. The record is then read again
    from the SOW topic and delivered in full.
    """

    def __init__(
        self, topic: Topic, cut: Cut, options: Options, read_again: ReadAgain, *, keys_max: int = KEYS_MAX
    ) -> None:
        """Begin behind a cut, which belongs to it from then on.

        Args:
            topic: what the records are.
            cut: the ends of the delta topic.
            options: those of a plain delta subscription.
            read_again: reads records of the SOW topic.
            keys_max: keys whose version is remembered.
        """
        self._deltas = WrittenDeltas(topic, options)
        self._topic = topic
        self._cut = cut
        self._read_again = read_again
        self._checks = split(keys_max, cut.ends)
        self._is_checked = topic.codec.can_delta  # A full record needs none before it.
        self._failure: Stop | None = None
        self._healed = 0
        cut.follow()

    @property
    def is_live(self) -> bool:
        """There is no past."""
        return True

    @property
    def is_over(self) -> bool:
        """It goes on."""
        return False

    @property
    def healed(self) -> int:
        """How many times a record was read again because a delta of it was missing."""
        return self._healed

    @property
    def unchecked(self) -> int:
        """How many times a key was forgotten, as there are too many, so that its next delta was not checked."""
        return sum(check.forgotten for check in self._checks.values())

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn."""
        if self._failure is not None:
            raise self._failure
        messages: list[Message] = []
        try:
            arrived = self._cut.after(wait_s)
            for partition, records in arrived.batches:
                self._take(partition, records, messages)
            for partition, end in arrived.ends.items():
                self._reach(partition, end, messages)
            for partition, check in self._checks.items():
                if check.broken:
                    self._heal(partition, check, messages)
        except Stop as error:
            if not messages:
                raise
            self._failure = error  # Behind what came before it.
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
        """Take note that a partition has nothing before a position that was not read."""
        check = self._checks[partition]
        check.position = max(check.position, position)
        if check.settles_at <= check.position:
            self._take(partition, check.settle(check.position), messages)

    def _heal(self, partition: int, check: Continuity, messages: list[Message]) -> None:
        """Read the records of broken keys again, and add them in full; those that are gone are not delivered."""
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
                version = delta_headers(record.headers).version
            check.heal(key, version, until)
            self._healed += 1
        self._reach(partition, check.position, messages)

    def add(self, request: SubscriptionSpec, sub_id: str | None) -> str:  # noqa: ARG002
        """Not here: others need the records."""
        raise ConfigurationError(
            "this subscription reads written deltas, which tell nothing of other subscriptions: give it a sub_id when "
            "it is opened, or open the other one by itself"
        )

    def remove(self, sub_id: str) -> None:
        """There is only one, without a name."""
        raise ConfigurationError(f"there is no subscription {sub_id!r}")

    def begin_again(self, reason: str) -> None:
        """Not here: there is no snapshot."""
        raise PositionLost(f"{self._topic.name}: {reason}")

    def close(self, *, told: bool) -> None:  # noqa: ARG002
        """End it."""
        self._cut.close()


class WrittenDeltas:
    """Makes messages of what a worker wrote to the delta topic."""

    def __init__(self, topic: Topic, options: Options) -> None:
        self._topic = topic
        self._name = topic.name
        codec = self._codec = topic.codec
        self._own, self._can_delta = codec.decode_own, codec.can_delta
        self._reads_headers = codec.uses_headers and codec.can_delta
        self._no_empties = options.no_empties
        self._builder = MessageBuilder(topic, options, delta=True)

    def message(self, record: Record, partition: int, check: Continuity | None = None) -> Message | None:
        """The message of a record of the delta topic; None if it makes none.

        Args:
            record: the record.
            partition: where it is.
            check: asked whether it may be delivered; None: it may.

        Raises:
            Stop: it is not what a worker writes.
        """
        try:
            return self._message(record, check)
        except (RecordRejected, UnicodeDecodeError) as error:
            place = f"partition {partition}, offset {record.offset} of its delta topic, key {key_text(record)!r:.100},"
            raise Stop(f"{self._name}: {place} is not what a worker writes: {error}") from error

    def whole(self, record: Record, partition: int) -> Message:
        """The message of a record of the SOW topic, which stands for deltas that are missing.

        Raises:
            Stop: it is not what a worker writes.
        """
        return self._builder.full("publish", record, self._topic.value(record, partition))

    def _message(self, record: Record, check: Continuity | None) -> Message | None:
        key, value, named, _, _ = record
        if key is None or value is None:
            return None
        headers = delta_headers(named)
        if check is not None and not check.admits(record, headers):
            return None
        kind, _, base, is_empty, removed = headers
        if kind in ("delete", "expire") or (is_empty and self._no_empties):
            return None
        # Some message types say part of a delta in the headers.
        data = (
            self._codec.decode_command(value, named or [], is_delta=True) if self._reads_headers else self._own(value)
        )
        if type(data) is not dict and self._can_delta:
            raise RecordRejected("not_an_object", "a delta is an object")
        return self._builder.written_delta(
            record,
            data,
            delta=kind != "insert" and base != 0 and self._can_delta,
            removed=() if removed is None else _pointers(removed),
        )


def _pointers(text: bytes) -> tuple[str, ...]:
    """The paths that the header `removed` names.

    Raises:
        RecordRejected: it is no array of texts.
    """
    try:
        pointers = json.loads(text.decode())
    except (ValueError, RecursionError):
        pointers = None
    if type(pointers) is not list or not all(type(pointer) is str for pointer in pointers):
        shown = text.decode(errors="backslashreplace")
        raise RecordRejected("bad_header", f"{Name.REMOVED} is {shown!r:.100}, not a JSON array of JSON Pointers")
    return tuple(pointers)
