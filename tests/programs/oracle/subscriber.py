"""The model of a subscription (subscribe.md): the messages it must get, and the copy that its subscriber keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from tests.programs.oracle.filters import Filter, numeric
from tests.programs.oracle.keys import Key
from tests.programs.oracle.numbers import instant_of
from tests.programs.oracle.values import (
    MISSING,
    Path,
    applied,
    difference,
    is_object,
    leaves,
    same,
    value_at,
    with_value,
)

Object = dict[str, Any]


class SubscriberMessage(NamedTuple):
    """One message."""

    command: str
    key: bytes
    data: Object
    is_delta: bool
    version: int
    reason: str | None
    removed: frozenset[Path]


class State(NamedTuple):
    """A record as the SOW topic has it."""

    record: Object
    version: int


class Event(NamedTuple):
    """An update of the SOW topic."""

    key: bytes
    record: Object | None
    version: int
    kind: str
    touched: Object | None = None
    """Of an update of a conflated topic: the members that were touched in the interval (producers.md, rule 11)."""


@dataclass(frozen=True)
class Wanted:
    """The subscription that a subscriber requested."""

    key: Key
    has_snapshot: bool
    is_live: bool
    is_delta: bool
    selection: Filter | None = None
    select: Select | None = None
    order: Path | None = None
    top_n: int | None = None
    has_oof: bool = False
    no_empties: bool = False
    interval_ms: int | None = None
    conflation_key: Path | None = None

    @property
    def is_exact(self) -> bool:
        """True if every single message follows from the updates: nothing is folded, and no update moves another key."""
        return self.interval_ms is None and self.top_n is None

    def projected(self, record: Object) -> Object:
        """The parts of a record that are sent."""
        return record if self.select is None else self.select.project(record)

    def focus(self, states: dict[bytes, State]) -> list[bytes]:
        """The keys of the records in focus, in order."""
        matching = {key: state.record for key, state in states.items() if self.matches(state.record)}
        return ordered(matching, self.order)[: self.top_n]

    def matches(self, record: Object | None) -> bool:
        """Return whether the filter matches a record."""
        return record is not None and (self.selection is None or self.selection.matches(record))


@dataclass
class Subscriber:
    """One subscription from its beginning."""

    wanted: Wanted
    states: dict[bytes, State]
    """The SOW topic now."""
    received: set[bytes] = field(default_factory=set)
    """Records in focus of which it got a message."""
    copy: dict[bytes, Object] = field(default_factory=dict)
    """The records as the messages make them."""
    ever: dict[tuple[bytes, int], list[Object]] = field(default_factory=dict)
    """The records that a key had in each version."""
    updated: dict[bytes, int] = field(default_factory=dict)
    """Keys with an update since the beginning, by the turn of the last one."""
    turn: int = 0

    def __post_init__(self) -> None:
        self.states = dict(self.states)
        for key, state in self.states.items():
            self.ever[key, state.version] = [state.record]
        if self.wanted.is_delta and not self.wanted.has_snapshot:
            # The subscriber is expected to have the records that existed.
            for key in self.wanted.focus(self.states):
                self.copy[key] = self.wanted.projected(self.states[key].record)

    def snapshot(self) -> list[SubscriberMessage]:
        """The messages of the snapshot, in order where an order was asked for."""
        wanted, messages = self.wanted, []
        for key in wanted.focus(self.states):
            record, version = self.states[key]
            messages.append(SubscriberMessage("sow", key, wanted.projected(record), False, version, None, frozenset()))
        self.received = {message.key for message in messages}
        return messages

    def take(self, event: Event) -> list[SubscriberMessage]:
        """The messages of an update, where they follow from it alone (`Wanted.is_exact`)."""
        wanted, key = self.wanted, event.key
        old = self.states.get(key)
        before = None if old is None else old.record
        self.turn += 1
        self.updated[key] = self.turn
        if event.record is None:
            self.states.pop(key, None)
        else:
            self.states[key] = State(event.record, event.version)
            self.ever.setdefault((key, event.version), []).append(event.record)
        was, now = wanted.matches(before), wanted.matches(event.record)
        if not now:
            has_message = was and key in self.received and wanted.has_oof
            self.received.discard(key)
            return [self._out_of_focus(event, before)] if has_message else []
        assert event.record is not None
        new = wanted.projected(event.record)
        if not (was and wanted.is_delta):
            self.received.add(key)
            return [SubscriberMessage("publish", key, new, False, event.version, None, frozenset())]
        assert before is not None
        changed, gone = difference(wanted.projected(before), new)
        keys = wanted.key.only(event.record)
        if event.touched is not None:
            # An object of which only members that are not selected were touched is not touched for this subscriber.
            touched: Object = {}
            for path, value in leaves(event.touched).items():
                if value_at(new, path) is not MISSING:
                    touched = with_value(touched, path, value)
            changed = difference(keys, applied(keys, touched, []))[0]
        if wanted.no_empties and not changed and not gone:
            return []
        self.received.add(key)
        data = applied(keys, changed, [])
        return [SubscriberMessage("publish", key, data, True, event.version, None, frozenset(gone))]

    def _out_of_focus(self, event: Event, before: Object | None) -> SubscriberMessage:
        last = before if event.record is None else event.record
        assert last is not None
        reason = (
            {"delete": "deleted", "expire": "expired"}.get(event.kind, "match") if event.record is None else "match"
        )
        return SubscriberMessage(
            "oof", event.key, self.wanted.projected(last), False, event.version, reason, frozenset()
        )

    def receive(self, message: SubscriberMessage) -> list[str]:
        """Apply a message to the copy; returns the problems."""
        wanted, key, wrong = self.wanted, message.key, []
        if message.command == "oof":
            if not wanted.has_oof or key not in self.copy:
                wrong.append(f"{key!r}: an oof of a record that was not received")
            self.copy.pop(key, None)
        elif message.is_delta:
            if key not in self.copy or not wanted.is_delta:
                wrong.append(f"{key!r}: a delta of a record that the subscriber does not have")
            self.copy[key] = applied(self.copy.get(key, {}), message.data, sorted(message.removed))
        else:
            self.copy[key] = message.data
        if message.command != "oof":
            records = self.ever.get((key, message.version), [])
            if not any(same(self.copy[key], wanted.projected(record)) for record in records):
                wrong.append(f"{key!r}: {self.copy[key]} was never version {message.version}")
        return wrong

    def settled(self) -> list[str]:
        """The problems of the copy once all messages were delivered."""
        wanted = self.wanted
        focus = wanted.focus(self.states)
        if wanted.conflation_key is not None:
            focus = self._newest_of_groups(focus)
        elif not wanted.has_snapshot and not wanted.is_delta:
            focus = [key for key in focus if key in self.updated or key in self.copy]
        wrong = [
            f"{key!r}: has {self.copy.get(key)}, not {wanted.projected(self.states[key].record)}"
            for key in focus
            if not self._has(key)
        ]
        if wanted.has_oof and wanted.has_snapshot:
            wrong += [f"{key!r}: out of focus, and no oof came" for key in self.copy if key not in focus]
        return wrong

    def _has(self, key: bytes) -> bool:
        return key in self.copy and same(self.copy[key], self.wanted.projected(self.states[key].record))

    def _newest_of_groups(self, focus: list[bytes]) -> list[bytes]:
        """The record updated last, of those that share the values of the conflation key."""
        assert self.wanted.conflation_key is not None
        newest: dict[str, bytes] = {}
        for key in sorted((key for key in focus if key in self.updated), key=lambda key: self.updated[key]):
            newest[repr(value_at(self.states[key].record, self.wanted.conflation_key))] = key
        return list(newest.values())


@dataclass(frozen=True)
class Select:
    """A select list: the most specific rule decides, paths without a rule are included, key fields always are."""

    rules: dict[Path, bool]
    """Whether the value at a path is sent; the path () is the record."""
    key_paths: tuple[Path, ...]

    @property
    def text(self) -> str:
        """The list as a subscriber writes it."""
        return ",".join(
            f"{'+' if is_included else '-'}{''.join(f'/{name}' for name in path) or '/'}"
            for path, is_included in self.rules.items()
        )

    def project(self, record: Object) -> Object:
        """The parts of a record that a subscriber is sent."""
        projected = self._project(record, ())
        return {} if projected is MISSING else projected

    def _project(self, value: Any, path: Path) -> Any:
        is_included = self._is_included(path)
        if not is_object(value):
            return value if is_included else MISSING
        members = {name: self._project(member, (*path, name)) for name, member in value.items()}
        members = {name: member for name, member in members.items() if member is not MISSING}
        return members if members or is_included else MISSING

    def _is_included(self, path: Path) -> bool:
        """Return whether the most specific rule for a path includes it."""
        if any(path[: len(key_path)] == key_path for key_path in self.key_paths):
            return True
        covering = [prefix for prefix in self.rules if path[: len(prefix)] == prefix]
        return self.rules[max(covering, key=len)] if covering else True


def sort_place(value: Any) -> tuple[int, Any]:
    """The place of a value in an order: NULL, NaN, numbers by value, texts by characters."""
    while isinstance(value, list):
        value = value[0] if value else None
    if value is MISSING or value is None or value == "" or is_object(value):
        return 0, 0
    if not isinstance(value, str) and (instant := instant_of(value)) is not None:
        return 3, instant
    number = numeric(value)
    if number is None:
        return 3, value
    return (2, number) if isinstance(number, Decimal) else (1, 0)


def ordered(records: dict[bytes, Object], path: Path | None) -> list[bytes]:
    """The keys of records in the order of their values at a path; equal ones by SOW key. No path: by SOW key."""
    if path is None:
        return sorted(records)
    return sorted(records, key=lambda key: (sort_place(value_at(records[key], path)), key))
