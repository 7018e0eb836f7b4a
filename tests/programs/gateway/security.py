"""Many users with random rights, and random updates: each sees only its own records and fields.

Each user asks for anything: filters, orders and selections of hidden fields, windows, out-of-focus messages, conflated
updates, changes of its query, resumes. Its rights change while it listens. Each message is compared with its rights in
plain Python::

    python -m tests.programs.gateway.security --users 1000 --updates 100000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.filter import compile_filter
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic, parse_options
from processor.subscriptions.records.update_history import UpdateHistory
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.select import Select
from tests.programs.gateway import attacks, commands

TOPIC = Topic("orders", JsonCodec(CodecOptions()), KeyFields(("/id",)))
DESKS = [f"d{number}" for number in range(20)]
FIELDS = ["desk", "qty", "px", "note", "secret"]
Visible = dict[str, Any]
"""The part of a record that a user may see."""
QUERIES: dict[str | None, Callable[[Visible], bool]] = {
    None: lambda r: True,
    "/secret > 5": lambda r: r.get("secret", 0) > 5,
    "/secret IS NULL": lambda r: "secret" not in r,
    "/qty > 3": lambda r: r.get("qty", 0) > 3,
    "/desk = 'd1'": lambda r: r.get("desk") == "d1",
    "/px < 50 OR /secret = 1": lambda r: r.get("px", 50) < 50 or r.get("secret") == 1,
    "SOW_KEY() > '5'": lambda r: r["id"] > "5",
}
ORDERS: dict[str, list[tuple[str, bool]]] = {
    "/secret": [("secret", False)],
    "/secret DESC": [("secret", True)],
    "/qty": [("qty", False)],
    "/desk DESC, /secret": [("desk", True), ("secret", False)],
}
"""Each order with its fields, the first one first, and whether it falls."""
GROUPS = "COUNT(*) AS /n, MAX(/secret) AS /most, SUM(/qty) AS /qty"
SELECTS = [None, "-/,+/secret", "+/", "-/,+/qty,+/note", "-/qty"]


class Right(NamedTuple):
    """A right to read, with the same conditions in Python."""

    entitlement: Entitlement
    allows: Callable[[dict[str, Any]], bool]
    fields: frozenset[str]


def right(rng: random.Random) -> Right:
    """A random right: some desks, or an amount, or all; and some fields, or all."""
    desks = frozenset(rng.sample(DESKS, rng.randrange(1, 4)))
    least = rng.randrange(10)
    text, allows = rng.choice(
        [
            (f"/desk IN ({', '.join(repr(desk) for desk in sorted(desks))})", lambda r: r.get("desk") in desks),
            (f"/qty > {least}", lambda r: "qty" in r and r["qty"] > least),
            (None, lambda r: True),
        ]
    )
    hidden = frozenset(rng.sample(FIELDS, rng.randrange(4)))
    select = Select(",".join(f"-/{name}" for name in sorted(hidden)), TOPIC.key) if hidden else None
    own = None if text is None else compile_filter(text)
    return Right(Entitlement(own, select), allows, frozenset(FIELDS) - hidden | {"id"})


class User:
    """One user with a subscription, and the check of each of its messages."""

    def __init__(self, world: Security, name: str) -> None:
        self.world = world
        self.name = name
        self.right = right(world.rng)
        self.connection = world.connect()
        self.delta = world.rng.random() < 0.7
        self.has_groups = world.rng.random() < 0.2
        self.rows: dict[str, dict[str, Any]] = {}
        self.queries: list[str | None] = []  # The queries whose messages may wait; the last one is that of now.
        self.running = self.connection.subscribe(self.spec(), name)
        self.bookmark: Any = None

    def spec(self) -> SubscriptionSpec:
        """A random request under the rights of now."""
        rng = self.world.rng
        form = {"snapshot": True, "live": True, "delta": self.delta}
        if self.has_groups:
            self.queries = [None]
            grouped = parse_options(None, **form, oof=True, grouping="[/desk]", projection=f"[{GROUPS}]")
            return SubscriptionSpec(TOPIC, None, grouped, **form, entitlement=self.right.entitlement)
        is_window = rng.random() < 0.4
        options = parse_options(
            None,
            **form,
            oof=rng.random() < 0.8,
            select=rng.choice(SELECTS),
            order_by=rng.choice(list(ORDERS)) if is_window else None,
            top_n=rng.randrange(6) if is_window else None,
            conflation=rng.choice([None, None, "100ms", "auto"]),
        )
        self.queries.append(rng.choice(list(QUERIES)))
        return SubscriptionSpec(TOPIC, self.queries[-1], options, **form, entitlement=self.right.entitlement)

    def take(self) -> None:
        """Take what waits, and check it."""
        for message in self.connection.take(50):
            if self.has_groups:
                self.take_row(message)
            else:
                self.check(message)
        if not self.connection.has_waiting:
            del self.queries[:-1]
            self.check_counts()
        self.bookmark = self.connection.bookmark(self.running)

    def take_row(self, message: Any) -> None:
        """Keep a row of the groups."""
        self.world.checked += 1
        if message.command == "oof":
            self.rows.pop(message.sow_key, None)
        elif message.command in ("sow", "publish"):
            row = self.rows.get(message.sow_key, {}) if message.delta else {}
            row = {**row, **message.data}
            for path in message.removed:
                row.pop(path[1:], None)
            self.rows[message.sow_key] = row

    def check_counts(self) -> None:
        """Check that the numbers of records, in groups and behind windows, count visible records only."""
        visible = [value for value in self.world.current.values() if self.right.allows(value)]
        spec, window = self.running.spec, self.running.window
        if window is not None and (spec.filter is None or spec.filter.text.startswith("\0")):
            self.world.counted += 1
            assert len(window.places.sort_keys) == len(visible), (self.name, len(visible))
        if window is not None:
            self.check_window(window, [self.visible(value) for value in visible])
        if not self.has_groups:
            return
        self.world.counted += 1
        groups: dict[Any, list[dict[str, Any]]] = {}
        for value in visible:
            groups.setdefault(value["desk"] if "desk" in self.right.fields else None, []).append(value)
        wanted = {desk or "": len(members) for desk, members in groups.items()}
        assert {key: row["n"] for key, row in self.rows.items()} == wanted, (self.name, self.rows, wanted)
        for key, row in self.rows.items():
            seen = [value.get("secret") for value in groups[key or None]] if "secret" in self.right.fields else []
            known = [one for one in seen if one is not None]
            assert row.get("most") == max(known, default=None), (self.name, row)

    def visible(self, value: dict[str, Any]) -> Visible:
        """The part of a record that the user may see."""
        return {name: member for name, member in value.items() if name in self.right.fields}

    def check_window(self, window: Any, visible: list[Visible]) -> None:
        """Check that a window has the first records by the visible fields."""
        rows = sorted((row for row in visible if QUERIES[self.queries[-1]](row)), key=lambda row: row["id"])
        for name, falls in reversed(ORDERS[self.running.spec.options.order_by or ""]):
            if name == "desk":
                rows.sort(key=lambda row: row.get("desk", ""), reverse=falls)
            else:
                rows.sort(key=lambda row, name=name: row.get(name, -1), reverse=falls)  # type: ignore[misc]
        first = [row["id"].encode() for row in rows[: self.running.spec.options.top_n]]
        assert window.keys() == first, (self.name, window.keys(), rows[:9])

    def check(self, message: Any) -> None:
        """Check that a message has nothing that the rights of now do not allow."""
        self.world.checked += 1
        if message.data is None:
            return
        strange = set(message.data) - self.right.fields
        assert not strange, (self.name, strange, message)
        assert set(message.removed) <= {f"/{name}" for name in self.right.fields}, (self.name, message)
        if message.command == "oof" and message.reason == "entitlement":
            assert message.headers == {}
            if set(message.data) == {"id"}:
                return
        seen = self.world.versions.get((message.sow_key, message.data.get("version")))
        states = [seen] if seen is not None else self.world.states[message.sow_key]
        if message.delta:
            # A delta belongs to a record that may be seen after it, or may have been in an earlier state of its fold.
            states = self.world.states[message.sow_key]
        assert any(self.right.allows(state) for state in states), (self.name, message)
        if message.command in ("sow", "publish"):
            now = self.world.by_version[message.sow_key, message.version]
            assert now is not None
            assert self.right.allows(now), (self.name, message)
            # A query sees visible fields only: otherwise the records that it selects would show the others.
            visible = self.visible(now)
            assert any(QUERIES[query](visible) for query in self.queries), (self.name, self.queries, now, message)
        if message.command == "oof" and message.reason == "match":
            shown = {name: value for name, value in message.data.items() if name != "id"}
            assert any(
                self.right.allows(state) and all(state.get(name) == value for name, value in shown.items())
                for state in states
            ), (self.name, message)

    def change(self) -> None:
        """Ask for something else, come back with a bookmark, or get other rights."""
        rng = self.world.rng
        chance = rng.random()
        if self.has_groups:
            # As the gateway does it: the rows leave, and the groups are made again.
            self.right = right(rng)
            self.connection.withdraw(self.running)
            while self.connection.has_waiting:
                for message in self.connection.take(50):
                    self.take_row(message)
            assert not self.rows, (self.name, self.rows)
            self.running = self.connection.subscribe(self.spec(), self.name)
            self.bookmark = None
        elif chance < 0.4:
            self.running = self.connection.replace(self.running, self.spec())
            self.bookmark = None
        elif chance < 0.7:
            self.right = right(rng)
            # As the gateway does it: what waits was made under the old rights, and is dropped.
            if self.connection.forget_messages(self.running):
                self.connection.unsubscribe(self.running)
                self.running = self.connection.subscribe(self.spec(), self.name)
            else:
                self.running = self.connection.replace(self.running, self.spec())
            self.bookmark = None
        elif self.bookmark is not None:
            spec = self.running.spec
            self.connection.close()
            self.connection = self.world.connect()
            outcome = self.connection.resume(spec, self.name, self.bookmark)
            self.running = self.connection.subscribe(spec, self.name) if isinstance(outcome, str) else outcome


class Security:
    """A topic, and its users."""

    def __init__(self, seed: int, users: int) -> None:
        self.rng = random.Random(seed)
        self.engine = Engine(TOPIC, MemoryRecords(), history=UpdateHistory(4_000_000))
        self.engine.open(0, 0)
        self.states: dict[str, list[dict[str, Any]]] = {}
        self.versions: dict[Any, Any] = {}
        self.by_version: dict[Any, dict[str, Any] | None] = {}
        self.counts: dict[str, int] = {}
        self.current: dict[str, dict[str, Any]] = {}
        self.offset = self.checked = self.counted = self.time_ms = 0
        for _ in range(100):
            self.write()
        self.users = [User(self, f"u{number}") for number in range(users)]

    def connect(self) -> Any:
        """A connection; some have little room."""
        return self.engine.connect(self.rng.choice([3, 1_000]), queue_bytes=self.rng.choice([None, 2_000]))

    def write(self) -> None:
        """Write a record or a tombstone."""
        rng = self.rng
        key = str(rng.randrange(200))
        version = self.counts[key] = self.counts.get(key, 0) + 1
        states = self.states.setdefault(key, [])
        body: dict[str, Any] | None = {"id": key}
        if states and rng.random() < 0.1:
            body = None
        else:
            assert body is not None
            body |= {"desk": rng.choice(DESKS), "qty": rng.randrange(12), "px": rng.randrange(100)}
            if rng.random() < 0.8:
                body["secret"] = rng.randrange(12)
            if rng.random() < 0.5:
                body["note"] = f"n{rng.randrange(1000)}"
            states.append(body)
        self.by_version[key, version] = body
        self.current.pop(key, None)
        if body is not None:
            self.current[key] = body
        headers = [("version", b"%d" % version), ("trace", b"private")]
        value = None if body is None else json.dumps(body).encode()
        self.engine.take(0, [Record(key.encode(), value, headers, self.offset, 1_700_000_000_000)], self.time_ms)
        self.offset += 1

    def run(self, updates: int) -> None:
        """Write so many updates, while users take, change and resume."""
        for number in range(updates):
            self.write()
            user = self.rng.choice(self.users)
            user.take()
            if number % 7 == 0:
                self.rng.choice(self.users).change()
            if number % 20 == 0:
                self.time_ms += 50
                self.engine.punctuate(self.time_ms)
            if sys.stderr.isatty() and number % 1000 == 0:
                print(f"\r{number:,} of {updates:,} updates", end="", file=sys.stderr)
        for user in self.users:
            while user.connection.has_waiting:
                user.take()


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=10_000, help="that are opened and dropped")
    arguments = parser.parse_args()
    world = Security(arguments.seed, arguments.users)
    used_s = time.process_time()
    world.run(arguments.updates)
    each_ms = 1000 * (time.process_time() - used_s) / arguments.updates
    print(
        f"{arguments.users:,} users, {arguments.updates:,} updates, seed {arguments.seed}: {world.checked:,} messages "
        f"and {world.counted:,} counts and groups checked, none had more than its user may see; "
        f"{each_ms:.1f} ms of processor time an update",
        flush=True,
    )
    print(commands.report(), flush=True)
    if arguments.connections:
        attacks.run(arguments.connections, arguments.seed)


if __name__ == "__main__":
    main()
