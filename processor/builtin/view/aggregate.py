"""The plug-in `view_aggregate`: keeps the parts of all members as a table, and writes the rows of their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from processor.api import Context, Record
from processor.builtin.view.compiled_stages import compiled_groups, groups_of_parts
from processor.builtin.view.definitions import aggregates_of
from processor.builtin.view.kept_groups import Groups
from processor.builtin.view.stage_output import Contributions, plain_value, show_groups, show_ready
from processor.builtin.view.start_pass import LastStage
from processor.config import ViewConfig
from processor.filter.aggregate import Group, GroupIncomplete
from processor.filter.aggregate.group import Contribution
from processor.wire.view_parts import group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import BaseModel

    from processor.api import Value
    from processor.builtin.view.plain_groups import PlainGroup

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
        self._plain = compiled_groups(self._definition, settings, context.codec) if is_combined else None
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
        if self._plain is None or isinstance(group, Group):
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
            return groups_of_parts(records)
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
