"""Recognises commands that were sent twice: a publisher numbers its commands, and a mark keeps these numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from processor.wire.command import read_numbered
from processor.wire.forwarding import came_in, sequence_mark
from processor.wire.publisher_mark import PublisherMark

if TYPE_CHECKING:
    from processor.api import Marks, Record
    from processor.wire.command import CommandHeaders


class Numbers(Protocol):
    """The numbers that publishers have given to their commands, in one partition."""

    def is_duplicate(self, record: Record, request: CommandHeaders) -> bool:
        """Return whether a command with a number was taken before.

        Raises:
            RecordRejected: `bad_header`: its number is too high, or it is not known whether it was taken.
        """

    def take(self, request: CommandHeaders) -> bool:
        """Note that a command with a number was taken; return whether a higher one was taken before."""

    def refuse(self, record: Record) -> None:
        """Note that a command was refused: its number may be used again, also when higher ones have been taken.

        Nothing is noted of a command without a number, or with a client or number that cannot be read.
        """

    def pass_on(self, request: CommandHeaders) -> bool:
        """Note that a command is sent to another partition; return whether it was refused here before."""

    def came_in(self, request: CommandHeaders) -> bytes:
        """Return the place where a forwarded record came in; empty for one that came in here."""

    def flush(self) -> None:
        """Keep the changes of a batch."""


class Deduplicator:
    """The numbers of each client in this partition: the highest one taken, and those that were refused.

    The marks are those of one partition: a record that is sent again has the same key, and so the same partition. A
    record that came without its key was sent here by the worker of another partition, in that one's order; these
    have marks of their own, one for each place where they came in, so that none is taken for late that is not.
    """

    def __init__(self, marks: Marks, rekeyed_from: bytes, jump_max: int) -> None:
        """Begin with the marks of the partition.

        Args:
            marks: the marks.
            rekeyed_from: the beginning of the `source` of a record that was sent here.
            jump_max: how far a number may be above the highest one; 0: any distance.
        """
        self._marks = marks
        self._rekeyed_from = rekeyed_from
        self._jump_max = jump_max
        self._known: dict[bytes, PublisherMark] = {}
        self._last: tuple[CommandHeaders | None, bytes, PublisherMark] = None, b"", PublisherMark()
        self._changed: set[bytes] = set()

    def is_duplicate(self, record: Record, request: CommandHeaders) -> bool:  # noqa: ARG002
        """Return whether a command was taken before, by its mark."""
        name = mark_name(request, self._rekeyed_from)
        mark = self._mark(name)
        self._last = request, name, mark
        if request.is_replay or (request.is_mended and self.came_in(request)):
            if request.sequence > mark.highest:
                mark.check_jump(request.sequence, self._jump_max)
            return False
        return mark.is_duplicate(request.sequence, self._jump_max)

    def take(self, request: CommandHeaders) -> bool:
        """Raise the mark of its client, or remove the number from the refused ones."""
        last, name, mark = self._last
        if last is not request:
            name = mark_name(request, self._rekeyed_from)
            mark = self._mark(name)
        is_late = request.sequence < mark.highest
        mark.accept(request.sequence)
        self._changed.add(name)
        return is_late

    def refuse(self, record: Record) -> None:
        """Add the number of a command to the refused ones."""
        request = read_numbered(record)
        if request is not None:
            name = mark_name(request, self._rekeyed_from)
            if self._mark(name).refuse(request.sequence):
                self._changed.add(name)

    def pass_on(self, request: CommandHeaders) -> bool:
        """Remove a number from the refused ones, as the key's own partition decides about it."""
        if request.sequence < 0:
            return False
        name = mark_name(request, self._rekeyed_from)
        mark = self._mark(name)
        if not mark.refused:
            return False
        self._changed.add(name)
        return mark.pass_on(request.sequence)

    def flush(self) -> None:
        """Write the marks that a batch changed."""
        if not self._known:
            return
        for name in self._changed:
            self._marks.put(name, self._known[name].text())
        self._changed.clear()
        self._known.clear()
        self._last = None, b"", PublisherMark()

    def came_in(self, request: CommandHeaders) -> bytes:
        """Return the place where a forwarded record came in; empty for one that came in here."""
        return came_in(request.source, self._rekeyed_from)

    def _mark(self, name: bytes) -> PublisherMark:
        mark = self._known.get(name)
        if mark is None:
            mark = self._known[name] = PublisherMark(self._marks.get(name))
        return mark


def mark_name(request: CommandHeaders, rekeyed_from: bytes) -> bytes:
    """Return the name of a client's mark: `sequence/<place where the record came in, if not here>/<client>`.

    Args:
        request: the headers of a record with a client.
        rekeyed_from: the input topic and a `/`, with which the `source` of a forwarded record begins.
    """
    return sequence_mark(came_in(request.source, rekeyed_from), request.client)
