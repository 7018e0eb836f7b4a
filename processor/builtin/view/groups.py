"""The groups of one partition that are kept in memory, and those that are being built from their members."""

from __future__ import annotations

from collections import OrderedDict
from itertools import groupby
from typing import TYPE_CHECKING, Final

from processor.wire.view_parts import group_of, group_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from processor.api import State, Stored
    from processor.builtin.view.contributions import Contributions
    from processor.filter.aggregate import Contribution, Group

GROUPS_MAX: Final = 100_000
"""Groups of one partition that are kept in memory; others are built from their members when these change."""

VALUES_MAX: Final = 500_000
"""Values that the groups of one partition keep in memory, such as different values and the nearest to an extreme:
about 100 MB. One group alone may have more."""

BUILT_MAX: Final = 5_000
"""Members that are read in one turn to build groups: about 20 ms. A larger group is built in several turns."""

SHARE_MAX: Final = 500
"""Members of one group that are read before it is another one's turn: small groups do not wait for a large one."""

_FIRST_PIECE: Final = 64


class _Building:
    """A group that has the members up to a key."""

    def __init__(self, group: Group, after: bytes) -> None:
        self.group = group
        """The aggregates of the members so far."""
        self.after = after
        """The key of the table up to which members have been read."""


class Groups:
    """Groups by key. Complete ones take each change; one that is being built takes changes of members it has read."""

    def __init__(self, table: State, new_group: Callable[[], Group], contributions: Contributions) -> None:
        """Begin without groups.

        Args:
            table: the contributions of all members.
            new_group: returns a group without members.
            contributions: reads those of the table.
        """
        self._table = table
        self._new_group = new_group
        self._contributions = contributions
        self._complete: OrderedDict[bytes, Group] = OrderedDict()
        self._values: dict[bytes, int] = {}  # Of each complete group, when it was last asked for.
        self._values_sum = 0
        self._building: dict[bytes, _Building] = {}
        self._left = BUILT_MAX  # Members that may still be read in this turn.

    def __len__(self) -> int:
        """Number of complete groups in memory."""
        return len(self._complete)

    def __contains__(self, key: bytes) -> bool:
        """Return whether a group is complete and in memory."""
        return key in self._complete

    @property
    def has_waiting(self) -> bool:
        """True if `build_some` has groups to build."""
        return bool(self._building)

    def add_empty(self, key: bytes) -> None:
        """Keep a group that has no member in the table."""
        self._keep(key, self._new_group())

    def change(self, key: bytes, member: bytes, old: Contribution | None, new: Contribution | None) -> None:
        """Apply the change of one member, which the table gets too, to a group that is in memory.

        Args:
            key: the group.
            member: the member's key in the table.
            old: its contribution before; None: it was no member.
            new: its contribution now; None: it leaves.
        """
        group = self._complete.get(key)
        if group is None:
            building = self._building.get(key)
            if building is None or member > building.after:
                return  # The table has it when the group is read up to there.
            group = building.group
        if old is None:
            if new is not None:
                group.add(new)
        elif new is None:
            group.remove(old)
        else:
            group.replace(old, new)

    def get(self, key: bytes) -> Group | None:
        """Return a complete group, built now if it is small enough; None: it waits for `build_some`."""
        group = self._complete.get(key)
        if group is not None:
            self._keep(key, group)
            return group
        if key not in self._building:
            self._building[key] = _Building(self._new_group(), group_prefix(key))
        return self._build(key)

    def build_again(self, key: bytes) -> None:
        """Build a group from its members, as its extreme is not known any more."""
        self._drop(key)
        self.get(key)

    def build_some(self) -> bool:
        """Build the groups that wait, as far as one turn goes; returns whether one was completed."""
        self._left = BUILT_MAX
        is_built = False
        while self._building and self._left > 0:
            key = next(iter(self._building))
            if self._build(key) is None:
                self._building[key] = self._building.pop(key)  # The others first.
            else:
                is_built = True
        return is_built

    def fold(self, after: bytes | None, rows: Sequence[tuple[bytes, Stored]], is_last: bool) -> None:
        """Build the groups that lie completely within a piece of the table, unless they are in memory.

        Args:
            after: the key before the piece; None: the piece is the first.
            rows: the piece.
            is_last: whether the table ends with it.
        """
        parted = [(key, list(members)) for key, members in groupby(rows, lambda row: group_of(row[0]))]
        if not is_last:
            parted = parted[:-1]
        if after is not None and parted and parted[0][0] == group_of(after):
            parted = parted[1:]
        for key, members in parted:
            if key not in self._complete and key not in self._building:
                group = self._new_group()
                self._add(group, members)
                self._keep(key, group)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop the groups among these that have no members."""
        for key in keys:
            group = self._complete.get(key)
            if group is not None and not group.members:
                self._drop(key)

    def _build(self, key: bytes) -> Group | None:
        """Read further members of a group, up to its share of a turn; returns it once all have been read."""
        building, prefix = self._building[key], group_prefix(key)
        piece_max, share = _FIRST_PIECE, SHARE_MAX
        while self._left > 0 and share > 0:
            piece = self._table.scan(building.after, piece_max)
            members = [row for row in piece if row[0].startswith(prefix)]
            self._left -= max(1, len(members))
            share -= len(members)
            self._add(building.group, members)
            if len(members) < piece_max:
                del self._building[key]
                self._keep(key, building.group)
                return building.group
            building.after = members[-1][0]
            piece_max = min(4 * piece_max, SHARE_MAX)
        return None

    def _add(self, group: Group, members: Sequence[tuple[bytes, Stored]]) -> None:
        for contribution in self._contributions.decode_many([stored.value for _, stored in members]):
            group.add(contribution)

    def _keep(self, key: bytes, group: Group) -> None:
        """Keep a group in memory, in place of those that were not asked for longest."""
        values = group.values_kept
        self._values_sum += values - self._values.get(key, 0)
        self._values[key] = values
        self._complete[key] = group
        self._complete.move_to_end(key)
        while len(self._complete) > GROUPS_MAX or (self._values_sum > VALUES_MAX and len(self._complete) > 1):
            self._drop(next(iter(self._complete)))

    def _drop(self, key: bytes) -> None:
        """Forget a group: it is built again when it changes."""
        del self._complete[key]
        self._values_sum -= self._values.pop(key)
