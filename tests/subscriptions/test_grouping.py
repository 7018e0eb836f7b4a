"""Aggregated subscriptions: messages about groups of records, computed by the engine for one subscriber."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest

from processor.codec import load_codec
from processor.errors import ConfigurationError
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic
from processor.subscriptions.request.subscribe_options import parse_options

OPTIONS = "projection=[SUM(/qty) AS /qty, COUNT(*) AS /orders],grouping=[/customer]"


def order(offset: int, key: str, value: Any) -> Record:
    """A SOW record."""
    data = None if value is None else json.dumps(value).encode()
    return Record(key.encode(), data, [("version", b"1")], offset, 1_700_000_000_000 + offset)


def spec(options: str, *, delta: bool, filter: str | None = "/state = 'new'") -> SubscriptionSpec:  # noqa: A002
    """An aggregated subscription with a snapshot."""
    topic = Topic("orders", load_codec("json"), KeyFields(("/id",)))
    parsed = parse_options(options, snapshot=True, live=True, delta=delta)
    return SubscriptionSpec(topic, filter, parsed, snapshot=True, live=True, delta=delta)


@pytest.mark.parametrize("seed", range(6))
def test_subscriber_has_the_groups_of_the_records(seed: int) -> None:
    """Snapshot, deltas and oofs of an aggregated subscription give the groups of the matching records at every step."""
    rng, asked = random.Random(seed), spec(f"{OPTIONS},oof", delta=True)
    engine = Engine(Topic("orders", load_codec("json"), KeyFields(("/id",))), MemoryRecords())
    records: dict[str, Any] = {}
    held: dict[str, Any] = {}
    offset, desk = 0, engine.connect()
    for step in range(60):
        if step == 20:
            desk.subscribe(asked)
        key = f"k{rng.randrange(8)}"
        value = {"id": key, "customer": rng.choice(("a", "b", None)), "qty": rng.choice((0.1, 0.2, 5)),
                 "state": rng.choice(("new", "new", "paid"))}  # fmt: skip
        records[key] = None if rng.random() < 0.2 else value
        engine.take(0, [order(offset, key, records[key])], step)
        offset += 1
        if step < 20:
            continue
        for message in desk.take(1000):
            if message.command == "oof":
                del held[message.sow_key or ""]
            elif message.data is not None and message.command in {"sow", "publish"}:
                before = held.get(message.sow_key or "", {}) if message.delta else {}
                held[message.sow_key or ""] = {**before, **message.data}
        assert held == expected(records), f"step {step}"


def expected(records: dict[str, Any]) -> dict[str, Any]:
    """The groups of the matching records."""
    groups: dict[str, list[Any]] = {}
    for value in records.values():
        if value is not None and value["state"] == "new":
            groups.setdefault(value["customer"] or "", []).append(value)
    return {
        key: {
            "customer": key or None,
            "qty": float(total) if (total := sum(Decimal(str(each["qty"])) for each in members)) % 1 else int(total),
            "orders": len(members),
        }
        for key, members in groups.items()
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("grouping=[/customer]", "'grouping' needs 'projection'"),
        ("projection=[SUM(/qty)],grouping=[/customer]", "has no name; write SUM"),
        ("projection=[/px AS /px],grouping=[/customer]", "/px is neither grouped nor aggregated"),
    ],
)
def test_wrong_projection_is_refused(options: str, message: str) -> None:
    """A projection that cannot be computed is refused with the remedy."""
    with pytest.raises(ConfigurationError, match=message):
        spec(options, delta=False)
