"""The plug-in `view_aggregate`: keeps the parts of all members as a table, and writes the rows of their groups."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from decimal import Decimal
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from processor.api import Context, Record, Stored
from processor.builtin.view.definitions import aggregates_of
from processor.builtin.view.stage_output import Contributions, plain_value, show_groups, show_ready
from processor.builtin.view.start_pass import LastStage
from processor.config import ViewConfig
from processor.filter.aggregate import GroupIncomplete
from processor.filter.aggregate.combining import plain_members
from processor.filter.aggregate.group import Contribution
from processor.filter.aggregate.moments import Moments
from processor.wire.view_parts import group_of, group_prefix

try:
    from processor.builtin.view.plain_groups import PlainGroup, PlainGroups, groups_of

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydantic import BaseModel

    from processor.api import Codec, State, Value
    from processor.filter.aggregate import AggregateDefinition, Group
    from processor.filter.aggregate.group import Aggregate

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
                if type(self._complete.get(key)) is PlainGroup:
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


CHANGED_MAX: Final = 2_000
"""Changed groups at which rows are written before the commit, so that no commit takes long."""


class ViewAggregate(LastStage):
    """Writes a row for each group; its state is the rows, its table the contributions of all members."""

    _compile = staticmethod(aggregates_of)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition; all rows are compared soon."""
        assert isinstance(settings, ViewConfig)
        self._definition = aggregates_of(context.name, settings)
        self._contributions = Contributions()
        self._rows_are_all = settings.having is None
        is_combined = settings.partial_aggregation
        self._new_group = self._definition.new_combined_group if is_combined else self._definition.new_group
        self._plain = _plain_groups(self._definition, settings, context.codec) if is_combined else None
        self._groups = Groups(context.table, self._new_group, self._contributions, self._plain)
        self._begin(context, settings)

    def process(self, records: Sequence[Record]) -> None:
        """Put the parts into the table, and into the groups that are in memory."""
        self._start.took(records[-1].offset)
        if self._as_of is not None:
            self._as_of.took(records)
        until = self._context.table_until
        parts = self._parts_of(records)
        groups = dict.fromkeys([group for _, group in parts])
        if records[0].offset < until:
            parts = [part for part in parts if part[0].offset >= until]  # The others are in the table already.
        else:
            self._begin_new_groups(groups)
        self._changed.update(groups)
        if parts:
            self._put(parts)
        if len(self._changed) >= CHANGED_MAX:
            self.flush()

    def punctuate(self, now_ms: int) -> bool:  # noqa: ARG002
        """Go through a part of the table and the rows, until all groups were compared once; build waiting groups."""
        self._changed.update(dict.fromkeys(self._start.next_groups(self._groups.fold)))
        is_built = self._groups.build_some()
        if self._start.is_due or is_built:
            self.flush()  # Without input there is no commit that would ask for it.
        is_ready = self._start.is_done and not self._groups.has_waiting and self._context.is_at_end
        show_ready(self._context, is_ready=is_ready)
        show_groups(self._context, len(self._groups))
        return self._start.has_more or (self._start.may_write and self._groups.has_waiting)

    def flush(self) -> None:
        """Write the rows of the changed groups, but those that are still being built."""
        if not self._start.flushes(has_changed=bool(self._changed)):
            return
        rows: dict[bytes, Value | None] = {}
        waiting: dict[bytes, None] = {}
        for key in self._changed:
            group = self._groups.get(key)
            if group is None:
                waiting[key] = None
                continue
            try:
                rows[key] = self._row(group)
            except GroupIncomplete:
                if (group := self._groups.build_again(key)) is None:
                    waiting[key] = None
                else:
                    rows[key] = self._row(group)
        self._changed = waiting
        refused = self._write(rows)
        self._rows_are_all = self._rows_are_all and not refused
        self._groups.forget([key for key, row in rows.items() if row is None])
        self._start.wrote(are_all=not waiting)

    def _put(self, parts: Sequence[tuple[Record, bytes]]) -> None:
        """Put parts into the table, and into the groups that are in memory."""
        table = self._context.table
        keys = cast("list[bytes]", [record.key for record, _ in parts])
        rows = table.get_many(keys)
        others = self._groups.fold_plain(parts, rows)
        if others:
            decode = self._contributions.decode_many
            olds = iter(decode([old for _, _, old, _ in others if old is not None]))
            news = iter(decode([new for _, _, _, new in others if new is not None]))
            change = self._groups.change
            for group, key, old, new in others:
                change(group, key, None if old is None else next(olds), None if new is None else next(news))
        table.put_many(rows)

    def _row(self, group: Group | PlainGroup) -> Value | None:
        """Return the row of a group, as the topic's text where that is made without a parsed row; None: it has none."""
        if self._plain is None or type(group) is not PlainGroup:
            return self._definition.row(cast("Group", group))
        if not group.members:
            return None
        row = self._plain.row(group)
        if row is None:
            key, values = self._plain.part(group)
            whole = self._new_group()
            whole.add(Contribution((0, 0, 0), (plain_value(key.decode()),), tuple(values)))
            return self._definition.row(whole)
        return row

    def _parts_of(self, records: Sequence[Record]) -> list[tuple[Record, bytes]]:
        """Return each record with its group; a record that no split wrote is rejected."""
        try:
            if has_compiled:
                return groups_of(records)
            return [(record, group_of(record.key or b"")) for record in records]
        except ValueError:
            pass
        parts = []
        for record in records:
            try:
                parts.append((record, group_of(record.key or b"")))
            except ValueError as error:
                self._context.reject(record, "undecodable", f"no part of a view: {error}")
        return parts

    def _begin_new_groups(self, groups: Iterable[bytes]) -> None:
        """Begin the groups that have no row as empty ones, without a look at the table.

        Once all rows were compared, each group with members has a row, unless `having` or the topic's limit refused it.
        """
        if not self._start.was_completed or not self._rows_are_all:
            return
        unknown = [group for group in groups if group not in self._groups and group not in self._changed]
        if unknown:
            for group, row in self._context.state.get_many(unknown).items():
                if row is None:
                    self._groups.add_empty(group)


