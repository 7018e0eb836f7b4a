"""The subscription of a row: the product's engine, driven with the records of the SOW topic, next to its model."""

from __future__ import annotations

from typing import Any, Final

from processor.codec import Codec
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic, parse_options
from tests.programs.array.layout import Layout
from tests.programs.array.problems import Problem, parsed
from tests.programs.oracle.filters import Compare, Filter, IsNull, Like
from tests.programs.oracle.subscriber import Event, Select, State, Subscriber, SubscriberMessage, Wanted
from tests.programs.oracle.values import path_of, pointer_of, same

CALLS: Final = {
    "sow": (True, False, False),
    "subscribe": (False, True, False),
    "delta_subscribe": (False, True, True),
    "sow_and_subscribe": (True, True, False),
    "sow_and_delta_subscribe": (True, True, True),
}
"""The subscribe calls: whether each has a snapshot, continues after it, and delivers deltas."""

CONFLATION_MS: Final = 700
TOP_N: Final = 2


class Subscribing:
    """One subscriber of a topic; a `sow` query is issued in the middle and at the end."""

    def __init__(self, layout: Layout, codec: Codec) -> None:
        self._layout = layout
        self._wanted = wanted_of(layout)
        self._is_json = layout.row["type"] in ("json", "composite-local")
        key = KeyFields(tuple(pointer_of(path) for path in layout.key.paths))
        self._topic = Topic("orders", codec, key)
        self._engine = Engine(self._topic, MemoryRecords())
        self._desk = self._engine.connect(100_000)
        self._states: dict[bytes, State] = {}
        self._model: Subscriber | None = None

    def begin(self) -> list[Problem]:
        """Subscribe."""
        wanted = self._wanted
        self._model = Subscriber(wanted, self._states)
        flags = {"snapshot": wanted.has_snapshot, "live": wanted.is_live, "delta": wanted.is_delta}
        options = parse_options(_options(self._layout, wanted), **flags)
        selection = None if wanted.selection is None else wanted.selection.text
        self._desk.subscribe(SubscriptionSpec(self._topic, selection, options, **flags))
        return self._snapshot(self._model) if wanted.has_snapshot else []

    def take(self, records: list[Record], events: list[Event], now_ms: int) -> list[Problem]:
        """Process updates of the SOW topic."""
        expected: list[SubscriberMessage] = []
        for event in events:
            if event.record is None:
                self._states.pop(event.key, None)
            else:
                self._states[event.key] = State(event.record, event.version)
            if self._model is not None and self._wanted.is_live:
                expected += self._model.take(event)
        self._engine.take(0, records, now_ms)
        return self._receive(expected)

    def advance(self, now_ms: int) -> list[Problem]:
        """Move the clock."""
        self._engine.punctuate(now_ms)
        return self._receive([])

    def end(self, now_ms: int) -> list[Problem]:
        """End the run: all pending updates are delivered."""
        if not self._wanted.is_live:
            return self.begin()
        problems = self.advance(now_ms + 2 * CONFLATION_MS)
        assert self._model is not None
        return problems + [Problem("subscription copy", text) for text in self._model.settled()]

    def _snapshot(self, model: Subscriber) -> list[Problem]:
        commands, messages_received = self._messages()
        wanted = model.snapshot()
        problems = []
        if commands != ["group_begin", *["sow"] * len(messages_received), "group_end"]:
            problems.append(Problem("snapshot", f"the messages are {commands}"))
        if self._wanted.order is None and self._wanted.top_n is None:
            messages_received, wanted = sorted(messages_received, key=_key), sorted(wanted, key=_key)
        problems += _compared("snapshot", wanted, messages_received)
        for message in messages_received:
            model.receive(message)
        return problems

    def _receive(self, expected: list[SubscriberMessage]) -> list[Problem]:
        """Receive the pending messages; where each follows from an update, they must equal the expected ones."""
        model = self._model
        if model is None or not self._wanted.is_live:
            return []
        _, messages_received = self._messages()
        problems = [Problem("subscription", text) for message in messages_received for text in model.receive(message)]
        if self._wanted.is_exact:
            return problems + _compared("subscription", expected, messages_received)
        if self._wanted.interval_ms is None:
            problems += [Problem("subscription copy", text) for text in model.settled()]
        return problems

    def _messages(self) -> tuple[list[str], list[SubscriberMessage]]:
        """The commands of all pending messages, and the messages with a record."""
        messages = self._desk.take(10**6)
        received = [
            SubscriberMessage(
                message.command,
                (message.sow_key or "").encode(),
                self._data(message.data),
                message.delta,
                message.version or 0,
                message.reason,
                frozenset(map(path_of, message.removed)),
            )
            for message in messages
            if message.sow_key is not None
        ]
        return [message.command for message in messages], received

    def _data(self, data: Any) -> Any:
        return parsed(data) if self._is_json else data


def wanted_of(layout: Layout) -> Wanted:
    """The subscription of a row."""
    row = layout.row
    has_snapshot, is_live, is_delta = CALLS[row["call"]]
    return Wanted(
        key=layout.key,
        has_snapshot=has_snapshot,
        is_live=is_live,
        is_delta=is_delta,
        selection=_selection(layout),
        select=_select(layout) if row["select"] == "some" else None,
        order=None if row["order"] == "none" else layout.path("px"),
        top_n=TOP_N if row["order"] == "top_n" else None,
        has_oof=row["option"] == "oof",
        no_empties=row["option"] == "no_empties",
        interval_ms=None if row["pace"] == "none" else CONFLATION_MS,
        conflation_key=layout.path("state") if row["pace"] == "conflation_key" else None,
    )


def _selection(layout: Layout) -> Filter | None:
    filters: dict[str, Filter | None] = {
        "none": None,
        "equality": Compare(layout.path("state"), "=", "open"),
        "range": Compare(layout.path("px"), ">", 4),
        "is_null": IsNull(layout.path("note")),
        "like": Like(layout.path("state"), "^o|d$"),
    }
    return filters[layout.row["filter"]]


def _select(layout: Layout) -> Select:
    rules = {(): False, layout.path("px"): True, layout.path("state"): True}
    if layout.row["type"] not in ("nvfix", "fix"):
        rules[layout.path("o")] = True
        rules[layout.path("o", "z")] = False
        rules[layout.path("o", "z", "u")] = True
    return Select(rules, layout.key.paths)


def _options(layout: Layout, wanted: Wanted) -> str:
    options = []
    if wanted.select is not None:
        options.append(f"select=[{wanted.select.text}]")
    if wanted.order is not None:
        options.append(f"order_by=[{pointer_of(wanted.order)}]")
    if wanted.top_n is not None:
        options.append(f"top_n={wanted.top_n}")
    if wanted.interval_ms is not None:
        options.append(f"conflation={wanted.interval_ms}ms")
    if wanted.conflation_key is not None:
        options.append(f"conflation_key=[{pointer_of(wanted.conflation_key)}]")
    if layout.row["option"] != "none":
        options.append(layout.row["option"])
    return ",".join(options)


def _key(message: SubscriberMessage) -> bytes:
    return message.key


def _compared(place: str, wanted: list[SubscriberMessage], messages_received: list[SubscriberMessage]) -> list[Problem]:
    """The messages that differ."""
    if len(wanted) != len(messages_received):
        return [Problem(f"{place} messages", f"{messages_received}, not {wanted}")]
    problems = []
    for one, other in zip(wanted, messages_received, strict=True):
        if one._replace(data=None) != other._replace(data=None) or not same(one.data, other.data):
            problems.append(Problem(f"{place} message", f"{other}, not {one}"))
    return problems
