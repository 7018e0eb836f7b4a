"""The stages of a join over the SOW records of two topics, in all partitions, without Kafka."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from processor.builtin.view.join import ViewJoin
from processor.builtin.view.join_sides import ViewLeft, ViewRight
from processor.builtin.view.rows import ViewRows
from processor.builtin.view.start_pass import forget_process
from processor.config import TopicConfig, ViewConfig
from processor.record import Record
from processor.testing import ProcessorTestDriver
from tests.builtin.view.chain import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

VIEW = {
    "underlying": "orders",
    "filter": "/state = 'new'",
    "join": [{"topic": "customers", "on": {"/customer": "/id"}}],
    "join_method": "repartition",
    "fields": {"/id": "/id", "/qty": "/qty", "/name": "[customers]./name", "/both": "/qty + [customers]./bonus"},
}


SAME_KEY_VIEW = VIEW | {
    "join": [{"topic": "customers", "on": {"/id": "/id"}}],
    "join_method": "same_key",
    "as_of": True,
}


BROADCAST_VIEW = VIEW | {"join_method": "broadcast", "as_of": True}


PLAIN = {
    "filter": None,
    "fields": {"/id": "/id", "/qty": "/qty", "/name": "[customers]./name", "/note": "/note"},
}
"""Settings of a view whose records need not be parsed."""

NOTES = ("x", "x", "", "1", "é", 1.5, True, None, [], {"a": [1, None]})


class JoinChain:
    """`orders` joined with `customers`, by any fields or by the key of both; each stage has as many partitions."""

    def __init__(self, view: Mapping[str, Any] = VIEW, *, partitions: int = 2, checks_state: bool = True) -> None:
        self.settings = settings = ViewConfig.model_validate(view)
        self.is_compact = False
        """True if records are written without spaces, as workers write them."""
        topic = TopicConfig(partitions=partitions)
        rows = settings.topic(topic)

        def drivers(processor: type[Any], name: str, **more: Any) -> list[ProcessorTestDriver]:
            return [
                ProcessorTestDriver(
                    processor, settings, name=name, partition=number, partitions=partitions, now_ms=NOW_MS,
                    checks_state=checks_state, **{"topic": topic, **more},
                )
                for number in range(partitions)
            ]  # fmt: skip

        outlets = {"references": partitions, "parts": partitions}
        self.left = drivers(ViewLeft, "v.split", underlying="orders", outlets=outlets)
        self.right = drivers(ViewRight, "v.split1", underlying="customers", outlets={"parts": partitions})
        self.joins = drivers(ViewJoin, "v.join", topic=rows, outlets={"answers": partitions})
        self.last = drivers(ViewRows, "v", topic=rows)
        meeting = self.last if settings.join_method in {"same_key", "broadcast"} else self.joins
        targets = {"references": meeting, "right": meeting, "left": self.last, "answers": self.last}

        def route(side: str) -> Any:
            def deliver(sent: Mapping[str, Sequence[Record]]) -> None:
                for output, records in sent.items():
                    role, at, partition = output.partition("@")
                    for record in records if at else ():
                        target = targets[side if role == "parts" else role][int(partition)]
                        target.append_input(record.key, record.value, record.headers)

            return deliver

        for side, stage in (("left", self.left), ("right", self.right), ("answers", self.joins), ("rows", self.last)):
            for driver in stage:
                driver.on_commit = route(side)

    @property
    def drivers(self) -> list[ProcessorTestDriver]:
        """Every partition of every stage."""
        return [*self.left, *self.right, *self.joins, *self.last]

    def put(self, side: str, partition: int, key: str, record: Any) -> None:
        """Append a SOW record of a side, or a tombstone for None."""
        driver = (self.left if side == "left" else self.right)[partition]
        separators = (",", ":") if self.is_compact else None
        value = None if record is None else json.dumps(record, separators=separators).encode()
        driver.append_input(key.encode(), value, [("version", b"1")])

    def run_one(self, driver: ProcessorTestDriver) -> None:
        """Let one partition of a stage read, work and commit."""
        driver.feed()
        driver.advance_time(1)
        driver.commit()

    def run(self) -> None:
        """Let all stages read everything."""
        for driver in self.drivers:
            self.run_one(driver)

    def rows(self) -> dict[str, Any]:
        """The rows of the view, by key."""
        values = {record.key: record.value for driver in self.last for record in driver.read_output("sow")}
        return {(key or b"").decode(): json.loads(value) for key, value in values.items() if value is not None}


class JoinHistory:
    """Random records on both sides, stages that run in any order, crashes and rollbacks; checked when all is read."""

    view: ClassVar[Mapping[str, Any]] = VIEW
    partners: ClassVar[tuple[str, ...]] = ("a", "b", "7")
    compact: ClassVar[float] = 0.0
    """The share of records without spaces, which alone can be plain."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.chain = JoinChain(self.view)
        self.orders: dict[str, Any] = {}
        self.customers: dict[str, Any] = {}
        self._ever: dict[str, list[Any]] = {}

    def step(self) -> str:
        """Take a step; returns the first difference from the definition, empty if there is none."""
        rng = self.rng
        for _ in range(rng.randint(1, 5)):
            self._put()
            for _ in range(rng.randrange(4)):
                self._disturb(rng.choice(self.chain.drivers))
        self.chain.run()
        rows, expected = self.chain.rows(), self.expected(self.orders, self.customers)
        return self._prefixes() if rows == expected else f"{rows}, expected {expected}"

    def _prefixes(self) -> str:
        """The first row that is not that of the prefixes in its header `as_of`; empty: none."""
        if not self.chain.settings.as_of:
            return ""
        for record in [record for driver in self.chain.last for record in driver.read_output("sow")[-4:]]:
            as_of = json.loads(dict(record.headers or ())["as_of"] or b"")
            orders = last_values("orders", self.chain.left, as_of)
            customers = last_values("customers", self.chain.right, as_of)
            row = None if record.value is None else json.loads(record.value)
            if row != (expected := self.expected(orders, customers).get((record.key or b"").decode())):
                return f"{record.key!r} as of {as_of}: {row}, expected {expected}"
        return ""

    def expected(self, orders: Mapping[str, Any], customers: Mapping[str, Any]) -> dict[str, Any]:
        """The rows by the definition, over the last records of both topics."""
        rows = {}
        for key, order in orders.items():
            if order is None or (self.view["filter"] and order["state"] != "new"):
                continue
            partner = self.partner(order, customers)
            row = {"id": key, "qty": order["qty"], "note": order["note"]}
            if partner is not None:
                row |= {"name": partner["name"], "both": order["qty"] + partner["bonus"]}
            fields = self.view["fields"]
            rows[key] = {name: value for name, value in row.items() if f"/{name}" in fields and value is not None}
        return rows

    def partner(self, order: Any, customers: Mapping[str, Any]) -> Any:
        """The partner of an order; None without one."""
        # Of JSON values a text equals no number; this is Python's equality, as no customer is a truth value.
        partners = (each for each in customers.values() if each is not None and each["id"] == order["customer"])
        return next(partners, None) if order["customer"] not in (None, "") else None

    def _put(self) -> None:
        rng = self.rng
        self.chain.is_compact = rng.random() < self.compact
        if rng.random() < 0.7:
            number = rng.randrange(6)
            order = None if rng.random() < 0.15 else {
                "id": f"o{number}", "customer": rng.choice(("a", "b", 7, 7.0, "7", None, "")), "qty": rng.randrange(9),
                "state": rng.choice(("new", "new", "paid")), "note": rng.choice(NOTES),
            }  # fmt: skip
            self.orders[f"o{number}"] = order
            self.chain.put("left", number % 2, f"o{number}", order)
        else:
            key = rng.choice(self.partners)
            id_ = rng.choice((7, "7")) if key == "7" else key
            customer = {"id": id_, "name": rng.choice(("Ann", "Bob")), "bonus": rng.choice((1, 0.5))}
            self.customers[key] = None if rng.random() < 0.25 else customer
            self.chain.put("right", ord(key[-1]) % 2, key, self.customers[key])

    def _disturb(self, driver: ProcessorTestDriver) -> None:
        """Run one partition of a stage, roll it back, or kill it."""
        what = self.rng.random()
        if what < 0.6:
            self.chain.run_one(driver)
        elif what < 0.8:
            for _ in range(self.rng.choice((1, 1, 2))):
                driver.feed(self.rng.choice((None, 1)))
                if self.rng.random() < 0.3:
                    driver.commit()
                driver.abort(feed=False)
        else:
            driver.write()
            forget_process()
            driver.crash(keep_store=self.rng.random() < 0.5, feed=False)


