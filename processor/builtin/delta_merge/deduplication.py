"""Recognises commands that were sent twice: a publisher numbers its commands, and the highest number is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.wire.came_in import came_in, sequence_mark

if TYPE_CHECKING:
    from processor.api import Marks
    from processor.wire.command import CommandHeaders


class Deduplicator:
    """The highest sequence taken of each client, in this partition.

    The marks are those of one partition: a record that is sent again has the same key, and so the same partition. A
    record that came without its key was sent here by the worker of another partition, in that one's order; these
    have marks of their own, one for each place where they came in, so that none is taken for late that is not.
    """

    def __init__(self, marks: Marks, rekeyed_from: bytes) -> None:
        """Begin with the marks of the partition; `rekeyed_from` begins the `source` of a record that was sent here."""
        self._marks = marks
        self._rekeyed_from = rekeyed_from
        self._highest: dict[bytes, int] = {}
        self._raised: set[bytes] = set()

    def is_duplicate(self, request: CommandHeaders) -> bool:
        """Return whether this command was taken before."""
        return not request.is_replay and request.sequence <= self._high(self._name(request))

    def take(self, request: CommandHeaders) -> None:
        """Note that a command was taken; one that is sent again from the dead letters lowers nothing."""
        name = self._name(request)
        if request.sequence > self._high(name):
            self._highest[name] = request.sequence
            self._raised.add(name)

    def flush(self) -> None:
        """Write the numbers that a batch raised to the marks."""
        for name in self._raised:
            self._marks.put(name, b"%d" % self._highest[name])
        self._raised.clear()
        self._highest.clear()

    def _high(self, name: bytes) -> int:
        highest = self._highest.get(name)
        if highest is None:
            kept = self._marks.get(name)
            highest = self._highest[name] = -1 if kept is None else int(kept)
        return highest

    def came_in(self, request: CommandHeaders) -> bytes:
        """Return the place where a forwarded record came in; empty for one that came in here."""
        return came_in(request.source, self._rekeyed_from)

    def _name(self, request: CommandHeaders) -> bytes:
        return mark_name(request, self._rekeyed_from)


def mark_name(request: CommandHeaders, rekeyed_from: bytes) -> bytes:
    """Return the name of a client's mark: `sequence/<place where the record came in, if not here>/<client>`.

    Args:
        request: the headers of a record with a client.
        rekeyed_from: the input topic and a `/`, with which the `source` of a forwarded record begins.
    """
    return sequence_mark(came_in(request.source, rekeyed_from), request.client)
