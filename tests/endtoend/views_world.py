"""A topic with views, and the rows that they should have by the records of the SOW topic."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.endtoend.world import World

if TYPE_CHECKING:
    from pathlib import Path

CUSTOMERS = ("ann", "bob", "cy", "di")

HAVING = "/worst > 3 OR /worst IS NULL"
"""Refuses the rows whose orders are all cheap."""

FIELDS = {
    "/orders": "COUNT(*)",
    "/qty": "SUM(/qty)",
    "/worst": "MAX(/px)",
    "/kinds": "COUNT_DISTINCT(/px)",
    "/last": "LAST(/px)",
}


class ViewsWorld(World):
    """`name` with a projection, a join with `people`, sums, and the view `positions` with a view and a copy over it."""

    def __init__(self, bootstrap: str, directory: Path, name: str, **more: Any) -> None:
        self.positions, self.totals, self.copy = f"{name}_positions", f"{name}_totals", f"{name}_copy"
        self.all_views, self.named, self.people = f"{name}_all", f"{name}_named", f"{name}_people"
        self.sums = f"{name}_sums"
        views = {
            self.positions: {
                "underlying": name, "filter": "/state = 'new'", "group_by": ["/customer"], "fields": FIELDS,
                "having": HAVING, "partitions": 3, "as_of": True,
            },
            self.totals: {"underlying": name, "fields": {"/id": "/id", "/value": "/qty * /px"}},
            self.all_views: {
                "underlying": self.positions, "group_by": [], "fields": {"/customers": "COUNT(*)", "/qty": "SUM(/qty)"},
            },
            self.named: {
                "underlying": name, "join": [{"topic": self.people, "on": {"/customer": "/id"}}],
                "fields": {"/id": "/id", "/qty": "/qty", "/name": f"[{self.people}]./name"},
            },
            self.sums: {
                "underlying": name, "group_by": ["/customer"], "partitions": 3,
                "fields": {
                    "/orders": "COUNT(*)", "/qty": "SUM(/qty)", "/priced": "COUNT(/px)", "/low": "MIN(/qty)",
                    "/high": "MAX(/px)",
                },
            },
        }  # fmt: skip
        conflated = {self.copy: {"underlying": self.positions, "interval": "200ms"}}
        sections = {"views": views, "conflated": conflated}
        # A stage that stands still for longer loses its partitions: a machine may be busy with other tests.
        runtime = {"session_timeout_s": 6, "transaction_timeout_s": 20}
        more |= {"others": {self.people: {"partitions": 3}}, "sections": sections, "partitions": 2, "runtime": runtime}
        super().__init__(bootstrap, directory, name, **more)

    def orders(self, seed: int, count: int, keys: int = 60) -> None:
        """Publish random orders and people: new ones, changes of customer, state and name, deletes."""
        rng = random.Random(seed)
        records: list[tuple[bytes | None, Any, dict[str, str]]] = []
        for _ in range(count):
            key = f"k{rng.randrange(keys)}"
            if rng.random() < 0.1:
                records.append((key.encode(), None, {}))
                continue
            order = {
                "id": key, "customer": rng.choice((*CUSTOMERS, None)), "px": rng.randrange(20),
                "qty": rng.choice((0.1, 0.2, 0.3, 1, 7)), "state": rng.choice(("new", "new", "paid")),
            }  # fmt: skip
            records.append((key.encode(), order, {"command": "publish"}))
        self.publish(records)
        people: list[tuple[bytes | None, Any, dict[str, str]]] = [
            (key.encode(), None if rng.random() < 0.3 else {"id": key, "name": f"{key} {seed}"}, {})
            for key in rng.sample(CUSTOMERS, 2)
        ]
        self.publish(people, name=self.people)

    def last(self, name: str) -> dict[str, Any]:
        """The rows of a SOW topic, numbers exact."""
        values = {record.key: record.value for record in self.read("sow", name)}
        return {
            (key or b"").decode(): json.loads(value, parse_float=Decimal)
            for key, value in values.items()
            if value is not None
        }

    def expected_positions(self) -> dict[str, Any]:
        """The rows of `positions`, by the records of the SOW topic."""
        last = {record.key: record for record in self.read("sow")}
        groups: dict[str, list[tuple[tuple[int, int, int], Any]]] = {}
        for seen in last.values():
            order = None if seen.value is None else json.loads(seen.value, parse_float=Decimal)
            if order is not None and order["state"] == "new":
                place = seen.timestamp_ms, seen.partition, seen.offset
                groups.setdefault(order["customer"] or "", []).append((place, order))
        return {
            customer: {
                "customer": customer or None,
                "orders": len(members),
                "qty": sum(order["qty"] for _, order in members),
                "worst": max(order["px"] for _, order in members),
                "kinds": len({order["px"] for _, order in members}),
                "last": max(members, key=lambda member: member[0])[1]["px"],
            }
            for customer, members in groups.items()
            if max(order["px"] for _, order in members) > 3
        }

    def expected_all(self) -> dict[str, Any]:
        """The row of the view over `positions`."""
        rows = self.expected_positions().values()
        return {"": {"customers": len(rows), "qty": sum(row["qty"] for row in rows)}} if rows else {}

    def expected_totals(self) -> dict[str, Any]:
        """The rows of `totals`, by the records of the SOW topic."""
        last = {record.key: record.value for record in self.read("sow")}
        orders = [json.loads(value) for value in last.values() if value is not None]
        rows = {order["id"]: {"id": order["id"], "value": order["qty"] * order["px"]} for order in orders}
        return {key: json.loads(json.dumps(row), parse_float=Decimal) for key, row in rows.items()}

    def expected_named(self) -> dict[str, Any]:
        """The rows of `named`, by the records of both SOW topics."""
        names = {key: person["name"] for key, person in self.last(self.people).items()}
        return {
            key: {"id": key, "qty": order["qty"]}
            | ({"name": names[order["customer"]]} if order["customer"] in names else {})
            for key, order in self.last(self.name).items()
        }

    def expected_sums(self) -> dict[str, Any]:
        """The rows of `sums`, by the records of the SOW topic."""
        groups: dict[str | None, list[Any]] = {}
        for order in self.last(self.name).values():
            groups.setdefault(order["customer"], []).append(order)
        return {
            customer or "": {
                "customer": customer,
                "orders": len(orders),
                "qty": sum(order["qty"] for order in orders),
                "priced": len(orders),
                "low": min(order["qty"] for order in orders),
                "high": max(order["px"] for order in orders),
            }
            for customer, orders in groups.items()
        }

    def settled(self) -> Callable[[], bool]:
        """Return a check that is true once all views have the rows of their definitions."""
        return lambda: (
            self.last(self.positions) == self.expected_positions()
            and self.last(self.totals) == self.expected_totals()
            and self.last(self.all_views) == self.expected_all()
            and self.last(self.named) == self.expected_named()
            and self.last(self.sums) == self.expected_sums()
            and self.last(self.copy) == self.last(self.positions)
        )

    def law(self, name: str) -> str:
        """A violation of the law of deltas in a view's topics, or a gap in the versions of a life; empty: none."""
        held: dict[bytes, tuple[int, Any]] = {}
        for seen in self.read("delta", name):
            key, version, kind = seen.key or b"", int(seen.headers["version"]), seen.headers.get("kind", "update")
            before, row = held.get(key, (0, None))
            follows = version > before if kind == "insert" else version == before + 1
            if not follows or (kind == "insert") != (row is None):
                return f"{key!r}: {kind} with version {version} after {before} at offset {seen.offset}"
            if kind == "delete":
                held[key] = version, None
                continue
            row = {**(row or {}), **json.loads(seen.value or b"", parse_float=Decimal)}
            for pointer in json.loads(seen.headers.get("removed", "[]")):
                row.pop(pointer[1:])
            held[key] = version, row
        replayed = {key.decode(): row for key, (_, row) in held.items() if row is not None}
        return "" if replayed == self.last(name) else f"the deltas give {replayed}, the SOW topic has {self.last(name)}"
