"""Random histories of SOW records, and a check of a view after every step."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

from processor.builtin.view.start_pass import forget_process
from tests.builtin.view.chain import AggregateChain
from tests.builtin.view.oracle import FIELDS, Duck, Sow, difference, python_rows

VIEW = {"group_by": ["/customer"], "filter": "/state = 'new'", "fields": FIELDS}

_NUMBERS = (0.1, 0.2, 0.3, 1, 2, 10, -5, 1e15, 9007199254740993, 1.5, None, 0, -0.7, 123456.789)
_NAMES = ("tea", "rice", "", "oil", None, "Äpfel")


def random_record(rng: random.Random, key: str) -> dict[str, Any] | None:
    """A record, or None for a delete; a field may be missing."""
    if rng.random() < 0.15:
        return None
    record: dict[str, Any] = {"id": key, "state": rng.choice(("new", "new", "new", "paid"))}
    choices = {"customer": ("ann", "bob", "cy", None, ""), "qty": _NUMBERS, "px": _NUMBERS, "name": _NAMES}
    for field, values in choices.items():
        if rng.random() < 0.9:
            record[field] = rng.choice(values)
    return record


def parsed(chain: AggregateChain) -> dict[str, dict[str, Any]]:
    """The rows of a view, with every digit."""
    rows: dict[str, dict[str, Any]] = {}
    for aggregate in chain.aggregates:
        last = {record.key: record.value for record in aggregate.read_output("sow")}
        rows |= {(key or b"").decode(): json.loads(value, parse_float=Decimal) for key, value in last.items() if value}
    return rows


class History:
    """A chain and what it was given; one step appends records, runs stages, and may crash or roll back one."""

    def __init__(self, seed: int, duck: Duck | None = None, chain: AggregateChain | None = None) -> None:
        self.rng = random.Random(seed)
        self.chain = chain or AggregateChain(VIEW, inputs=2, partitions=self.rng.choice((1, 2, 3)))
        self.last: dict[str, Sow] = {}
        self.duck = duck
        if duck is not None:
            duck.clear()

    def step(self) -> str:
        """Take a step; returns the first difference from the oracles, empty if there is none."""
        rng, chain = self.rng, self.chain
        for _ in range(rng.randint(1, 6)):
            number = rng.randrange(12)
            key, partition = f"k{number}", number % 2
            chain.now_ms += rng.choice((0, 0, 1, 50))
            record = random_record(rng, key)
            sow = chain.put(partition, key, record)
            self.last[key] = Sow(partition, sow.offset, sow.timestamp_ms, record)
            if self.duck is not None:
                self.duck.put(key, self.last[key])
        self._disturb()
        chain.run()
        rows = parsed(chain)
        wrong = difference(rows, python_rows(self.last.values()), is_exact=True)
        if not wrong and self.duck is not None:
            wrong = difference(rows, self.duck.rows(), is_exact=False)
            wrong = wrong and f"DuckDB: {wrong}"
        return wrong or _law(chain)

    def _disturb(self) -> None:
        """Crash or roll back a stage, before or after it has read what waits."""
        rng, chain = self.rng, self.chain
        if rng.random() < 0.6:
            return
        driver = rng.choice([*chain.splits, *chain.aggregates])
        if rng.random() < 0.5:
            chain.run_splits()
        if rng.random() < 0.5:
            driver.feed()
        if rng.random() < 0.3:
            driver.write()
        if rng.random() < 0.7:
            forget_process()
            driver.crash(keep_store=rng.random() < 0.5, feed=False)
        else:
            driver.abort(feed=False)


def _law(chain: AggregateChain) -> str:
    """Whether the deltas of each partition give its SOW records, with versions without gaps; the first violation."""
    for aggregate in chain.aggregates:
        held: dict[bytes, dict[str, Any]] = {}
        versions: dict[bytes, int] = {}
        for delta in aggregate.read_output("delta"):
            headers = dict(delta.headers or ())
            key, version = delta.key or b"", int(headers["version"] or 0)
            kind = headers.get("kind", b"update")
            expected = 1 if kind == b"insert" else versions[key] + 1
            if version != expected:
                return f"{key!r} has version {version} after {versions.get(key)}"
            versions[key] = version
            if kind == b"delete":
                del held[key]
                continue
            body = json.loads(delta.value or b"")
            if kind != b"insert" and all(held[key].get(name, held) == value for name, value in body.items()):
                return f"an update of {key!r} changes nothing: {body}"
            held.setdefault(key, {}).update(body)
            for pointer in json.loads(headers.get("removed") or b"[]"):
                held[key].pop(pointer[1:])
        last = {record.key: record.value for record in aggregate.read_output("sow")}
        sow = {key: json.loads(value) for key, value in last.items() if value is not None}
        if sow != held:
            return f"the deltas give {held}, the SOW topic has {sow}"
    return ""
