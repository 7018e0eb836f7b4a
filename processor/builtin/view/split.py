"""The plug-in `view_split`: sends the part of each record that its group needs to the partition of that group."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from processor.api import Context, Output, Record, Stored
from processor.api.builtin import builtin_context
from processor.builtin.view.compiled_stages import compiled_contributions
from processor.builtin.view.definitions import (
    aggregates_of,
    check_fingerprint,
    compiled_filter,
    note_away_members,
    view_name,
)
from processor.builtin.view.source import FirstStage, Source
from processor.builtin.view.stage_output import Contributions
from processor.config import ViewConfig
from processor.values.key_text import group_key
from processor.wire.record_headers import source_header
from processor.wire.view_parts import (
    ROUTE_HEADERS,
    away_prefix,
    away_route_value,
    group_of_route,
    is_away_route,
    member_key,
    route_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic import BaseModel

    from processor.api import Headers, Outgoing


_TARGETS_MAX: Final = 10_000
"""Groups whose targets are kept in memory."""


class _Target(NamedTuple):
    """The place to which the parts of a group are sent."""

    partition: int
    """The partition of the group."""
    prefix: bytes
    """The keys of its parts, up to the keys of the records."""
    route: Stored
    """The state of a record in the group."""


class ViewSplit(FirstStage):
    """Reads the records of the underlying; its state is the group of each record, by which it leaves the old one.

    Two partitions may have a record with the same key, under `foreign_partition: accept` or until the key was healed.
    So the part of one whose key does not belong to this partition has the partition in its key, as has each record of a
    plug-in whose keys name their partitions.
    """

    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("mark"), Output("parts", downstream=True))
    keeps_input_keys: ClassVar[bool] = True

    _compile = staticmethod(aggregates_of)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition."""
        assert isinstance(settings, ViewConfig)
        self._context = context
        self._definition = aggregates_of(context.name, settings)
        self._contributions = Contributions()
        self._topic = settings.underlying
        self._source = Source(context, self._topic, compiled_filter(view_name(context.name), settings.filter))
        self._place = f"{context.source_topic}/{context.partition}/".encode() if settings.as_of else None
        self._plain = compiled_contributions(
            self._definition, settings, builtin_context(context).input_codec, context.partition
        )
        self._targets: dict[tuple[bytes, bool], _Target] = {}
        check_fingerprint(context, settings)

    def process(self, records: Sequence[Record]) -> None:
        """Send the part of each record, in order: any prefix of a partition's parts is one of its records."""
        routes = self._context.state.get_many([record.key for record in records if record.key is not None])
        changes: dict[bytes, Stored | None] = {}
        parts: defaultdict[int, list[Outgoing]] = defaultdict(list)
        headers: Headers = []
        for record, group, part in self._parts_of(records):
            key = record.key
            if key is None:
                continue  # It was rejected.
            old = changes[key] if key in changes else routes[key]
            target = None if group is None else self._target(group, is_away=self._is_away(key, old))
            route = None if target is None else target.route
            if self._place is not None:
                headers = [source_header(self._place, record.offset)]
            if old is not None and old != route:
                self._leave(parts, old, key, route, headers)
            if target is not None:
                parts[target.partition].append((target.prefix + key, part, headers))
            if old != route:
                changes[key] = route
        for partition, outgoing in parts.items():
            self._context.forward_to("parts", partition, outgoing)
        if changes := {key: route for key, route in changes.items() if route != routes[key]}:
            self._context.state.put_many(changes)
            values = [(key, None if route is None else route.value) for key, route in changes.items()]
            self._context.forward_many("sow", [(key, value, ROUTE_HEADERS) for key, value in values])

    def _leave(
        self,
        parts: dict[int, list[Outgoing]],
        old: Stored,
        key: bytes,
        route: Stored | None,  # noqa: ARG002 - the injected faults tell a change of the group from a delete by it
        headers: Headers,
    ) -> None:
        """Add the tombstone by which a record leaves its old group, for another one or for none."""
        target = self._target(group_of_route(old.value), is_away=is_away_route(old.value))
        parts[target.partition].append((target.prefix + key, None, headers))

    def _parts_of(self, records: Sequence[Record]) -> Iterator[tuple[Record, bytes | None, bytes | None]]:
        """Yield the records with the keys of their groups and their contributions, in order; None: it has no group.

        Plain records are not parsed. One that cannot be read, or on which a function fails, is rejected, without group.
        """
        others: list[Record] = []
        for record in records:
            key, value, _, offset, timestamp_ms = record
            made = None if self._plain is None or key is None else self._plain(value, timestamp_ms, offset)
            if made is None:
                others.append(record)
                continue
            if others:
                yield from self._parsed_parts(others)
                others = []
            yield record, *made
        yield from self._parsed_parts(others)

    def _parsed_parts(self, records: Sequence[Record]) -> Iterable[tuple[Record, bytes | None, bytes | None]]:
        """Return the same of records that have to be parsed, together."""
        contributions = self._source.contributions(records, self._definition, partition=self._context.partition)
        written = iter(self._contributions.encode_many(filter(None, contributions)))
        return [
            (record, *((None, None) if contribution is None else (group_key(contribution.group), next(written))))
            for record, contribution in zip(records, contributions, strict=True)
        ]

    def _is_away(self, key: bytes, route: Stored | None) -> bool:
        """Return whether a record's member has its partition; it stays as it was when the record came."""
        if route is not None:
            return is_away_route(route.value)
        return self._context.partition_for(key) != self._context.partition

    def _target(self, group: bytes, *, is_away: bool) -> _Target:
        target = self._targets.get((group, is_away))
        if target is None:
            if is_away:
                note_away_members(self._context)
            if len(self._targets) >= _TARGETS_MAX:
                self._targets.clear()
            partition = self._context.partition_for(group, "parts")
            prefix = away_prefix(group, self._context.partition) if is_away else member_key(group, b"")
            route = away_route_value(group) if is_away else route_value(group)
            target = self._targets[group, is_away] = _Target(partition, prefix, Stored(1, route))
        return target
