"""The plug-in `view_aggregate`: keeps the parts of all members as a table, and writes the rows of their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

from processor.api import Context, Input, Output, Processor, Record, Stored
from processor.builtin.view.as_of import InputPrefix
from processor.builtin.view.contributions import Contributions
from processor.builtin.view.definitions import aggregates_of
from processor.builtin.view.fingerprint import check_fingerprint
from processor.builtin.view.groups import Groups
from processor.builtin.view.row_writer import RowWriter, show_groups, show_ready
from processor.builtin.view.start_pass import StartPass
from processor.config import ViewConfig
from processor.filter.aggregate import GroupIncomplete
from processor.wire.view_parts import group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Value
    from processor.filter.aggregate import Contribution

CHANGED_MAX: Final = 2_000
"""Changed groups at which rows are written before the commit, so that no commit takes long."""


class ViewAggregate(Processor):
    """Writes a row for each group; its state is the rows, its table the contributions of all members."""

    settings_type = ViewConfig
    input: ClassVar[Input] = Input("parts")
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("delta"), Output("mark"))
    keeps_table: ClassVar[bool] = True

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:  # noqa: ARG003
        """Refuse a definition that cannot be used."""
        assert isinstance(settings, ViewConfig)
        aggregates_of(name, settings)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition; all rows are compared soon."""
        assert isinstance(settings, ViewConfig)
        self._context = context
        self._definition = aggregates_of(context.name, settings)
        self._contributions = Contributions()
        self._writer = RowWriter(context)
        self._rows_are_all = settings.having is None
        is_partial = settings.partial_aggregation
        new_group = self._definition.new_combined_group if is_partial else self._definition.new_group
        self._groups = Groups(context.table, new_group, self._contributions)
        self._changed: dict[bytes, None] = {}
        self._start = StartPass(context)
        self._as_of = InputPrefix(context) if settings.as_of else None
        check_fingerprint(context, settings)

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

    def punctuate(self, now_ms: int) -> bool:
        """Go through a part of the table and the rows, until all groups were compared once; build waiting groups."""
        self._changed.update(dict.fromkeys(self._start.next_groups(now_ms, self._groups.fold)))
        is_built = self._groups.build_some()
        if self._start.is_due or is_built:
            self.flush()  # Without input there is no commit that would ask for it.
        is_ready = self._start.is_done and not self._groups.has_waiting and self._context.stream_time_ms == now_ms
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
                rows[key] = self._definition.row(group)
            except GroupIncomplete:
                self._groups.build_again(key)
                waiting[key] = None
        self._changed = waiting
        refused = self._writer.write(rows, None if self._as_of is None else self._as_of.headers())
        self._rows_are_all = self._rows_are_all and not refused
        self._groups.forget([key for key, row in rows.items() if row is None])
        self._start.wrote(are_all=not waiting)

    def _put(self, parts: Sequence[tuple[Record, bytes]]) -> None:
        """Put parts into the table, and into the groups that are in memory."""
        table = self._context.table
        keys = cast("list[bytes]", [record.key for record, _ in parts])
        known = {key: stored.value for key, stored in table.get_many(keys).items() if stored is not None}
        decode = self._contributions.decode_many
        current: dict[bytes, Contribution | None] = dict(zip(known, decode(list(known.values())), strict=True))
        news = iter(decode([record.value for record, _ in parts if record.value is not None]))
        changes: dict[bytes, Stored | None] = {}
        change = self._groups.change
        for key, (record, group) in zip(keys, parts, strict=True):
            value = record.value
            part = None if value is None else next(news)
            change(group, key, current.get(key), part)
            current[key] = part
            changes[key] = None if value is None else Stored(1, value)
        table.put_many(changes)

    def _parts_of(self, records: Sequence[Record]) -> list[tuple[Record, bytes]]:
        """Return each record with its group; a record that no split wrote is rejected."""
        try:
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
