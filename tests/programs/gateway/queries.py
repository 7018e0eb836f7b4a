"""Random queries with the same conditions in plain Python: the oracle of the law of composition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.filter import compile_filter
from processor.merge import KeyFields
from processor.subscriptions import SubscriptionSpec, Topic, parse_options
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.select import Select

TOPIC = Topic("orders", JsonCodec(CodecOptions()), KeyFields(("/id",)))
PARTITIONS = 2
KEYS = [str(number) for number in range(12)]
Body = dict[str, Any]


def _number(record: Body, name: str) -> float | None:
    value = record.get(name)
    return value if isinstance(value, int) else None


def _over(record: Body, name: str, least: int) -> bool:
    value = _number(record, name)
    return value is not None and value > least


FILTERS: dict[str | None, Callable[[Body], bool]] = {
    None: lambda r: True,
    "/a > 1": lambda r: _over(r, "a", 1),
    "/a BETWEEN 1 AND 2": lambda r: _number(r, "a") in (1, 2),
    "/s = 'x'": lambda r: r.get("s") == "x",
    "/s IN ('x', 'y') AND /a < 3": lambda r: r.get("s") in ("x", "y") and _number(r, "a") in (0, 1, 2),
    "/o/p = 1": lambda r: r.get("o", {}).get("p") == 1,
    "/s IS NULL": lambda r: "s" not in r,
    "/n > 1": lambda r: _over(r, "n", 1),
}
"""Filters with the same condition in Python."""


def _only(*names: str) -> Callable[[Body], Body]:
    return lambda r: {name: r[name] for name in ("id", *names) if name in r}


def _without(name: str) -> Callable[[Body], Body]:
    return lambda r: {other: value for other, value in r.items() if other != name}


def _part(record: Body) -> Body:
    part = {"p": record["o"]["p"]} if "p" in record.get("o", {}) else None
    return {"id": record["id"], **({"o": part} if part else {})}


SELECTS: dict[str | None, Callable[[Body], Body]] = {
    None: lambda r: r,
    "-/,+/a": _only("a"),
    "-/o": _without("o"),
    "-/,+/o/p": _part,
    "-/,+/a,+/n": _only("a", "n"),
}
"""Select lists with the same projection in Python."""


def _rising(name: str) -> Callable[[Body], tuple[int, float]]:
    return lambda r: (0, 0) if _number(r, name) is None else (1, r[name])


def _falling(name: str) -> Callable[[Body], tuple[int, float]]:
    return lambda r: (0, 0) if _number(r, name) is None else (-1, -r[name])


ORDERS: dict[str, Callable[[Body], tuple[int, float]]] = {
    "/a": _rising("a"),
    "/a DESC": _falling("a"),
    "/n DESC": _falling("n"),
}
"""Orders with the same sort key in Python; equal records go by their SOW key."""


class Right(NamedTuple):
    """An entitlement, with the same conditions in Python."""

    entitlement: Entitlement | None
    allows: Callable[[Body], bool]
    visible: Callable[[Body], Body]


RIGHTS = [
    Right(None, lambda r: True, lambda r: r),
    Right(Entitlement(compile_filter("/s != 'z'"), None), lambda r: r.get("s") in ("x", "y"), lambda r: r),
    Right(Entitlement(None, Select("-/n", TOPIC.key)), lambda r: True, _without("n")),
    Right(
        Entitlement(compile_filter("/a < 3"), Select("-/n,-/o", TOPIC.key)),
        lambda r: _number(r, "a") in (0, 1, 2),
        lambda r: _without("o")(_without("n")(r)),
    ),
]


class Query(NamedTuple):
    """A query, as a client asks it."""

    filter: str | None
    select: str | None
    order: str | None
    top: int | None
    skip: int
    is_delta: bool
    oof: bool
    no_empties: bool
    conflation: str | None
    right: Right
    has_groups: bool = False

    def spec(self, *, snapshot: bool = True) -> SubscriptionSpec:
        """The request to the engine."""
        form = {"snapshot": snapshot, "live": True, "delta": self.is_delta}
        options = parse_options(
            None,
            **form,
            oof=self.oof,
            no_empties=self.no_empties if self.is_delta else None,
            select=self.select,
            order_by=self.order if self.is_window else None,
            top_n=self.top,
            skip_n=self.skip or None,
            conflation=self.conflation,
            grouping="[/s]" if self.has_groups else None,
            projection="[COUNT(*) AS /count, SUM(/a) AS /total]" if self.has_groups else None,
        )
        return SubscriptionSpec(TOPIC, self.filter, options, **form, entitlement=self.right.entitlement)

    @property
    def is_window(self) -> bool:
        """True if the query has a window: `top_n` or `skip_n`."""
        return self.top is not None or self.skip > 0

    def shown(self, record: Body) -> Body | None:
        """The part of a record that the client sees, outside of windows; None: it does not match."""
        if not self.right.allows(record):
            return None
        visible = self.right.visible(record)
        return SELECTS[self.select](visible) if FILTERS[self.filter](visible) else None

    def answer(self, world: dict[str, Body]) -> dict[str, Body]:
        """The records that the client is to hold."""
        rows = {key: shown for key, record in world.items() if (shown := self.shown(record)) is not None}
        if self.has_groups:
            return _groups(rows.values())
        if not self.is_window:
            return rows
        assert self.order is not None
        place = ORDERS[self.order]
        ordered = sorted(rows, key=lambda key: (*place(self.right.visible(world[key])), key.encode()))
        end = None if self.top is None else self.skip + self.top
        return {key: rows[key] for key in ordered[self.skip : end]}


def _groups(records: Iterable[Body]) -> dict[str, Body]:
    """The rows of the groups by `/s`, each with the number of its records and the sum of `/a`."""
    groups: dict[str, list[Body]] = {}
    for record in records:
        groups.setdefault(record.get("s", ""), []).append(record)
    return {
        name: {
            "s": name or None,
            "count": len(members),
            "total": sum(known) if (known := [one["a"] for one in members if "a" in one]) else None,
        }
        for name, members in groups.items()
    }