def _plain_groups(definition: AggregateDefinition, settings: ViewConfig, codec: Codec) -> PlainGroups | None:
    """Return the compiled groups; None if the definition is not simple, or they could not be compiled."""
    if not has_compiled or plain_members(definition, settings) is None:
        return None
    states = definition.new_group().states
    fields = None if codec.json_text is None else definition.simple_fields
    texts = None
    if fields is not None:
        texts = [
            (json.dumps(name).encode() + b":", "" if each is None else each.function, _place_of(each, states))
            for name, each in fields
        ]
        if any(b"\\" in name for name, _, _ in texts):
            texts = None
    return PlainGroups([kind for _, kind in states], texts, partial(_number_text, codec), Stored)


def _place_of(aggregate: Aggregate | None, states: Sequence[tuple[int, str]]) -> int:
    """Return the place of an aggregate's value behind the members of a part; -1: it is the number of these."""
    if aggregate is None or aggregate.function == "COUNT(*)":
        return -1
    kind = aggregate.function if aggregate.function in {"MIN", "MAX"} else "moments"
    return states.index((aggregate.argument, "count" if aggregate.function == "COUNT" else kind))


def _number_text(codec: Codec, function: str, count: int, total: int, decimals: int) -> bytes | None:
    """Return the text of a sum or a mean of so many numbers; None: it has more digits than a double."""
    moments = Moments(has_squares=False)
    moments.combine((count, total, decimals, 0))
    value = moments.sum() if function == "SUM" else moments.mean()
    return None if isinstance(value, Decimal) else codec.encode_decoded(value)
