"""The plug-in `view_partial_aggregate`: aggregates the records of one partition, and sends a part for each group."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Input, Output, Processor, Record, Stored
from processor.api.builtin import builtin_context
from processor.builtin.view.definitions import (
    aggregates_of,
    check_fingerprint,
    check_partial_aggregation,
    check_source,
    view_name,
)
from processor.builtin.view.source import FormerSource, Source, compiled_filter
from processor.builtin.view.stage_output import Contributions, show_groups, show_ready
from processor.config import ViewConfig
from processor.filter.aggregate import Contribution
from processor.values.key_text import group_key, text_of_key_text
from processor.wire.view_parts import ROUTE_HEADERS, group_of_route, member_key, route_value

try:
    from processor.builtin.view.plain_records import PlainRecords, most_arguments

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Outgoing, Value
    from processor.filter.aggregate import AggregateDefinition, Group

_PIECE: Final = 2_000
"""Records, or groups, that are gone through in one turn at the start: about 20 ms."""

_SENT: Final = Stored(1, b"1")
"""The state of a group of which a part was sent."""

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class ViewPartialAggregate(Processor):
    """Sends the aggregates of a group's records in this partition, once in a transaction, as one part.

    A part is a state and no difference: of all records of the group that the partition has. The former state of a
    record, which leaves its group, is read from the table, which is the partition's SOW topic itself. All groups of the
    partition are in memory; a new instance builds them from the table, and sends the parts of all of them. Its state
    has the groups of which a part was sent, so that those without members are found then.

    Most records are plain, as the compiled `plain_records` defines it, which adds up their numbers. `_groups` has the
    others, and all of them where it could not be compiled or the definition is not simple.
    """

    settings_type = ViewConfig
    input: ClassVar[Input] = Input("sow", from_underlying=True)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("mark"), Output("parts", downstream=True))
    keeps_table: ClassVar[bool] = True

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse a definition that cannot be used."""
        assert isinstance(settings, ViewConfig)
        check_source(name, settings, settings.underlying, codec)
        check_partial_aggregation(name, settings)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition; the groups are built by `punctuate`."""
        assert isinstance(settings, ViewConfig)
        self._context = context
        self._definition = aggregates_of(context.name, settings)
        self._contributions = Contributions()
        selected = compiled_filter(view_name(context.name), settings.filter)
        self._source = Source(context, settings.underlying, selected)
        self._former = FormerSource(context, settings.underlying, selected)
        self._member = b"%d" % context.partition
        self._groups: dict[bytes, Group] = {}
        self._states = self._definition.new_group().states
        self._plain = _plain_records(
            self._definition, settings, builtin_context(context).input_codec, context.partition
        )
        self._changed: dict[bytes, None] = {}
        self._sent: set[bytes] = set()
        self._is_built = self._knows_sent = False
        self._after: bytes | None = None  # The key of the table, then of the state, up to which was read.
        self._unsent: list[bytes] = []  # Groups whose parts are still to be sent since the start.
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
        fold = _fold if self._plain is None else self._plain.fold
        fold(records, rows, changes, self._changed, added, removed, self._after, self._is_built)
        # Added first: a group keeps no sum while it is empty.
        self._apply(self._source.contributions(added, self._definition), 1)
        self._apply(self._former_contributions(removed), -1)
        self._context.table.put_many(changes)

    def punctuate(self, now_ms: int) -> bool:
        """At the start read the table, and then the state, a piece at a time; then send the parts of all groups."""
        is_at_end = self._context.stream_time_ms == now_ms
        self._has_come = self._has_come or is_at_end  # Compaction may have removed the last of them.
        if not self._is_built:
            self._build_some()
        elif not self._knows_sent:
            self._read_sent()
        elif self._unsent and self._has_come:
            self._changed.update(dict.fromkeys(self._unsent[-_PIECE:]))
            del self._unsent[-_PIECE:]
            self.flush()
        has_more = not self._knows_sent or (bool(self._unsent) and self._has_come)
        show_ready(self._context, is_ready=is_at_end and not has_more)
        show_groups(self._context, len(self._groups) + (0 if self._plain is None else len(self._plain)))
        return has_more

    def flush(self) -> None:
        """Send the parts of the groups that have changed."""
        if not (self._changed and self._knows_sent and self._has_come):
            return
        changed, self._changed = self._changed, {}
        parts: list[list[Outgoing]] = [[] for _ in range(self._context.partitions_of("parts"))]
        added: list[bytes] = []
        left: list[bytes] = []
        others: Collection[bytes] = changed
        if self._plain is not None:
            others = self._plain.parts(changed, self._groups, self._sent, parts, added, left)
        self._add_parts(others, parts, added, left)
        for partition, outgoing in enumerate(parts):
            if outgoing:
                self._context.forward_to("parts", partition, outgoing)
        self._note_sent(dict.fromkeys(added, _SENT) | dict.fromkeys(left))

    def _add_parts(
        self, groups: Collection[bytes], parts: list[list[Outgoing]], added: list[bytes], left: list[bytes]
    ) -> None:
        """`PlainRecords.parts` of any groups."""
        place = (0, self._context.partition, 0)
        computed = {key: self._part_of(key, place) for key in groups}
        present = {key: part for key, part in computed.items() if part is not None}
        values = dict(zip(present, self._contributions.encode_many(present.values()), strict=True))
        for key in groups:
            value, is_sent = values.get(key), key in self._sent
            if value is None and not is_sent:
                continue
            if value is None or not is_sent:
                (left if value is None else added).append(key)
            parts[self._context.partition_for(key, "parts")].append((member_key(key, self._member), value, []))

    def _apply(self, contributions: Iterable[Contribution | None], times: int) -> None:
        """Add contributions to their groups, or remove them with `times` -1."""
        groups = self._groups
        for contribution in contributions:
            if contribution is None:
                continue
            key = group_key(contribution.group)
            self._changed[key] = None
            if (group := groups.get(key)) is None:
                group = groups[key] = self._definition.new_group()
            if times > 0:
                group.add(contribution)
            else:
                group.remove(contribution)
                if not group.members:
                    del groups[key]

    def _former_contributions(self, states: Iterable[tuple[bytes, bytes]]) -> list[Contribution | None]:
        """Return the contributions of former states: key and value of each."""
        records = [_new(Record, (key, value, None, number, 0)) for number, (key, value) in enumerate(states)]
        return self._former.contributions(records, self._definition)

    def _build_some(self) -> None:
        """Count the records of the next piece of the table."""
        rows = self._context.table.scan(self._after, _PIECE)
        plain, changed = self._plain, self._changed
        states = [(key, stored.value) for key, stored in rows if plain is None or not plain.add(stored.value, changed)]
        self._apply(self._former_contributions(states), 1)
        self._is_built = len(rows) < _PIECE
        self._after = None if self._is_built else rows[-1][0]

    def _part_of(self, key: bytes, place: tuple[int, int, int]) -> Contribution | None:
        """Return the part of a group; None: it has no members."""
        group = self._groups.get(key)
        totals = None if self._plain is None else self._plain.totals(key)
        if totals is None:
            return None if group is None else group.partial(place)
        members, sums = totals
        partials = [sums[argument][0] if kind == "count" else [*sums[argument], 0] for argument, kind in self._states]
        plain = _new(Contribution, (place, (_plain_value(key.decode()),), (members, *partials)))
        if group is None:
            return plain
        both = self._definition.new_combined_group()
        both.add(plain)
        both.add(group.partial(place))
        return both.partial(place)

    def _read_sent(self) -> None:
        """Read the next piece of the groups of which a part was sent."""
        rows = self._context.state.scan(self._after, _PIECE)
        self._sent.update([group_of_route(key) for key, _ in rows])
        self._knows_sent = len(rows) < _PIECE
        self._after = None if self._knows_sent else rows[-1][0]
        if self._knows_sent:
            plain = [] if self._plain is None else self._plain.keys()
            self._unsent = [*dict.fromkeys((*plain, *self._groups, *self._sent))]
            self._changed = {}

    def _note_sent(self, changes: dict[bytes, Stored | None]) -> None:
        """Remember the groups of which a part was sent, and forget those that were left."""
        if not changes:
            return
        for key, state in changes.items():
            (self._sent.discard if state is None else self._sent.add)(key)
        routes = {route_value(key): state for key, state in changes.items()}
        self._context.state.put_many(routes)
        values = [(key, None if state is None else state.value, ROUTE_HEADERS) for key, state in routes.items()]
        self._context.forward_many("sow", values)


def _fold(
    records: Sequence[Record],
    rows: dict[bytes, Stored | None],
    changes: dict[bytes, Stored | None],
    changed: dict[bytes, None],  # noqa: ARG001
    added: list[Record],
    removed: list[tuple[bytes, bytes]],
    after: bytes | None,
    is_complete: bool,
) -> None:
    """`PlainRecords.fold` where no record is plain."""
    for record in records:
        key, value = record[0], record[1]
        if key is None:
            added.append(record)
            continue
        stored = rows.get(key)
        if is_complete or (after is not None and key <= after):
            if value is not None:
                added.append(record)
            if stored is not None:
                removed.append((key, stored[1]))
        rows[key] = changes[key] = None if value is None else _new(Stored, (1, value, 0, -1, b"", b""))


def _plain_value(text: str) -> Value:
    """Return the grouping value of plain records: a text that reads as a number has a key in quotation marks."""
    if not text:
        return None
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() else text_of_key_text(text)


def _plain_records(
    definition: AggregateDefinition, settings: ViewConfig, codec: Codec, partition: int
) -> PlainRecords | None:
    """Return the compiled aggregation; None if the definition is not simple, or it could not be compiled."""
    members = definition.simple_members
    if not has_compiled or codec.json_text is None or settings.filter is not None or members is None:
        return None
    names = [json.dumps(name).encode() for name in members]
    # A canonical text has no other names.
    if len(names) - 1 > most_arguments() or any(b"\\" in name for name in names):
        return None
    states = definition.new_group().states
    return PlainRecords(group_name=names[0], names=names[1:], states=states, partition=partition, stored=Stored)
