"""A message of a queue, and its outcome."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from processor.codec.json_value import to_json_line
from processor.errors import SowstreamError
from processor.kafka.own_process import refuse_inherited
from processor.queues.transport.leases import Lease
from processor.record import Value
from processor.wire.headers import read_shown_text
from processor.wire.record_headers import input_place
from processor.wire.subscriber_headers import iso, metadata

Outcome: TypeAlias = Literal["ack", "release", "reject"]
"""Done; to be delivered again, to any consumer; to become a dead letter."""

_SHOWN: Final = (
    "queue", "topic", "sow_key", "data", "version", "timestamp", "correlation_id", "expires_at", "source", "deliveries",
    "headers",
)  # fmt: skip
"""The attributes that a line of JSON has, in its order."""


class QueueMessage:
    """A message that is leased to this consumer until it is acknowledged, released or rejected.

    The first of the three counts, and any thread may call it. In a `for` loop that is seldom needed: leaving the body
    normally acknowledges, and an exception releases.
    """

    __slots__ = ("_lock", "_outcome", "_process_id", "_reason", "lease", *_SHOWN)

    def __init__(self, queue: str, topic: str, lease: Lease, data: Value) -> None:
        """Created by the queue's consumer."""
        self._process_id = os.getpid()
        record = lease.record
        facts = metadata(record.headers)
        self.lease = lease
        """The record as Kafka delivered it."""
        self.queue = queue
        """The queue's name."""
        self.topic = topic
        """The SOW topic that it is over."""
        self.sow_key = (record.key or b"").decode(errors="replace")
        """The record's key."""
        self.data = data
        """The merged record, whole."""
        self.version = facts.version
        """The record's version; as `expect_version` of a publish it makes an effect happen once."""
        self.correlation_id = facts.correlation_id
        """The publisher's, as it came."""
        self.headers: Mapping[str, str] = facts.headers
        """The publisher's own headers."""
        self.expires_at = facts.expires_at
        """Time of the record's expiry, ISO 8601 in UTC; None: never."""
        self.timestamp = iso(record.timestamp_ms)
        """Time at which the worker put it on the queue, ISO 8601 in UTC."""
        self.source = read_shown_text(input_place(record.headers)) or ""
        """The command that it came from, `topic/partition/offset`: an id that no other message of the queue has."""
        self.deliveries = lease.deliveries
        """Number of deliveries, this one included."""
        self._outcome: Outcome | None = None
        self._reason = ""
        self._lock = threading.Lock()

    def ack(self) -> None:
        """Acknowledge it: it is done, and no consumer receives it again.

        Raises:
            SowstreamError: it was released or rejected before.
        """
        self._settle("ack")

    def release(self) -> None:
        """Give it back: any consumer may receive it, this one too. The last allowed delivery makes it a dead letter.

        Raises:
            SowstreamError: it was acknowledged or rejected before.
        """
        self._settle("release")

    def reject(self, reason: str) -> None:
        """Make it a dead letter of the queue, with this reason.

        Raises:
            SowstreamError: it was acknowledged or released before.
        """
        self._settle("reject", reason)

    @property
    def outcome(self) -> Outcome | None:
        """The decision about it; None: there is none yet."""
        return self._outcome

    @property
    def reason(self) -> str:
        """The reason of a rejection."""
        return self._reason

    def settle_if_open(self, outcome: Outcome) -> None:
        """Decide, unless it is decided."""
        with self._lock:
            if self._outcome is None:
                self._outcome = outcome

    def _settle(self, outcome: Outcome, reason: str = "") -> None:
        refuse_inherited("message", self._process_id)
        with self._lock:
            if self._outcome not in (None, outcome):
                raise SowstreamError(f"message {self.sow_key} of {self.queue} has the outcome {self._outcome} already")
            self._outcome, self._reason = outcome, self._reason or reason

    def to_json(self) -> str:
        """One line of JSON; empty fields are left out."""
        fields = {name: getattr(self, name) for name in _SHOWN} | {"headers": dict(self.headers)}
        return to_json_line({name: value for name, value in fields.items() if value not in (None, "", {})})

    def __repr__(self) -> str:
        return f"QueueMessage({self.queue!r}, {self.sow_key!r}, source={self.source!r}, outcome={self._outcome})"
