"""The plug-in `view_partial_aggregate`: aggregates the records of one partition, and sends a part for each group."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Output, Record, Stored
from processor.api.builtin import builtin_context
from processor.builtin.view.compiled_stages import compiled_records, fold_parsed, plain_part
from processor.builtin.view.definitions import (
    aggregates_of,
    check_fingerprint,
    check_partial_aggregation,
    compiled_filter,
    view_name,
)
from processor.builtin.view.source import FirstStage, FormerSource, Source
from processor.builtin.view.stage_output import Contributions, show_groups, show_ready
from processor.config import ViewConfig
from processor.filter.aggregate import Contribution, GroupIncomplete
from processor.filter.aggregate.extremes import KEPT_LEAST, KEPT_MAX
from processor.values.key_text import group_key
from processor.wire.view_parts import (
    ROUTE_HEADERS,
    SENT,
    group_of_route,
    member_key,
    route_value,
    totals_of_state,
    totals_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from processor.api import Outgoing
    from processor.filter.aggregate import Group

_PIECE: Final = 2_000
"""Records, or groups, that are gone through in one turn at the start: about 20 ms."""

_GROUPS_MAX: Final = 100_000
"""Groups of one partition whose totals are in memory, about 500 bytes each; those of others are in the state."""

_KEPT_MAX: Final = KEPT_MAX
"""Values nearest to each extreme of a group that are in memory, before the group is filled again."""

_ROOM_MAX: Final = 2_000_000
"""Values of a partition's plain records that are in memory for its extremes, 16 bytes each: about 32 MB."""

_OTHERS_SHARE: Final = 8
"""Values of other records, which are objects of about 100 bytes: one of so many of `_ROOM_MAX`."""

