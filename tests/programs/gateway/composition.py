"""The law of composition (spec gateway.md, rule 6): with any options, breaks and slow readers the client is right.

A client keeps the records of each subscription as the messages say. At its bookmark it must hold the query's answer
over the SOW at that place, which an oracle computes from plain Python functions, without the engine's filters::

    python -m tests.programs.gateway.composition --steps 100000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any
from unittest.mock import patch

from processor.subscriptions.records import shared_orders
from processor.subscriptions.records.order_build import OrderBuild
from tests.programs.gateway.holder import Holder
from tests.programs.gateway.queries import FILTERS, KEYS, ORDERS, PARTITIONS, RIGHTS, SELECTS, Query, Right
from tests.programs.gateway.world import History, World

_SHORT_BUILD = partial(OrderBuild, first_places=1, spare_places=0, bucket_keys=1)
"""Orders of a few records are built in many slices, and windows begin when the first places are there."""


def check(name: str, query: Query, held: dict[str, Any], bookmark: Any, history: History) -> None:
    """Check that the records of a client are the answer of its query at its bookmark."""
    own = {key: SELECTS[query.select](record) for key, record in held.items()}
    if dict(bookmark.low) == dict(bookmark.high):
        wanted = query.answer(history.at(bookmark.low))
        if query.oof:
            assert own == wanted, (name, query, own, wanted)
        else:
            assert {key: own.get(key) for key in wanted} == wanted, (name, query, own, wanted)
    elif not query.is_window and not query.has_groups:
        for key in KEYS:
            states = [None if body is None else query.shown(body) for body in history.states_between(key, bookmark)]
            assert own.get(key) in states or not query.oof, (name, query, key, own.get(key), states)


class Composition(World):
    """A world, clients with subscriptions, and the check of each of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.checks = self.resumes = self.refetches = self.replaces = 0
        self.view_at = [0] * PARTITIONS
        self.clients: list[Any] = []
        self.rights: dict[Any, Right] = {}
        self.holders: dict[str, Holder] = {}
        self.running: dict[str, tuple[Any, Any]] = {}
        self.named = 0
        self.builds: list[Any] = []
        self.early = 0
        """Windows that began before all of their order was there."""

    def query(self, right: Right) -> Query:
        """A random query of a client with some right."""
        chance, choice = self.random.random, self.random.choice
        if chance() < 0.15:
            conflation = choice([None, "100ms", "auto"])
            return Query(
                choice(list(FILTERS)),
                None,
                None,
                None,
                0,
                chance() < 0.7,
                True,
                False,
                conflation,
                right,
                has_groups=True,
            )
        is_window = chance() < 0.4
        is_delta = chance() < 0.7
        return Query(
            choice(list(FILTERS)),
            choice(list(SELECTS)),
            choice(list(ORDERS)) if is_window else None,
            self.random.randrange(5) if is_window else None,
            self.random.randrange(3) if is_window else 0,
            is_delta,
            chance() < 0.85,
            is_delta and chance() < 0.3,
            choice([None, None, "100ms", "300ms", "auto"]),
            right,
        )

    def connect(self, right: Right | None = None) -> Any:
        """A new connection; some have room for few messages. All subscriptions of it have the rights of one user."""
        choice = self.random.choice
        connection = self.engine.connect(choice([2, 3, 10_000]), queue_bytes=choice([None, 600]))
        self.clients.append(connection)
        self.rights[connection] = right or choice(RIGHTS)
        return connection

    def subscribe(self) -> None:
        """Begin a subscription."""
        connection = self.random.choice(self.clients) if self.clients and self.random.random() < 0.7 else self.connect()
        self.named += 1
        name, query = f"q{self.named}", self.query(self.rights[connection])
        self.holders[name] = Holder(query)
        with patch.object(shared_orders, "OrderBuild", _SHORT_BUILD):
            build = self.engine.prepare(query.spec()) if self.random.random() < 0.7 else None
        depth = query.spec().window_depth
        while build is not None and not build.is_ready(depth) and self.random.random() < 0.9:
            build.advance(self.random.randrange(1, 4))
            if self.random.random() < 0.5:
                self.write()
        self.running[name] = (connection, connection.subscribe(query.spec(), name))
        if build is not None:
            self.early += not build.is_done
            self.builds.append(build)

    def sort_more(self) -> None:
        """The order of a window that has begun is sorted on, or left as it is."""
        if not self.builds:
            return
        build = self.random.choice(self.builds)
        if build.is_done or build.has_failed or build.advance(1) or self.random.random() < 0.1:
            self.builds.remove(build)
            self.engine.release(build)

    def take(self, connection: Any, count: int) -> None:
        """A client takes some messages, and the bookmarks behind them."""
        heard = set()
        for message in connection.take(count):
            for name in message.sub_ids:
                if name in self.holders:
                    self.hear(name, message)
                    heard.add(name)
        for name in heard:
            self.look(name)

    def hear(self, name: str, message: Any) -> None:
        """A holder gets its own part of a message."""
        holder = self.holders[name]
        if message.data is not None and len(message.sub_ids) > 1:
            message = message._replace(data=SELECTS[holder.query.select](message.data))
        holder.hear(message)

    def look(self, name: str) -> None:
        """Check a subscription at its bookmark."""
        connection, running = self.running[name]
        bookmark = connection.bookmark(running)
        if bookmark is None:
            return
        holder = self.holders[name]
        holder.bookmark = bookmark
        self.check(name)

    def check(self, name: str) -> None:
        """Compare the records of the client with the result of its query at its bookmark."""
        holder = self.holders[name]
        if holder.bookmark is not None:
            self.checks += 1
            check(name, holder.query, holder.held, holder.bookmark, self.history)

    def break_off(self) -> None:
        """A connection breaks; its client resumes each subscription on a new one."""
        if not self.clients:
            return
        broken = self.clients.pop(self.random.randrange(len(self.clients)))
        names = [name for name, (connection, _) in self.running.items() if connection is broken]
        broken.close()
        for _ in range(self.random.randrange(6)):
            self.write()
        connection = self.connect(self.rights.pop(broken))
        for name in names:
            self._resume(name, connection)

    def restart(self) -> None:
        """The gateway is killed, and begins with a view that is some updates behind."""
        ahead = [self.random.randrange(view, end + 1) for view, end in zip(self.view_at, self.offsets, strict=True)]
        self.view_at = ahead
        for _ in range(self.random.randrange(6)):
            self.write()
        self.clients.clear()
        self.builds.clear()
        self.engine = self.opened(ahead)
        fresh: dict[Any, Any] = {}
        for name, (broken, _) in list(self.running.items()):
            if broken not in fresh:
                fresh[broken] = self.connect(self.rights.pop(broken))
            self._resume(name, fresh[broken])

    def _resume(self, name: str, connection: Any) -> None:
        holder = self.holders[name]
        outcome: Any = "no bookmark"
        if holder.bookmark is not None:
            outcome = connection.resume(holder.query.spec(), name, holder.bookmark)
        if isinstance(outcome, str):
            self.refetches += 1
            holder.bookmark = None
            outcome = connection.subscribe(holder.query.spec(), name)
        else:
            self.resumes += 1
        self.running[name] = (connection, outcome)

    def replace(self) -> None:
        """A client changes its query."""
        if not self.running:
            return
        name = self.random.choice(list(self.running))
        connection, _ = self.running[name]
        self._take_all(connection)
        fresh, old = self.query(self.rights[connection]), self.holders[name].query
        if fresh.has_groups or old.has_groups:
            return  # It is refused, as its own test says.
        if self.random.random() < 0.5:  # Scroll, or filter in another way.
            fresh = old._replace(filter=fresh.filter, skip=fresh.skip if old.is_window else 0)
        self._replace_by(name, fresh)

    def change_rights(self) -> None:
        """The rights of a user change: all its subscriptions are replaced."""
        if not self.clients:
            return
        connection = self.random.choice(self.clients)
        self._take_all(connection)
        right = self.rights[connection] = self.random.choice(RIGHTS)
        for name in [name for name, (its, _) in self.running.items() if its is connection]:
            if self.holders[name].query.has_groups:
                self._group_again(name, right)
            else:
                self._replace_by(name, self.holders[name].query._replace(right=right))
            self._take_all(connection)

    def _group_again(self, name: str, right: Right) -> None:
        """As the gateway does it after a change of rights: the rows leave, and the groups are made again."""
        holder, (connection, running) = self.holders[name], self.running[name]
        connection.withdraw(running)
        while connection.has_waiting:
            for message in connection.take(50):
                assert message.sub_ids == (name,)
                holder.hear(message)
        assert not holder.records
        holder.query, holder.bookmark = holder.query._replace(right=right), None
        self.running[name] = (connection, connection.subscribe(holder.query.spec(), name))

    def _take_all(self, connection: Any) -> None:
        """Messages for the old query come first; they are taken, as `hear` knows one query at a time."""
        while connection.has_waiting:
            self.take(connection, 50)

    def _replace_by(self, name: str, fresh: Query) -> None:
        holder, (connection, running) = self.holders[name], self.running[name]
        old = holder.query
        fresh = fresh._replace(is_delta=old.is_delta, no_empties=old.no_empties, oof=old.oof)
        if not fresh.is_window:
            fresh = fresh._replace(order=None)
        holder.query, holder.bookmark = fresh, None
        self.replaces += 1
        self.running[name] = (connection, connection.replace(running, fresh.spec()))

    def leave(self) -> None:
        """A client ends a subscription."""
        if len(self.running) < 3:
            return
        name = self.random.choice(list(self.running))
        connection, running = self.running.pop(name)
        connection.unsubscribe(running)
        del self.holders[name]

    def settle(self) -> None:
        """Everything is delivered: every client holds the answer of now."""
        for _ in range(1_000):
            for connection in self.clients:
                while connection.has_waiting:
                    self.take(connection, 7)
            if self.engine.due_ms is None:
                break
            self.time_ms = max(self.time_ms, self.engine.due_ms)
            self.engine.punctuate(self.time_ms)
        else:
            raise AssertionError("it never settles")
        for name in self.running:
            self.look(name)
            bookmark = self.holders[name].bookmark
            assert bookmark is not None
            assert dict(bookmark.low) == dict(enumerate(self.offsets)), (name, bookmark, self.offsets)

    def step(self) -> None:
        """One random step."""
        chance = self.random.random()
        if self.random.random() < 0.1:
            self.sort_more()
        if chance < 0.55:
            self.write()
        elif chance < 0.78 and self.clients:
            self.take(self.random.choice(self.clients), self.random.randrange(1, 6))
        elif chance < 0.86:
            self.time_ms += self.random.choice([10, 100, 300])
            self.engine.punctuate(self.time_ms)
        elif chance < 0.90:
            if len(self.running) < 8:
                self.subscribe()
        elif chance < 0.94:
            self.break_off()
        elif chance < 0.965:
            self.replace()
        elif chance < 0.975:
            self.leave()
        elif chance < 0.98:
            self.change_rights()
        elif chance < 0.985:
            self.restart()
        else:
            self.settle()


def run(steps: int, seed: int, *, world_steps: int = 400) -> Composition:
    """Run so many steps, in worlds of `world_steps` each; returns the last world with the sums of all counts."""
    counts = [0, 0, 0, 0, 0]
    done = 0
    while True:
        world = Composition(seed * 1_000_003 + done)
        try:
            for _ in range(min(world_steps, steps - done)):
                world.step()
                done += 1
            world.settle()
        except BaseException:
            print(f"failed in the world that began at step {done // world_steps * world_steps}, seed {seed}")
            raise
        for at, count in enumerate((world.checks, world.resumes, world.refetches, world.replaces, world.early)):
            counts[at] += count
        if sys.stderr.isatty():
            print(f"\r{done:,} of {steps:,} steps", end="", file=sys.stderr)
        if done >= steps:
            world.checks, world.resumes, world.refetches, world.replaces, world.early = counts
            return world


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    world = run(arguments.steps, arguments.seed)
    print(
        f"{arguments.steps:,} steps, seed {arguments.seed}: {world.checks:,} checks, {world.resumes:,} resumed, "
        f"{world.refetches:,} refetched, {world.replaces:,} replaced, {world.early:,} windows began early: "
        "every client was right"
    )


if __name__ == "__main__":
    main()
