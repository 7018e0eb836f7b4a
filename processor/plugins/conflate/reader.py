"""Looks at the updates of a key that have waited: which are good, what they touched, how the interval ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.api import RecordRejected
from processor.merge import touch
from processor.plugins.conflate import update
from processor.plugins.conflate.rejection import rejection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.api import Codec, Record, Stored, Value
    from processor.conflation import Pending


_TOGETHER_BYTES_MAX: Final = 256 * 1024
"""Updates of a key that are parsed together: parsed they take ten times as much memory."""


class Reader:
    """Reads for one partition."""

    def __init__(
        self,
        codec: Codec,
        matches: Callable[[Value, Record], bool] | None,
        rejected: Callable[[Record, RecordRejected], None],
    ) -> None:
        """Make one.

        Args:
            codec: the message type of the records.
            matches: whether a record belongs to the copy; None: every one does.
            rejected: is told of what is no record of a SOW topic.
        """
        self._decode: Final = codec.decode_own
        self._can_delta: Final = codec.can_delta
        self._matches: Final = matches
        self._rejected: Final = rejected

    def read(self, pending: Pending, old: Stored | None) -> Value | None:
        """Look at what is unread.

        Args:
            pending: the key's updates; afterwards none of them is unread, and `last` is None if none was good.
            old: what was delivered of the key.

        Returns:
            The record at the end, parsed if its parts matter; None if it is gone, or does not belong to the copy.
        """
        unread, pending.unread = pending.unread, []
        try:
            delivered = self._decode(old.value) if old is not None and self._can_delta else None
        except Exception as error:  # noqa: BLE001 - a message type may fail in any way
            self._refuse(unread, error)
            return None
        states: list[Value | None] = []
        for records in _pieces(unread):
            good, found = self._parsed(records)
            if not good:
                continue
            states = found
            if delivered is not None:
                touch(pending.touched, delivered, states)
            if not pending.count:
                pending.first_timestamp_ms = good[0].timestamp_ms
            pending.count += len(good)
            pending.last = good[-1]
        if states:
            return states[-1]
        return None if pending.last is None else self._state(pending.last)

    def _parsed(self, records: Sequence[Record]) -> tuple[list[Record], list[Value | None]]:
        """Those that are good, and the state that each of them says."""
        good: list[Record] = []
        states: list[Value | None] = []
        check, state_of = update.check, self._state
        for record in records:
            try:
                check(record)
                states.append(state_of(record))
            except Exception as error:  # noqa: BLE001 - so may a filter
                self._refuse([record], error)
            else:
                good.append(record)
        return good, states

    def _refuse(self, records: Sequence[Record], error: Exception) -> None:
        """Reject all of them for what was raised."""
        why = rejection(error)
        for record in records:
            self._rejected(record, why)

    def _state(self, record: Record) -> Value | None:
        """A record, parsed where its parts matter; None if it has none in the copy."""
        value = record[1]  # Quicker than by its name, in the loop over every update.
        if value is None:
            return None
        if not self._can_delta:
            return value
        state = self._decode(value)
        if type(state) is not dict:
            raise RecordRejected("not_an_object", "a SOW record is an object")
        if self._matches is not None and not self._matches(state, record):
            return None
        return state


def _pieces(records: Sequence[Record]) -> Sequence[Sequence[Record]]:
    """Updates of a key, as many together as may be parsed at once: all of them, or each alone."""
    size = sum([len(record[1] or b"") for record in records])
    return [records] if size <= _TOGETHER_BYTES_MAX else [[record] for record in records]
