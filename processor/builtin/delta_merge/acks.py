"""The acks that publishers ask for, committed together with the effects of their commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.wire.ack import CONFLICT, write_ack
from processor.wire.command import read_leniently

if TYPE_CHECKING:
    from processor.api import Outgoing, Record, RecordRejected, Stored
    from processor.wire.command import CommandHeaders

REASON_CHARACTERS_MAX: Final = 1000
"""Longest reason: the dead letter has the rest."""


class Acks:
    """The acknowledgements of a batch.

    They become visible with the commit of the commands that they answer. Successes of `persisted` are conflated: of the
    commands of a client that have a sequence, the ack of the highest one stands for all, at the end of the batch.
    """

    def __init__(self) -> None:
        self._acks: list[Outgoing] = []
        self._persisted: dict[bytes, int] = {}

    def succeeded(
        self,
        request: CommandHeaders,
        key: bytes | None,
        reason: str | None = None,
        *,
        records_deleted: int | None = None,
    ) -> None:
        """Answer a command that was carried out; one with a reason, such as `duplicate`, gets an ack of its own.

        Args:
            request: the command.
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

    def refused(self, request: CommandHeaders, key: bytes, old: Stored | None) -> None:
        """Answer a command that expects another version than the record, `old`, has (queues.md, rule 8)."""
        actual = 0 if old is None else old.version
        present = f"the record has version {actual}" if actual else "there is no record"
        wanted = f"version {request.expect_version}" if request.expect_version else "no record"
        for ack_type in request.acks:
            if ack_type == "received":
                self._add(ack_type, request.client, request.command_id, request.sequence, key, "success", None)
                continue
            why = f"{CONFLICT}: {present}, and the command expects {wanted}"
            self._add(
                ack_type, request.client, request.command_id, request.sequence, key, "failure", why, version=actual
            )

    def failed(self, record: Record, error: RecordRejected) -> None:
        """Answer a command that was rejected, as far as its headers can be read."""
        command = read_leniently(record)
        if command is None:
            return
        why = f"{error.reason}: {error.detail}"[:REASON_CHARACTERS_MAX]
        for ack_type in command.acks:
            status: str = "failure"
            reason: str | None = why
            if ack_type == "received":
                status, reason = "success", None
            elif ack_type == "stats" and not command.is_delete:
                reason = "not supported"
            self._add(ack_type, command.client, command.command_id, command.sequence, record.key, status, reason)

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
        version: int | None = None,
    ) -> None:
        self._acks.append(
            write_ack(
                ack_type,
                status,
                reason,
                client=client,
                command_id=command_id,
                sequence=sequence,
                sow_key=sow_key,
                records_deleted=records_deleted,
                version=version,
            )
        )
