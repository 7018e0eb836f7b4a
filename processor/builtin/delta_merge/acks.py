"""Acknowledgements: what a publisher asked to be told of its commands, committed together with their effects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from processor.api import Name, RecordRejected
from processor.wire.command import ACK_TYPES, KEY_BYTES_MAX, SEQUENCE_MAX, TEXT_BYTES_MAX, ack_types

if TYPE_CHECKING:
    from processor.api import Outgoing, Record
    from processor.wire.command import Request

REASON_CHARACTERS_MAX: Final = 1000
"""Longest reason: the dead letter has the rest."""


class Acks:
    """The acknowledgements of a batch.

    They become visible with the commit of what they tell. Successes of `persisted` are conflated: of the records of a
    client that have a sequence, the highest one's stands for all, after everything else of the batch.
    """

    def __init__(self) -> None:
        self._acks: list[Outgoing] = []
        self._persisted: dict[bytes, int] = {}

    def succeeded(
        self, request: Request, key: bytes | None, reason: str | None = None, *, records_deleted: int | None = None
    ) -> None:
        """A command was carried out; one with a reason, such as `duplicate`, stands for itself alone.

        Args:
            request: what was asked for.
            key: of the record; None for a delete by filter.
            reason: why it is a success.
            records_deleted: how many records a delete has removed; None for other commands.
        """
        client, sequence = request.client, request.sequence
        for ack_type in request.acks:
            if ack_type == "persisted" and sequence >= 0 and reason is None:
                if sequence > self._persisted.get(client, -1):
                    self._persisted[client] = sequence
                continue
            status, why = "success", None if ack_type == "received" else reason
            count = None
            if ack_type == "stats":
                count = records_deleted
                if count is None:
                    status, why = "failure", "not supported"
            self._add(ack_type, client, request.command_id, sequence, key, status, why, count)

    def refused(self, request: Request, key: bytes, reason: str) -> None:
        """Answer a command that is refused though nothing is wrong with it."""
        for ack_type in request.acks:
            status, why = ("success", None) if ack_type == "received" else ("failure", reason)
            if ack_type == "stats":
                why = "not supported"
            self._add(ack_type, request.client, request.command_id, request.sequence, key, status, why)

    def failed(self, record: Record, error: RecordRejected) -> None:
        """A command was rejected. Its headers may be the reason: what can be read of them is told.

        Not what is longer than it may be: an ack that Kafka does not take would stop the worker, again and again.
        """
        given: dict[str, bytes] = {name: value or b"" for name, value in record.headers or ()}
        if Name.ACK_TYPE not in given:
            return
        client, command_id = (_short_or_none(given.get(name, b"")) for name in (Name.CLIENT, Name.COMMAND_ID))
        text = given.get(Name.SEQUENCE, b"")
        sequence = int(text) if text.isdigit() and len(text) <= 19 and int(text) <= SEQUENCE_MAX else -1
        why = f"{error.reason}: {error.detail}"[:REASON_CHARACTERS_MAX]
        is_delete = record.value is None or given.get(Name.COMMAND) == b"sow_delete"
        for ack_type in _known_types(given[Name.ACK_TYPE]):
            if ack_type == "received":
                self._add(ack_type, client, command_id, sequence, record.key, "success", None)
            else:
                reason = "not supported" if ack_type == "stats" and not is_delete else why
                self._add(ack_type, client, command_id, sequence, record.key, "failure", reason)

    def take(self) -> list[Outgoing]:
        """The acknowledgements since the last time, in the order in which they are to be sent."""
        for client, sequence in self._persisted.items():
            self._add("persisted", client, b"", sequence, None, "success", None)
        acks, self._acks = self._acks, []
        self._persisted.clear()
        return acks

    def _add(
        self,
        ack_type: str,
        client: bytes,
        command_id: bytes,
        sequence: int,
        sow_key: bytes | None,
        status: str,
        reason: str | None,
        records_deleted: int | None = None,
    ) -> None:
        """One more; a field with nothing to say is left out."""
        ack: dict[str, Any] = {"ack_type": ack_type}
        if command_id:
            ack["command_id"] = command_id.decode(errors="replace")
        if client:
            ack["client"] = client.decode(errors="replace")
        if sequence >= 0:
            ack["sequence"] = sequence
        if sow_key is not None and len(sow_key) <= KEY_BYTES_MAX:
            ack["sow_key"] = sow_key.decode(errors="replace")
        ack["status"] = status
        if reason is not None:
            ack["reason"] = reason
        if records_deleted is not None:
            ack["records_deleted"] = records_deleted
        self._acks.append((client, json.dumps(ack, ensure_ascii=False).encode(errors="replace"), []))


def _short_or_none(text: bytes) -> bytes:
    return text if len(text) <= TEXT_BYTES_MAX else b""


def _known_types(value: bytes) -> tuple[str, ...]:
    """The acknowledgements that a header lists, whatever else it lists."""
    try:
        return ack_types(value)
    except RecordRejected:
        words = {word.strip() for word in value[:TEXT_BYTES_MAX].decode(errors="replace").split(",")}
        return tuple(word for word in ACK_TYPES if word in words)