class SameKeyHistory(JoinHistory):
    """The same for a join by the key of both topics, which has fewer stages."""

    view = SAME_KEY_VIEW
    partners = tuple(f"o{number}" for number in range(7))

    def partner(self, order: Any, customers: Mapping[str, Any]) -> Any:
        """The customer with the key of the order."""
        return customers.get(order["id"])


class BroadcastHistory(JoinHistory):
    """The same for a join whose customers are in each partition of the rows."""

    view = BROADCAST_VIEW


class PlainJoinHistory(JoinHistory):
    """The same for a view that copies members, of records most of which need not be parsed."""

    view = VIEW | PLAIN
    compact = 0.9


class PlainBroadcastHistory(JoinHistory):
    """The same for a join whose customers are in each partition of the rows."""

    view = BROADCAST_VIEW | PLAIN
    compact = 0.9


def last_values(topic: str, drivers: Sequence[ProcessorTestDriver], as_of: Mapping[str, int]) -> dict[str, Any]:
    """The last record of each key, of those before the offsets of `as_of`."""
    records = {}
    for partition, driver in enumerate(drivers):
        for record in driver.input[: as_of.get(f"{topic}.sow/{partition}", 0)]:
            records[(record.key or b"").decode()] = None if record.value is None else json.loads(record.value)
    return records
