"""The acks that publishers ask for, committed together with the effects of their commands."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar, Final, cast

from processor.api import Input, Processor
from processor.builtin.delta_merge.compiled_settings import compile_settings
from processor.wire.ack import CONFLICT, MOVED_ACKS, conflict_detail, write_ack
from processor.wire.dead_letter import ReadableCommand, read_leniently
from processor.wire.forwarding import moved_partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Context, Outgoing, Record, RecordRejected, Stored
    from processor.builtin.delta_merge.deduplication import Numbers
    from processor.builtin.delta_merge.placement import Placement
    from processor.config import TopicConfig
    from processor.wire.command import CommandHeaders
    from processor.wire.dead_letter import ReadableCommand

REASON_CHARACTERS_MAX: Final = 1000
"""Longest reason: the dead letter has the rest."""


class Acks:
    """The acknowledgements of a batch.

    They become visible with the commit of the commands that they answer. Successes of `persisted` are conflated: of the
    commands of a client that have a sequence, the ack of the highest one stands for all, at the end of the batch.

    The publisher of a command that came from a topic which has moved here waits on that topic's acks: they are apart,
    and each stands for itself, as of every forwarded command.
    """

    def __init__(self, *, answers_moved: bool = False) -> None:
        """Begin without any.

        Args:
            answers_moved: whether a topic has moved here; if not, a command that says so does not come from one.
        """
        self._answers_moved = answers_moved
        self._acks: list[Outgoing] = []
        self._moved: defaultdict[int, list[Outgoing]] = defaultdict(list)  # By partition of that topic.
        self._persisted: dict[bytes, int] = {}

    def succeeded(
        self,
        request: CommandHeaders,
        key: bytes | None,
        reason: str | None = None,
        *,
        records_deleted: int | None = None,
        version: int | None = None,
    ) -> None:
        """Answer a command that was carried out; one with a reason, such as `duplicate`, gets an ack of its own.

        Args:
            request: the command.
            key: of the record; None for a delete by filter.
            reason: why it is a success.
            records_deleted: how many records a delete has removed; None for other commands.
            version: the record's version, of a delete that of its end; None where there is no record.
        """
        client, sequence, moved_from = request.client, request.sequence, moved_partition(request.source)
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
            known = None if ack_type in ("received", "stats") else version
            self._add(request, ack_type, key, status, why, moved_from, records_deleted=count, version=known)

    def refused(self, request: CommandHeaders, key: bytes, old: Stored | None) -> None:
        """Answer a command that expects another version than the record, `old`, has (queues.md, rule 8)."""
        actual = 0 if old is None else old.version
        conflict = f"{CONFLICT}: {conflict_detail(actual, request.expect_version)}"
        moved_from = moved_partition(request.source)
        for ack_type in request.acks:
            status, why, version = ("success", None, None) if ack_type == "received" else ("failure", conflict, actual)
            self._add(request, ack_type, key, status, why, moved_from, version=version)

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
            self._add(command, ack_type, record.key, status, reason, command.moved_from)

    def send(self, context: Context) -> None:
        """Forward the acknowledgements since the last time: those of moved commands to where their publishers wait."""
        for client, sequence in self._persisted.items():
            self._acks.append(write_ack("persisted", "success", client=client, sequence=sequence))
        self._persisted.clear()
        if self._acks:
            context.forward_many("ack", self._acks)
            self._acks = []
        for partition, acks in self._moved.items():
            if partition < context.partitions_of(MOVED_ACKS):
                context.forward_to(MOVED_ACKS, partition, acks)
        self._moved.clear()

    def _add(
        self,
        command: CommandHeaders | ReadableCommand,
        ack_type: str,
        key: bytes | None,
        status: str,
        reason: str | None,
        moved_from: int | None,
        **more: int | None,
    ) -> None:
        acks = self._acks if moved_from is None or not self._answers_moved else self._moved[moved_from]
        client, number, sequence = command.client, command.command_id, command.sequence
        acks.append(
            write_ack(
                ack_type, status, reason, client=client, command_id=number, sequence=sequence, sow_key=key, **more
            )
        )


class AnsweringProcessor(Processor):
    """The base of processors of commands: a rejected one is answered, and its number may be used again."""

    input: ClassVar[Input] = Input("publish", from_underlying=False)
    _context: Context
    _numbers: Numbers
    _acks: Acks
    _placement: Placement

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse settings that cannot be compiled."""
        compile_settings(name, cast("TopicConfig", settings), codec)

    def rejected(self, record: Record, error: RecordRejected) -> None:
        """Answer the publisher of a rejected command."""
        self._numbers.refuse(record)
        self._acks.failed(record, error)
        self._answer()

    def _answer(self) -> None:
        """Keep the numbers of a batch, and send its acks."""
        self._numbers.flush()
        self._acks.send(self._context)

    def _with_text_keys(
        self, records: Sequence[Record]
    ) -> tuple[Sequence[Record], list[tuple[Record, RecordRejected]]]:
        """Return the records with keys as the family has them, and those whose keys cannot be read, with the reason."""
        unread: list[tuple[Record, RecordRejected]] = []
        if self._placement.reads_keys:
            records = self._placement.with_text_keys(records, lambda record, error: unread.append((record, error)))
            for record, _ in unread:
                self._numbers.refuse(record)  # Before a later number of the batch is taken.
        return records, unread

    def _reject_unread(self, unread: Sequence[tuple[Record, RecordRejected]], stopped_offset: int | None) -> None:
        """Reject the records whose keys cannot be read; those behind the stop come again."""
        for record, why in unread:
            if stopped_offset is None or record.offset < stopped_offset:
                self._reject(record, why)

    def _reject(self, record: Record, error: RecordRejected) -> None:
        if self._placement.reads_keys:
            record = self._placement.original(record)
        self._context.reject(record, error.reason, error.detail)
        if record.headers:
            self._numbers.refuse(record)
            self._acks.failed(record, error)
