"""The options that publishing calls have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from processor.kafka.producers.publisher import Delivered
from processor.wire.ack import Ack

OnAck: TypeAlias = Callable[[Ack], None]
"""Callback: called with every ack of one command."""


class PublishOptions(NamedTuple):
    """The options of one `publish`, `delta_publish` or `sow_delete`; `Client.publish` describes their effects."""

    headers: Mapping[str, str | bytes] | None = None
    """More headers, passed on to subscribers."""
    ack: str | None = None
    """The types of acks to wait for, separated by commas; None: no acks."""
    on_ack: OnAck | None = None
    """Called with each ack."""
    sequence: int | None = None
    """The publisher's own growing number; None: the client assigns one to commands with acks."""
    expiration: float | None = None
    """Seconds until the record expires; 0 means never, None means the topic's setting."""
    correlation_id: str | None = None
    """Passed on to subscribers."""
    command_id: str | None = None
    """The id that the command's acks carry."""
    on_delivery: Delivered | None = None
    """Called when Kafka has the record, or with the error."""
