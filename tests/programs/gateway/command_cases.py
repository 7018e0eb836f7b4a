"""Combinations of rights, commands and states of a record, with an oracle that uses nothing of the product."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

Record = dict[str, Any]


class Grant(NamedTuple):
    """A right, as the file has it and as plain Python."""

    file: dict[str, Any] | None
    reads: Callable[[Record], bool] | None = None
    hides: tuple[str, ...] = ()
    publishes: Callable[[Record], bool] | None = None
    deletes: bool = False


def _desk_x(record: Record) -> bool:
    return record.get("desk") == "x"


def _rich(record: Record) -> bool:
    return record.get("qty", 0) > 5


def _any(_record: Record) -> bool:
    return True


SECRETS = ("/secret", "/o/p")
_SELECT = "-/secret,-/o/p"
GRANTS: dict[str, Grant] = {
    "none": Grant(None),
    "all": Grant({"read": True, "publish": True, "delete": True}, _any, (), _any, True),
    "own": Grant({"read": "/desk = 'x'", "publish": "/desk = 'x'", "delete": True}, _desk_x, (), _desk_x, True),
    "some": Grant(
        {"read": "/desk = 'x'", "select": _SELECT, "publish": "/desk = 'x'", "delete": True},
        _desk_x, SECRETS, _desk_x, True,
    ),
    "writer": Grant({"read": "/desk = 'x'", "publish": True, "delete": True}, _desk_x, (), _any, True),
    "reader": Grant({"read": True, "publish": "/desk = 'x'"}, _any, (), _desk_x, False),
    "blinded": Grant({"read": True, "select": _SELECT, "publish": True, "delete": True}, _any, SECRETS, _any, True),
    "feeder": Grant({"publish": True, "delete": True}, None, (), _any, True),
    "desk feeder": Grant({"publish": "/desk = 'x'"}, None, (), _desk_x, False),
    "cleaner": Grant({"read": "/desk = 'x'", "delete": True}, _desk_x, (), None, True),
    "crossed": Grant({"read": "/qty > 5", "publish": "/desk = 'x'", "delete": True}, _rich, (), _desk_x, True),
    "narrow": Grant(
        {"read": "/desk = 'x'", "select": "-/,+/qty,+/desk", "publish": True, "delete": True},
        _desk_x, ("/secret", "/o"), _any, True,
    ),
}  # fmt: skip
STATES: dict[str, Record | None] = {
    "absent": None,
    "x": {"desk": "x", "qty": 1},
    "y": {"desk": "y", "qty": 1},
    "x full": {"desk": "x", "qty": 9, "secret": "s", "o": {"p": 1, "q": 2}},
    "y full": {"desk": "y", "qty": 9, "secret": "s", "o": {"p": 1, "q": 2}},
    "x moving": {"desk": "x", "qty": 9},
}
MOVED: Record = {"desk": "y", "qty": 9, "secret": "new"}
"""The record that the worker has in the state `x moving`, of which the gateway's view knows nothing yet."""


class Command(NamedTuple):
    """A command."""

    op: str
    data: Record | None = None
    by: str = "key"
    expect: str | None = None


MESSAGES: list[Record] = [
    {"desk": "x"},
    {"desk": "y"},
    {"qty": 7},
    {"desk": "x", "secret": "mine"},
    {"desk": "x", "o": {"q": 5}},
    {"desk": "x", "o": {"p": 5}},
    {"desk": "x", "o": 5},
    {"desk": "x", "secret": None},
]
COMMANDS = [
    *(Command(op, data) for op in ("publish", "delta_publish") for data in MESSAGES),
    *(Command("sow_delete", by=by) for by in ("key", "data", "keys", "filter")),
    *(
        Command(op, data, expect=expect)
        for op, data in (("publish", MESSAGES[0]), ("delta_publish", MESSAGES[0]), ("sow_delete", None))
        for expect in ("none", "current", "other")
    ),
]
VERSIONS = {"none": 0, "current": 1, "other": 99}


class Case(NamedTuple):
    """One combination, with a record of its own."""

    way: str
    grant: str
    state: str
    command: Command
    key: int


def expected(case: Case) -> tuple[str, Record | None]:
    """The outcome of a command, and the record after it."""
    grant, command = GRANTS[case.grant], case.command
    record = state_of(case)
    sees = record is not None and grant.reads is not None and grant.reads(record)
    version = 1 if sees else 0
    wanted = None if command.expect is None else VERSIONS[command.expect]
    if command.op == "sow_delete":
        if not grant.deletes or grant.reads is None:
            return "refused", record
        if wanted not in (None, version):
            return "conflict", record
        return "done", None if sees else record
    if grant.publishes is None or (command.op == "delta_publish" and grant.reads is None):
        return "refused", record
    assert command.data is not None
    base = record if sees and command.op == "delta_publish" else {}
    after = merged({"id": case.key, **(base or {})}, command.data)
    if any(touches(command.data, path) for path in grant.hides) or not grant.publishes(after):
        return "refused", record
    if wanted not in (None, version):
        return "conflict", record
    if record is not None:
        is_replaced = command.op == "publish" and grant.hides
        is_blind = not sees and (command.op == "delta_publish" or wanted is not None)
        if is_replaced or is_blind or not grant.publishes(record):
            return "refused", record
    return "done", after


def state_of(case: Case) -> Record | None:
    """The record that the worker has before a command."""
    record = MOVED if case.state == "x moving" else STATES[case.state]
    return None if record is None else {"id": case.key, **record}


def touches(data: Record, path: str) -> bool:
    """Return whether a message has the field at a path, or something else in the place of an object around it."""
    place: Any = data
    for name in path.split("/")[1:]:
        if type(place) is not dict:
            return True
        if name not in place:
            return False
        place = place[name]
    return True


def merged(record: Record, data: Record) -> Record:
    """A record after a message: objects merge, nulls of deltas are ignored."""
    after = copy.deepcopy(record)
    for name, value in data.items():
        if isinstance(value, dict) and isinstance(after.get(name), dict):
            after[name] = merged(after[name], value)
        elif value is not None:
            after[name] = copy.deepcopy(value)
    return after


def cases(ways: tuple[str, ...], grants: tuple[str, ...] = tuple(GRANTS)) -> list[Case]:
    """All combinations that can be sent."""
    made: list[Case] = []
    for way in ways:
        for grant in grants:
            for state in STATES:
                for command in COMMANDS:
                    if command.op == "publish" and None in (command.data or {}).values():
                        continue  # A null of a full record is a value: the oracle knows those of deltas.
                    if way in ("http", "javascript") and command.by in ("keys", "filter"):
                        continue
                    if state == "x moving" and command.expect is not None:
                        continue  # Decided by the view while it is behind, which refuses more.
                    made.append(Case(way, grant, state, command, len(made) + 1))
    return made
