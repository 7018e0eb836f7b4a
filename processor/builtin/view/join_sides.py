"""The plug-ins `view_left` and `view_right`: send the records of both sides of a join to where equal keys meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Input, Output, Processor, Record, Stored
from processor.builtin.view.definitions import check_source, fields_of, view_name
from processor.builtin.view.fingerprint import check_fingerprint
from processor.builtin.view.join_keys import LEFT, RIGHT, answer_member, join_key, meeting, read_keys, write_keys
from processor.builtin.view.row_writer import show_ready
from processor.builtin.view.source import Source, compiled_filter
from processor.codec import load_codec
from processor.config import ViewConfig
from processor.config.view import SPLIT
from processor.filter.aggregate import plain
from processor.wire.view_parts import ROUTE_HEADERS, group_of_route, member_key, route_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Outgoing, Value

REFERENCE: Final = b"1"
"""The value of a reference: it only has to be there."""


class _Side(Processor):
    """The base of both sides: routes as state, and parts that are collected by output and partition."""

    settings_type = ViewConfig
    input: ClassVar[Input] = Input("sow", from_underlying=True)

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse a definition that cannot be used."""
        assert isinstance(settings, ViewConfig)
        check_source(name, settings, cls._topic_of(name, settings), codec)
        fields_of(name, settings)

    def punctuate(self, now_ms: int) -> bool:
        """Set the gauge that shows whether the stage has caught up."""
        show_ready(self._context, is_ready=self._context.stream_time_ms == now_ms)
        return False

    @classmethod
    def _topic_of(cls, name: str, settings: ViewConfig) -> str:
        """Return the topic whose records the stage of this name reads."""
        raise NotImplementedError

    def _begin(self, context: Context, settings: ViewConfig) -> None:
        self._context = context
        self._json = load_codec("json")
        self._routes: dict[bytes, bytes | None] = {}
        self._parts: dict[tuple[str, int], list[Outgoing]] = {}
        check_fingerprint(context, settings)

    def _run(self, source: Source, records: Sequence[Record]) -> None:
        """Take the records in order, and send the parts and the routes that changed."""
        keys = [record.key for record in records if record.key is not None]
        self._routes = {
            key: None if route is None else group_of_route(route.value)
            for key, route in self._context.state.get_many(keys).items()
        }
        before = dict(self._routes)
        source.each(records, self._take)
        for (output, partition), parts in self._parts.items():
            self._context.forward_to(output, partition, parts)
        self._parts = {}
        changes = {key: route for key, route in self._routes.items() if route != before[key]}
        values = {key: None if route is None else route_value(route) for key, route in changes.items()}
        if values:
            states = {key: None if value is None else Stored(1, value) for key, value in values.items()}
            self._context.state.put_many(states)
            self._context.forward_many("sow", [(key, value, ROUTE_HEADERS) for key, value in values.items()])

    def _take(self, record: Record, state: Value | None) -> None:
        raise NotImplementedError

    def _send(self, output: str, group: bytes, member: bytes, value: bytes | None) -> None:
        partition = self._context.partition_for(group, output)
        self._parts.setdefault((output, partition), []).append((member_key(group, member), value, []))


class ViewLeft(_Side):
    """Sends each record of the underlying to its row, and a reference to it to each of its keys."""

    outputs: ClassVar[tuple[Output, ...]] = (
        Output("sow"),
        Output("mark"),
        Output("references", downstream=True),
        Output("parts", downstream=True),
    )

    @classmethod
    def _topic_of(cls, name: str, settings: ViewConfig) -> str:  # noqa: ARG003
        return settings.underlying

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition."""
        assert isinstance(settings, ViewConfig)
        self._begin(context, settings)
        self._members = fields_of(context.name, settings).members
        self._keys = [join_key(each.on) for each in settings.join]
        self._has_references = settings.join_method != "same_key"
        self._source = Source(context, settings.underlying, compiled_filter(view_name(context.name), settings.filter))

    def process(self, records: Sequence[Record]) -> None:
        """Send the records in order."""
        self._run(self._source, records)

    def _take(self, record: Record, state: Value | None) -> None:
        key = record.key
        assert key is not None
        route = self._routes[key]
        old: list[str | None] = [None] * len(self._keys) if route is None else read_keys(route)
        if state is None:
            new: list[str | None] = [None] * len(self._keys)
            if route is not None:
                self._send("parts", key, LEFT, None)
            self._routes[key] = None
        else:
            new = [join(state) for join in self._keys]
            fields = {name: plain(state[name]) for name in self._members if name in state}
            self._send("parts", key, LEFT, self._json.encode([new, fields]))
            self._routes[key] = write_keys(new)
        for place, (before, after) in enumerate(zip(old, new, strict=True), 1):
            if before == after or not self._has_references:
                continue
            if before is not None:
                self._send("references", meeting(place, before), LEFT + key, None)
            if after is not None:
                self._send("references", meeting(place, after), LEFT + key, REFERENCE)


class ViewRight(_Side):
    """Sends each record of a joined topic to its key."""

    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("mark"), Output("parts", downstream=True))

    @classmethod
    def _topic_of(cls, name: str, settings: ViewConfig) -> str:
        return settings.join[_place_of(name) - 1].topic

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition."""
        assert isinstance(settings, ViewConfig)
        self._begin(context, settings)
        self._place = _place_of(context.name)
        joined = settings.join[self._place - 1]
        self._members = fields_of(context.name, settings).joined_members(joined.topic)
        self._key = join_key(joined.on.values())
        self._is_by_key = settings.join_method == "same_key"
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
            self._send("parts", key, answer_member(self._place), answer)
            return
        route = self._routes[key]
        new = None if join is None else join.encode(errors="surrogatepass")
        if route is not None and route != new:
            self._send("parts", meeting(self._place, route.decode(errors="surrogatepass")), RIGHT + key, None)
        if join is not None:
            self._send("parts", meeting(self._place, join), RIGHT + key, self._json.encode(fields))
        self._routes[key] = new


def _place_of(stage: str) -> int:
    """Return the number of the joined topic in the view, from 1: it is the end of the stage's name."""
    return int(stage.rpartition(f".{SPLIT}")[2])
