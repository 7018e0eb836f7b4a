"""Rounds over all references of a key after a change of its partner, a piece at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.wire.view_parts import group_prefix, member_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.api import Context

REFERENCES_MAX: Final = 500
"""References of one turn: a few milliseconds."""

TURN_MS: Final = 100
"""Time for which that is enough. References go at 5,000 a second at most: more would queue up before the last stage,
and the changes of other rows behind them."""


class _Round:
    """A round, as far as it has come."""

    def __init__(self, after: bytes, offset: int) -> None:
        self.after = after
        """The key of the table behind which the next reference is."""
        self.offset = offset
        """The offset of the change: no position behind it is committed before the round has ended."""
        self.again_offset: int | None = None
        """The offset of a change during the round, after which another round follows; None: there was none. A round is
        not broken off: a partner that changes all the time would keep the last references waiting for ever."""


class Rounds:
    """The rounds of one partition, the oldest first.

    The input position that is committed stays before the change whose round has not ended: a successor begins it again.
    """

    def __init__(self, context: Context, mark: bytes) -> None:
        """Begin with no round.

        Args:
            context: its table has the references.
            mark: begins the members that are references.
        """
        self._context = context
        self._mark = mark
        self._rounds: dict[bytes, _Round] = {}
        self._turn = 0  # The part of time to which the next number belongs.
        self._left = REFERENCES_MAX  # References that may still be named in it.

    def __len__(self) -> int:
        """Number of rounds that have not ended."""
        return len(self._rounds)

    def begin(self, group: bytes, offset: int) -> None:
        """Begin a round over the references of a group, for the change at an offset."""
        current = self._rounds.get(group)
        if current is None:
            self._rounds[group] = _Round(group_prefix(group), offset)
        elif current.again_offset is None:
            current.again_offset = offset

    def next_references(self, now_ms: int) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield groups with the next of their references: the keys of the records that refer."""
        if self._turn != now_ms // TURN_MS:
            self._turn, self._left = now_ms // TURN_MS, REFERENCES_MAX
        while self._rounds and self._left > 0:
            group, current = next(iter(self._rounds.items()))
            prefix = group_prefix(group)
            piece = self._context.table.scan(current.after, self._left)
            members = [key for key, _ in piece if key.startswith(prefix) and member_of(key).startswith(self._mark)]
            yield group, [member_of(key)[len(self._mark) :] for key in members]
            if len(members) < self._left:
                del self._rounds[group]
                if current.again_offset is not None:
                    self._rounds[group] = _Round(prefix, current.again_offset)
            else:
                current.after = members[-1]
            self._left -= max(1, len(members))

    def hold(self) -> None:
        """Keep the committed position before the changes whose rounds have not ended, and show their number."""
        self._context.gauge("rounds", len(self._rounds))
        self._context.hold(min((current.offset for current in self._rounds.values()), default=None))
