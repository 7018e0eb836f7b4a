"""Leaves out records that cannot be read, for a client that asked for it: one bad record stops no snapshot then."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from processor.errors import RecordRejected
from processor.subscriptions.topic import key_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.kafka.message import Message
    from processor.record import Record
    from processor.subscriptions import Topic

KEYS_MAX: Final = 10_000
"""Most keys of one topic that are remembered as left out."""

log = logging.getLogger("sowstream.client")


class Skipped:
    """The records of one topic that were left out: each key with the reason. Any number of threads."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """By key, why its newest record cannot be read; at most `KEYS_MAX`."""

    def readable(
        self, topic: Topic, make: Callable[[Sequence[Message]], list[Record]]
    ) -> Callable[[Sequence[Message]], list[Record]]:
        """What makes records as `make` does, but of one that cannot be read a tombstone: as if there were none.

        Args:
            topic: how its records are read.
            make: makes records of Kafka's messages.
        """

        def made(messages: Sequence[Message]) -> list[Record]:
            return [self._readable(topic, record) for record in make(messages)]

        return made

    def _readable(self, topic: Topic, record: Record) -> Record:
        if record.value is not None:
            try:
                topic.decoded(record)
            except RecordRejected as error:
                key = key_text(record)
                if key not in self.reasons and len(self.reasons) < KEYS_MAX:
                    log.warning("%s: the record of key %.100r is left out: %s", topic.name, key, error)
                    self.reasons[key] = str(error)
                return record._replace(value=None)
        if self.reasons:
            self.reasons.pop(key_text(record), None)
        return record
