"""The plug-ins `view_left` and `view_right`: send the records of both sides of a join to where equal keys meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Output, Record, Stored
from processor.api.builtin import builtin_context
from processor.builtin.view.compiled_stages import compiled_sides
from processor.builtin.view.definitions import check_fingerprint, compiled_filter, fields_of, view_name
from processor.builtin.view.source import FirstStage, Source
from processor.builtin.view.stage_output import (
    KEPT,
    LEFT,
    RIGHT,
    answer_member,
    join_key,
    meeting,
    read_keys,
    write_keys,
)
from processor.codec import load_codec
from processor.config import ViewConfig
from processor.config.derived_topics import SPLIT
from processor.filter.aggregate import plain
from processor.wire.record_headers import source_header
from processor.wire.view_parts import ROUTE_HEADERS, group_of_route, member_key, route_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api import Headers, Outgoing, Value

REFERENCE: Final = b"1"
"""The value of a reference: it only has to be there."""


class _Side(FirstStage):
    """The base of both sides: routes as state, and parts that are collected by output and partition."""

    keeps_input_keys: ClassVar[bool] = True

    _compile = staticmethod(fields_of)

    def _begin(self, context: Context, settings: ViewConfig) -> None:
        self._context = context
        self._json = load_codec("json")
        self._routes: dict[bytes, bytes | None] = {}
        self._parts: dict[tuple[str, int], list[Outgoing]] = {}
        self._place = f"{context.source_topic}/{context.partition}/".encode() if settings.as_of else None
        self._headers: Headers = []
        check_fingerprint(context, settings)

    def _run(self, source: Source, records: Sequence[Record]) -> None:
        """Take the records in order, and send the parts and the routes that changed."""
        keys = [record.key for record in records if record.key is not None]
        self._routes = {
            key: None if route is None else group_of_route(route.value)
            for key, route in self._context.state.get_many(keys).items()
        }
        before = dict(self._routes)
        self._take_all(source, records)
        for (output, partition), parts in self._parts.items():
            self._context.forward_to(output, partition, parts)
        self._parts = {}
        changes = {key: route for key, route in self._routes.items() if route != before[key]}
        values = {key: None if route is None else route_value(route) for key, route in changes.items()}
        if values:
            states = {key: None if value is None else Stored(1, value) for key, value in values.items()}
            self._context.state.put_many(states)
            self._context.forward_many("sow", [(key, value, ROUTE_HEADERS) for key, value in values.items()])

    def _take_all(self, source: Source, records: Sequence[Record]) -> None:
        """Take the records in order."""
        source.each(records, self._take_with_place)

    def _take_with_place(self, record: Record, state: Value | None) -> None:
        self._note_place(record)
        self._take(record, state)

    def _note_place(self, record: Record) -> None:
        """Note the place of a record, which its parts have if the rows are to have the header `as_of`."""
        if self._place is not None:
            self._headers = [source_header(self._place, record.offset)]

    def _take(self, record: Record, state: Value | None) -> None:
        raise NotImplementedError

    def _send(self, group: bytes, member: bytes, value: bytes | None) -> None:
        """Send a part to the partition of its group."""
        self._add(
            "parts", self._context.partition_for(group, "parts"), (member_key(group, member), value, self._headers)
        )

    def _send_to_all(self, group: bytes, member: bytes, value: bytes | None) -> None:
        """Send a part to every partition."""
        part = member_key(group, member), value, self._headers
        for partition in range(self._context.partitions_of("parts")):
            self._add("parts", partition, part)

    def _add(self, output: str, partition: int, part: Outgoing) -> None:
        self._parts.setdefault((output, partition), []).append(part)


class ViewLeft(_Side):
    """Sends each record of the underlying to its row, and a reference to it to each of its keys."""

    outputs: ClassVar[tuple[Output, ...]] = (
        Output("sow"),
        Output("mark"),
        Output("references", downstream=True),
        Output("parts", downstream=True),
    )

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition."""
        assert isinstance(settings, ViewConfig)
        self._begin(context, settings)
        self._members = fields_of(context.name, settings).members
        self._keys = [join_key(each.on) for each in settings.join]
        self._method = settings.join_method
        self._source = Source(context, settings.underlying, compiled_filter(view_name(context.name), settings.filter))
        self._plain = compiled_sides(settings, self._members, builtin_context(context).input_codec)

    def process(self, records: Sequence[Record]) -> None:
        """Send the records in order."""
        self._run(self._source, records)

    def _take_all(self, source: Source, records: Sequence[Record]) -> None:
        """Take the records in order; plain ones are not parsed."""
        if self._plain is None:
            super()._take_all(source, records)
            return
        others: list[Record] = []
        for record in records:
            made = None if record.key is None else self._plain(record.value)
            if made is None:
                others.append(record)
                continue
            if others:
                super()._take_all(source, others)
                others = []
            self._note_place(record)
            self._put(record, *made)
        super()._take_all(source, others)

    def _take(self, record: Record, state: Value | None) -> None:
        if state is None:
            self._put(record, None, None)
            return
        keys = [join(state) for join in self._keys]
        fields = {name: plain(state[name]) for name in self._members if name in state}
        self._put(record, write_keys(keys), self._json.encode([keys, fields]))

    def _put(self, record: Record, route: bytes | None, part: bytes | None) -> None:
        """Send the part of a record, and the references that have changed; None: the record is gone."""
        key = record.key
        assert key is not None
        former = self._routes[key]
        if part is not None or former is not None:
            self._send(key, LEFT, part)
        if route == former:
            return
        self._routes[key] = route
        none: list[str | None] = [None] * len(self._keys)
        old, new = (none if each is None else read_keys(each) for each in (former, route))
        for place, (before, after) in enumerate(zip(old, new, strict=True), 1):
            if before == after or self._method == "same_key":
                continue
            for join, value in ((before, None), (after, REFERENCE)):
                if join is None:
                    continue
                group = meeting(place, join)
                # By broadcast the partner comes to where the row is.
                at, mark = (key, KEPT) if self._method == "broadcast" else (group, LEFT)
                partition = self._context.partition_for(at, "references")
                self._add("references", partition, (member_key(group, mark + key), value, []))


