"""The groups of an aggregating view that are in memory, and those that are being built from the parts of the table."""

from __future__ import annotations

from collections import OrderedDict
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from processor.api import Stored
from processor.filter.aggregate import Group
from processor.wire.view_parts import group_of, group_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from processor.api import Record, State
    from processor.builtin.view.plain_groups import PlainGroup, PlainGroups
    from processor.builtin.view.stage_output import Contributions
    from processor.filter.aggregate.group import Contribution

_Change: TypeAlias = tuple[bytes, bytes, bytes | None, bytes | None]
"""A group, the key of a member, its former part and its part; None: there is none."""

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


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

    def __init__(
        self,
        table: State,
        new_group: Callable[[], Group],
        contributions: Contributions,
        plain: PlainGroups | None,
    ) -> None:
        """Begin without groups.

        Args:
            table: the contributions of all members.
            new_group: returns a group without members.
            contributions: reads those of the table.
            plain: the compiled groups of plain parts; None: there are none.
        """
        self._table = table
        self._new_group = new_group
        self._contributions = contributions
        self._plain = plain
        self._complete: OrderedDict[bytes, Group | PlainGroup] = OrderedDict()
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
        self._keep(key, self._filled(key, ()))

    def fold_plain(self, parts: Sequence[tuple[Record, bytes]], rows: dict[bytes, Stored | None]) -> list[_Change]:
        """Have the plain groups take changes that the table gets too; returns the changes that are left.

        Args:
            parts: records with their groups, in order.
            rows: the states of their keys, which become those behind the changes.
        """
        others: list[_Change] = []
        if self._plain is not None:
            self._plain.fold(parts, rows, self._complete, others)
            for key, *_ in others:
                if key in self._complete and not isinstance(self._complete[key], Group):
                    self._drop(key)  # It is built again from the table.
            # Those of groups that are not in memory are not parsed: the table has them when the group is read.
            return [each for each in others if each[0] in self._complete or each[0] in self._building]
        for record, key in parts:
            member, value = record.key or b"", record.value
            former = rows[member]
            others.append((key, member, None if former is None else former.value, value))
            rows[member] = None if value is None else _new(Stored, (1, value, 0, -1, b"", b""))
        return others

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
        group = cast("Group", group)
        if old is None:
            if new is not None:
                group.add(new)
        elif new is None:
            group.remove(old)
        else:
            group.replace(old, new)

    def get(self, key: bytes) -> Group | PlainGroup | None:
        """Return a complete group, built now if it is small enough; None: it waits for `build_some`."""
        group = self._complete.get(key)
        if group is not None:
            return self._keep(key, group)
        if key not in self._building:
            self._building[key] = _Building(self._new_group(), group_prefix(key))
        return self._build(key)

    def build_again(self, key: bytes) -> Group | PlainGroup | None:
        """Build a group from its members, as its extreme is not known any more; otherwise as `get`."""
        self._drop(key)
        return self.get(key)

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
                self._keep(key, self._filled(key, members))

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop the groups among these that have no members."""
        for key in keys:
            group = self._complete.get(key)
            if group is not None and not group.members:
                self._drop(key)

    def _build(self, key: bytes) -> Group | PlainGroup | None:
        """Read further members of a group, up to its share of a turn; returns it once all have been read."""
        building, prefix = self._building[key], group_prefix(key)
        piece_max, share = _FIRST_PIECE, SHARE_MAX
        while self._left > 0 and share > 0:
            piece = self._table.scan(building.after, piece_max)
            members = [row for row in piece if row[0].startswith(prefix)]
            self._left -= max(1, len(members))
            share -= len(members)
            if len(members) < piece_max and building.after == prefix:
                del self._building[key]
                return self._keep(key, self._filled(key, members))
            self._add(building.group, members)
            if len(members) < piece_max:
                del self._building[key]
                return self._keep(key, building.group)
            building.after = members[-1][0]
            piece_max = min(4 * piece_max, SHARE_MAX)
        return None

    def _filled(self, key: bytes, members: Sequence[tuple[bytes, Stored]]) -> Group | PlainGroup:
        """Return a group with all of its members."""
        if self._plain is not None:
            plain = self._plain.group(key, [stored.value for _, stored in members])
            if plain is not None:
                return plain
        group = self._new_group()
        self._add(group, members)
        return group

    def _add(self, group: Group, members: Sequence[tuple[bytes, Stored]]) -> None:
        for contribution in self._contributions.decode_many([stored.value for _, stored in members]):
            group.add(contribution)

    def _keep(self, key: bytes, group: Group | PlainGroup) -> Group | PlainGroup:
        """Keep a group in memory, in place of those that were not asked for longest; returns it."""
        values, before = group.values_kept, self._values.get(key)
        if before is None:
            self._complete[key] = group
        else:
            self._complete.move_to_end(key)
        if values != before:
            self._values_sum += values - (before or 0)
            self._values[key] = values
        while len(self._complete) > GROUPS_MAX or (self._values_sum > VALUES_MAX and len(self._complete) > 1):
            self._drop(next(iter(self._complete)))
        return group

    def _drop(self, key: bytes) -> None:
        """Forget a group: it is built again when it changes."""
        del self._complete[key]
        self._values_sum -= self._values.pop(key)
