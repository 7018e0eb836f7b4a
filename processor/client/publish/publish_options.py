"""The options that publishing calls have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypedDict

from processor.kafka.clients.publisher import Delivered
from processor.record import Value
from processor.wire.ack import Ack

OnAck: TypeAlias = Callable[[Ack], None]
"""Callback: called with every ack of one command."""


class _CommonArguments(TypedDict, total=False):
    """Arguments by name of every publishing call; `Client.publish` describes them."""

    on_ack: OnAck | None
    """Called with each ack."""
    sequence: int | None
    """The publisher's own growing number."""
    correlation_id: str | None
    """Passed on to subscribers."""
    command_id: str | None
    """The id that the command's acks carry."""
    on_delivery: Delivered | None
    """Called when Kafka has the record, or with the error."""


class PublishArguments(_CommonArguments, total=False):
    """Arguments by name of `publish` and `delta_publish`, except `ack`, on which the result depends."""

    expiration: float | None
    """Seconds until the record expires."""


class DeleteArguments(_CommonArguments, total=False):
    """Arguments by name of `sow_delete`, except `ack`, on which the result depends."""

    keys: Sequence[str] | None
    """The SOW keys of several records."""
    data: Value
    """A message with the key fields of one record."""
    filter: str | None
    """Deletes every record that matches."""


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
    expect_version: int | None = None
    """The version that the record must have, 0 for no record; None: any."""