class ViewRight(_Side):
    """Sends each record of a joined topic to its key."""

    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("mark"), Output("parts", downstream=True))

    @staticmethod
    def _topic_of(name: str, settings: ViewConfig) -> str:
        return settings.join[_place_of(name) - 1].topic

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition."""
        assert isinstance(settings, ViewConfig)
        self._begin(context, settings)
        self._number = _place_of(context.name)
        joined = settings.join[self._number - 1]
        self._members = fields_of(context.name, settings).joined_members(joined.topic)
        self._key = join_key(joined.on.values())
        self._is_by_key = settings.join_method == "same_key"
        self._send_part = self._send_to_all if settings.join_method == "broadcast" else self._send
        self._source = Source(context, joined.topic, None)

    def process(self, records: Sequence[Record]) -> None:
        """Send the records in order."""
        self._run(self._source, records)

    def _take(self, record: Record, state: Value | None) -> None:
        key = record.key
        assert key is not None
        join = None if state is None else self._key(state)
        fields = {} if state is None else {name: plain(state[name]) for name in self._members if name in state}
        if self._is_by_key:
            # Equal key fields are equal keys: the record goes to the row of its own key, as an answer.
            self._routes[key] = None if join is None else b""
            answer = None if join is None else self._json.encode([fields])
            self._send(key, answer_member(self._number), answer)
            return
        route = self._routes[key]
        new = None if join is None else join.encode(errors="surrogatepass")
        if route is not None and route != new:
            self._send_part(meeting(self._number, route.decode(errors="surrogatepass")), RIGHT + key, None)
        if join is not None:
            self._send_part(meeting(self._number, join), RIGHT + key, self._json.encode(fields))
        self._routes[key] = new


def _place_of(stage: str) -> int:
    """Return the number of the joined topic in the view, from 1: it is the end of the stage's name."""
    return int(stage.rpartition(f".{SPLIT}")[2])
