"""Leaves out records that cannot be parsed, for a client with `skip_unreadable`: they do not stop a snapshot."""

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
"""Limit of the keys of one topic that are remembered as left out."""

log = logging.getLogger("sowstream.client")


class SkippedRecords:
    """The records of one topic that were left out: the keys with their reasons. Any thread."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """By key, the reason why its newest record cannot be parsed; at most `KEYS_MAX`."""

    def readable(
        self, topic: Topic, make: Callable[[Sequence[Message]], list[Record]]
    ) -> Callable[[Sequence[Message]], list[Record]]:
        """A function like `make`, but with a tombstone for each record that cannot be parsed.

        Args:
            topic: parses the records.
            make: converts Kafka's messages to records.
        """

        def readable_records(messages: Sequence[Message]) -> list[Record]:
            return [self._readable(topic, record) for record in make(messages)]

        return readable_records

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