_SENT: Final = Stored(1, SENT)

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class ViewPartialAggregate(FirstStage):
    """Sends the aggregates of a group's records in this partition, once in a transaction, as one part.

    A part is a state and no difference: of all records of the group that the partition has. The former state of a
    record, which leaves its group, is read from the table, which is the partition's SOW topic itself. The groups of the
    partition are in memory; a new instance builds them from the table, and sends the parts of all of them. Its state
    has the groups of which a part was sent, so that those without members are found then.

    Most records are plain, as the compiled `plain_records` defines it, which adds up their numbers. `_groups` has the
    others, and all of them where it could not be compiled or the definition is not simple: about a kilobyte each.

    Of more than `_GROUPS_MAX` groups of plain records, those that were read longest ago have their totals in the state.
    These count for the instance that wrote them alone, and as long as the group is not in memory.

    A group has the values nearest to its `MIN` or `MAX` alone. When they have all left and there are others, the part
    of the group is held back until all records of the table have been read again, a piece at a time; the parts of other
    groups are sent meanwhile. One pass fills all groups that have few left, and each may keep twice as many from then
    on: so the records that are read for each extreme that leaves get fewer by half each time, up to `_ROOM_MAX` values.
    """

    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("mark"), Output("parts", downstream=True))
    keeps_table: ClassVar[bool] = True

    _compile = staticmethod(check_partial_aggregation)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition; the groups are built by `punctuate`."""
        assert isinstance(settings, ViewConfig)
        self._context = context
        self._definition = aggregates_of(context.name, settings)
        self._contributions = Contributions()
        selected = compiled_filter(view_name(context.name), settings.filter)
        self._source = Source(context, settings.underlying, selected)
        self._former = FormerSource(context, settings.underlying, selected)
        self._member, self._place = b"%d" % context.partition, (0, context.partition, 0)
        self._groups: dict[bytes, Group] = {}
        self._states = self._definition.new_group().states
        self._plain = compiled_records(
            self._definition,
            settings,
            builtin_context(context).input_codec,
            context.partition,
            kept_max=_KEPT_MAX,
            room_max=_ROOM_MAX,
        )
        self._changed: dict[bytes, None] = {}
        self._sent: set[bytes] = set()
        self._is_built = self._knows_sent = False
        self._after: bytes | None = None  # The key of the table, then of the state, up to which was read.
        self._word = secrets.token_hex(4).encode()  # Of this instance, in the totals that it writes.
        self._unsent: list[bytes] = []  # Groups whose parts are still to be sent since the start.
        self._held: dict[bytes, None] = {}  # Groups whose parts are to be sent when all records have been read again.
        self._is_refilling = False
        self._refilled: set[bytes] = set()  # Those of `_groups` that get their records again.
        self._kept_max = _KEPT_MAX
        self._has_come = context.table_until == 0  # Whether all records that the table was restored from have come.
        check_fingerprint(context, settings)

    def process(self, records: Sequence[Record]) -> None:
        """Put the records into the table and into their groups."""
        until = self._context.table_until
        self._has_come = self._has_come or records[-1].offset + 1 >= until
        if records[0].offset < until:
            # These are in the table already, and those that cannot be read are rejected now.
            early = [record for record in records if record.offset < until]
            self._source.contributions(early if self._plain is None else self._plain.others(early), self._definition)
            records = records[len(early) :]
        rows = self._context.table.get_many([record.key for record in records if record.key is not None])
        changes: dict[bytes, Stored | None] = {}
        added: list[Record] = []
        removed: list[tuple[bytes, bytes]] = []
        fold = fold_parsed if self._plain is None else self._plain.fold
        fold(records, rows, changes, self._changed, added, removed, self._after, self._is_built)
        # Added first: a group keeps no sum while it is empty.
        keys = [record.key or b"" for record in added]
        self._apply(keys, self._source.contributions(added, self._definition), 1)
        self._apply([key for key, _ in removed], self._former_contributions(removed), -1)
        self._context.table.put_many(changes)

    def punctuate(self, now_ms: int) -> bool:  # noqa: ARG002
        """At the start read the table, and then the state, a piece at a time; then send the parts of all groups."""
        is_at_end = self._context.is_at_end
        self._has_come = self._has_come or is_at_end  # Compaction may have removed the last of them.
        if not self._is_built:
            self._build_some()
            self._skip_known()
        elif not self._knows_sent and self._has_come:
            self._read_sent()
        elif self._unsent and self._has_come:
            self._changed.update(dict.fromkeys(self._unsent[-_PIECE:]))
            del self._unsent[-_PIECE:]
            self.flush()
        elif self._held:
            self._refill_some()
        is_waited_for = not self._knows_sent or bool(self._unsent) or bool(self._held)
        has_more = not self._is_built or (self._has_come and is_waited_for)
        show_ready(self._context, is_ready=is_at_end and not is_waited_for)
        show_groups(self._context, len(self._groups) + (0 if self._plain is None else len(self._plain)))
        return has_more

    def flush(self) -> None:
        """Send the parts of the groups that have changed."""
        if not (self._changed and self._knows_sent and self._has_come):
            return
        changed, self._changed = self._changed, {}
        outbox = _Outbox(self._context.partitions_of("parts"))
        others: Collection[bytes] = changed
        if self._plain is not None:
            self._settle(changed)
            others = self._plain.parts(
                changed, self._others(), self._sent, outbox.parts, outbox.added, outbox.left, outbox.held
            )
        self._put_parts(outbox, others, self._part_of)
        self._send(outbox)
        self._limit_groups()

    def _put_parts(
        self, outbox: _Outbox, keys: Iterable[bytes], part_of: Callable[[bytes], Contribution | None]
    ) -> None:
        """`PlainRecords.parts` of any groups: `part_of` returns their parts, None where they have no members."""
        parts: dict[bytes, Contribution | None] = {}
        for key in keys:
            try:
                parts[key] = part_of(key)
            except GroupIncomplete:
                outbox.held.append(key)
        present = {key: part for key, part in parts.items() if part is not None}
        values = dict(zip(present, self._contributions.encode_many(present.values()), strict=True))
        for key in parts:
            value, is_sent = values.get(key), key in self._sent
            if value is None and not is_sent:
                continue
            part: Outgoing = (member_key(key, self._member), value, [])
            if not builtin_context(self._context).fits("parts", part):
                self._context.count("rows_refused")
                continue  # The last part stays, as the last row does where the next one is too large.
            if value is None or not is_sent:
                (outbox.left if value is None else outbox.added).append(key)
            outbox.parts[self._context.partition_for(key, "parts")].append(part)

    def _send(self, outbox: _Outbox) -> None:
        """Send parts, remember the groups of which one was sent, and forget those that were left."""
        for partition, outgoing in enumerate(outbox.parts):
            if outgoing:
                self._context.forward_to("parts", partition, outgoing)
        self._held.update(dict.fromkeys(outbox.held))
        self._sent.update(outbox.added)
        self._sent.difference_update(outbox.left)
        self._put_states(dict.fromkeys(outbox.added, _SENT) | dict.fromkeys(outbox.left))

    def _apply(self, records: Iterable[bytes], contributions: Iterable[Contribution | None], times: int) -> None:
        """Add the contributions of records with these keys to their groups, or remove them with `times` -1."""
        for record, contribution in zip(records, contributions, strict=True):
            if contribution is None:
                continue
            key = group_key(contribution.group)
            self._changed[key] = None
            if key in self._refilled and (self._after is None or record > self._after):
                continue  # It will be read again.
            if times > 0:
                self._add_to_group(key, contribution)
            else:
                group = self._groups[key]
                group.remove(contribution)
                if not group.members:
                    del self._groups[key]

    def _add_to_group(self, key: bytes, contribution: Contribution) -> None:
        if (group := self._groups.get(key)) is None:
            # The more groups there are, the fewer values each may keep.
            share = _ROOM_MAX // _OTHERS_SHARE // (len(self._groups) + 1)
            group = self._definition.new_group(max(min(self._kept_max, share), min(self._kept_max, KEPT_LEAST)))
            self._groups[key] = group
        group.add(contribution)

    def _refill_some(self) -> None:
        """Read the next piece of the table again, for the groups that have few values of an extreme left."""
        plain = self._plain
        if not self._is_refilling:
            self._is_refilling, self._after = True, None
            if self._kept_max < _ROOM_MAX:
                self._kept_max *= 2
            self._refilled = {key for key, group in self._groups.items() if group.is_low}
            for key in self._refilled:
                del self._groups[key]
            if plain is not None:
                self._settle(self._held)
                plain.begin_refill()
        rows = self._context.table.scan(self._after, _PIECE)
        states = [(key, stored.value) for key, stored in rows if plain is None or not plain.refill(stored.value)]
        for contribution in self._former_contributions(states) if self._refilled else ():
            if contribution is not None and (key := group_key(contribution.group)) in self._refilled:
                self._add_to_group(key, contribution)
        self._after = rows[-1][0] if rows else self._after
        if len(rows) == _PIECE:
            return
        self._is_refilling, self._refilled, self._after = False, set(), None
        if plain is not None:
            plain.end_refill()
        held, self._held = self._held, {}
        self._changed.update(held)
        self.flush()  # Without input there is no commit that would ask for it.

    def _former_contributions(self, states: Iterable[tuple[bytes, bytes]]) -> list[Contribution | None]:
        """Return the contributions of former states: key and value of each."""
        records = [_new(Record, (key, value, None, number, 0)) for number, (key, value) in enumerate(states)]
        return self._former.contributions(records, self._definition)

    def _build_some(self) -> None:
        """Count the records of the next piece of the table."""
        rows = self._context.table.scan(self._after, _PIECE)
        plain, changed = self._plain, self._changed
        states = [(key, stored.value) for key, stored in rows if plain is None or not plain.add(stored.value, changed)]
        self._apply([key for key, _ in states], self._former_contributions(states), 1)
        self._is_built = len(rows) < _PIECE
        self._after = None if self._is_built else rows[-1][0]
        self._changed = {}  # The parts of all groups will be sent.
        self._limit_groups()

    def _skip_known(self) -> None:
        """Leave out the records that a new view has counted from its table, unless one of them could not be read.

        They would be read a second time only to reject such a record.
        """
        is_new = self._is_built and not self._has_come and not self._context.state.scan(None, 1)
        if is_new and not self._former.has_failed:
            builtin_context(self._context).skip_to(self._context.table_until)
            self._has_come = True

    def _part_of(self, key: bytes) -> Contribution | None:
        """Return the part of a group; None: it has no members.

        Raises:
            GroupIncomplete: an extreme is not known now.
        """
        if key in self._refilled:
            raise GroupIncomplete
        group = self._groups.get(key)
        totals = None if self._plain is None else self._plain.totals(key)
        if totals is None or not totals[0]:
            return None if group is None else group.partial(self._place)
        plain = plain_part(self._states, self._place, key, totals)
        if group is None:
            return plain
        both = self._definition.new_combined_group()
        both.add(plain)
        both.add(group.partial(self._place))
        return both.partial(self._place)

    def _read_sent(self) -> None:
        """Read the next piece of the groups of which a part was sent; send those of groups that are not in memory."""
        rows = self._context.state.scan(self._after, _PIECE)
        states = {group_of_route(key): stored.value for key, stored in rows}
        self._sent.update(states)
        totals = {
            key: totals_of_state(state, self._word)
            for key, state in states.items()
            if key not in self._groups and (self._plain is None or key not in self._plain)
        }
        outbox = _Outbox(self._context.partitions_of("parts"))

        def part_of(key: bytes) -> Contribution | None:
            each = totals[key]
            return plain_part(self._states, self._place, key, each) if each and each[0] else None

        self._put_parts(outbox, totals, part_of)
        self._send(outbox)
        self._sent.difference_update(totals)
        self._knows_sent = len(rows) < _PIECE
        self._after = None if self._knows_sent else rows[-1][0]
        if self._knows_sent:
            plain = [] if self._plain is None else self._plain.keys()
            self._unsent = [*dict.fromkeys((*plain, *self._groups, *self._sent))]
            self._changed, self._after = {}, None

    def _settle(self, changed: Collection[bytes]) -> None:
        """Read the totals of the changed groups that are in the state."""
        assert self._plain is not None
        if unknown := self._plain.unknown(changed):
            stored = self._context.state.get_many([*map(route_value, unknown)])
            states = {key: row.value for key in unknown if (row := stored[route_value(key)]) is not None}
            self._sent.update(states)
            self._plain.settle({key: totals_of_state(states.get(key, b""), self._word) for key in unknown})

    def _limit_groups(self) -> None:
        """Write the totals of the groups that are too many for the memory to the state."""
        if self._plain is None or (excess := len(self._plain) - _GROUPS_MAX) <= 0:
            return
        self._settle(())
        totals = self._plain.set_aside(excess, self._others())
        self._sent.difference_update(totals)
        self._put_states({key: Stored(1, totals_state(self._word, each)) for key, each in totals.items()})

    def _others(self) -> Container[bytes]:
        """Return the groups that are no matter of plain records alone, or are not complete."""
        return {*self._groups, *self._refilled, *self._held} if self._held else self._groups

    def _put_states(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Write the states of groups; None deletes."""
        if not changes:
            return
        routes = {route_value(key): state for key, state in changes.items()}
        self._context.state.put_many(routes)
        values = [(key, None if state is None else state.value, ROUTE_HEADERS) for key, state in routes.items()]
        self._context.forward_many("sow", values)


class _Outbox:
    """The parts to send."""

    def __init__(self, partitions: int) -> None:
        self.parts: list[list[Outgoing]] = [[] for _ in range(partitions)]
        """For each partition key, value and headers of its records."""
        self.added: list[bytes] = []
        """The groups of which no part was sent before."""
        self.left: list[bytes] = []
        """The groups of which no part is left."""
        self.held: list[bytes] = []
        """The groups of which an extreme is not known."""
