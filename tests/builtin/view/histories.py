"""Random histories of SOW records, and a check of a view after every step."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.view.start_pass import forget_process
from processor.config import TopicConfig
from processor.testing import ProcessorTestDriver
from tests.builtin.view.chain import AggregateChain
from tests.builtin.view.oracle import FIELDS, HAVING, Duck, Sow, difference, python_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.record import Record

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
        self.rng = rng = random.Random(seed)
        self.view = self._random_view()
        self.chain = chain or AggregateChain(self.view, inputs=2, partitions=rng.choice((1, 2, 3)))
        self.last: dict[str, Sow] = {}
        self.duck = duck
        self._checked = [0] * len(self.chain.aggregates)
        if duck is not None:
            duck.clear()

    def step(self) -> str:
        """Take a step; returns the first difference from the oracles, empty if there is none."""
        rng, chain = self.rng, self.chain
        for _ in range(rng.randint(1, 6)):
            number = rng.randrange(12)
            chain.now_ms += rng.choice((0, 0, 1, 50))
            self._change(f"k{number}", number % 2)
        self._disturb()
        chain.run()
        rows, has_having = parsed(chain), "having" in self.view
        expected = python_rows(self.last.values(), has_having=has_having and self.view["having"] == HAVING)
        wrong = difference(rows, self._of_view(expected), is_exact=True)
        if not wrong and self.duck is not None:
            expected = self.duck.rows(has_having=has_having and self.view["having"] == HAVING)
            wrong = difference(rows, self._of_view(expected), is_exact=False)
            wrong = wrong and f"DuckDB: {wrong}"
        return wrong or self._prefixes() or _law(chain)

    def _random_view(self) -> dict[str, Any]:
        """Choose the settings of the view."""
        return VIEW | self.rng.choice(({}, {"having": HAVING})) | {"as_of": self.rng.random() < 0.5}

    def _of_view(self, rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the rows and fields of the view among those of an oracle."""
        return rows

    def _change(self, key: str, partition: int) -> None:
        """Append a record of a key, or its tombstone."""
        record = random_record(self.rng, key)
        self._note(key, partition, self.chain.put(partition, key, record), record)

    def _note(self, key: str, partition: int, sow: Record, record: Any) -> None:
        """Remember the last record of a key, for the oracles."""
        self.last[key] = Sow(partition, sow.offset, sow.timestamp_ms, record)
        if self.duck is not None:
            self.duck.put(key, self.last[key])

    def _prefixes(self) -> str:
        """The first row since the last call that is not that of the prefix in its header `as_of`; empty: none."""
        if not self.view["as_of"]:
            return ""
        for number, aggregate in enumerate(self.chain.aggregates):
            written = aggregate.read_output("sow")
            for record in written[self._checked[number] :]:
                as_of = json.loads(dict(record.headers or ())["as_of"] or b"")
                expected = self._rows_of(as_of).get((record.key or b"").decode())
                row = None if record.value is None else json.loads(record.value, parse_float=Decimal)
                wrong = difference({"": row} if row else {}, {"": expected} if expected else {}, is_exact=True)
                if wrong:
                    return f"{record.key!r} as of {as_of}: {wrong}"
            self._checked[number] = len(written)
        return ""

    def _rows_of(self, as_of: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """The rows by the records before these offsets of each partition."""
        last: dict[bytes | None, Sow] = {}
        for partition, split in enumerate(self.chain.splits):
            for sow in split.input[: as_of.get(f"orders.sow/{partition}", 0)]:
                record = None if sow.value is None else json.loads(sow.value)
                last[sow.key] = Sow(partition, sow.offset, sow.timestamp_ms, record)
        return python_rows(last.values(), has_having="having" in self.view)

    def _disturb(self) -> None:
        """Crash or roll back a stage, before or after it has read what waits."""
        rng, chain = self.rng, self.chain
        if rng.random() < 0.6:
            return
        driver = rng.choice([*chain.splits, *chain.aggregates])
        if rng.random() < 0.5:
            chain.run_splits()
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if rng.random() < 0.5:
                driver.feed(rng.choice((None, 1, 2)))
            if rng.random() < 0.3:
                driver.commit()
            if rng.random() < 0.3:
                driver.write()
            if rng.random() < 0.6:
                forget_process()
                driver.crash(keep_store=rng.random() < 0.5, feed=False)
            else:
                driver.abort(feed=False)


class PartialHistory(History):
    """The same with partial aggregation, for the aggregates that add up.

    In half of the histories the definition is one for plain records, and all records but some count.
    """

    def __init__(self, seed: int, duck: Duck | None = None) -> None:
        super().__init__(seed, duck)
        self.chain.is_compact = not self.view.get("filter")

    def _random_view(self) -> dict[str, Any]:
        is_simple = self.rng.random() < 0.5
        of_numbers = ("COUNT(", "SUM", "AVG") if is_simple else ("COUNT(", "SUM", "AVG", "STDDEV")
        fields = {path: text for path, text in FIELDS.items() if text.startswith(of_numbers)}
        having = self.rng.choice(({}, {"having": "/orders > 1"}))
        view = VIEW | {"fields": fields, "partial_aggregation": True, "as_of": False} | having
        if is_simple:
            del view["filter"]
        return view

    def _change(self, key: str, partition: int) -> None:
        record = random_record(self.rng, key)
        if record is not None and not self.view.get("filter"):
            record["state"] = "new"
        self._note(key, partition, self.chain.put(partition, key, record), record)

    def _of_view(self, rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        names = {"customer", *(path[1:] for path in self.view["fields"])}
        least = 2 if "having" in self.view else 1
        return {
            key: {name: value for name, value in row.items() if name in names}
            for key, row in rows.items()
            if row["orders"] >= least
        }


class PlainHistory(PartialHistory):
    """The same with a part for each record, for all aggregates that plain records can have."""

    def _random_view(self) -> dict[str, Any]:
        fields = {path: text for path, text in FIELDS.items() if not text.startswith("STDDEV")}
        having = self.rng.choice(({}, {"having": "/orders > 1"}))
        return VIEW | {"fields": fields, "filter": None, "as_of": False} | having


class MergedHistory(History):
    """The same over records that a worker merges: publishes, deltas and deletes, and records that expire."""

    def __init__(self, seed: int, duck: Duck | None = None) -> None:
        super().__init__(seed, duck)
        topic = TopicConfig(partitions=1)
        self._mergers = [ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic) for _ in self.chain.splits]
        self._taken = [0] * len(self._mergers)
        self.expired = 0

    def _change(self, key: str, partition: int) -> None:
        rng, merger = self.rng, self._mergers[partition]
        body = random_record(rng, key)
        if body is None:
            merger.pipe_input(key, None)
        else:
            if command := rng.choice(("", "publish")):
                body = {"id": key} | {name: body[name] for name in rng.sample([*body], rng.randint(0, len(body)))}
            headers = {"command": command or "delta_publish"}
            if rng.random() < 0.4:
                headers["expiration"] = "0.1"
            merger.pipe_input(key, body, headers)
        for number, each in enumerate(self._mergers):
            if self.chain.now_ms > each.now_ms:
                each.advance_time(self.chain.now_ms - each.now_ms)
            each.commit()
            self._take(number)

    def _take(self, partition: int) -> None:
        """Append the SOW records that a worker has written."""
        written = self._mergers[partition].read_output("sow")
        for sow in written[self._taken[partition] :]:
            assert sow.key is not None
            self.expired += ("kind", b"expire") in (sow.headers or ())
            record = None if sow.value is None else json.loads(sow.value)
            key = sow.key.decode()
            self._note(key, partition, self.chain.put(partition, key, record, at_ms=sow.timestamp_ms), record)
        self._taken[partition] = len(written)


def _law(chain: AggregateChain) -> str:
    """Return how deltas fail to give their SOW records, with versions without gaps; empty: they do not."""
    for aggregate in chain.aggregates:
        held: dict[bytes, dict[str, Any]] = {}
        versions: dict[bytes, int] = {}
        for delta in aggregate.read_output("delta"):
            headers = dict(delta.headers or ())
            key, version = delta.key or b"", int(headers["version"] or 0)
            kind = headers.get("kind", b"update")
            is_next = version > versions.get(key, 0) if kind == b"insert" else version == versions[key] + 1
            if not is_next:
                return f"{key!r} has version {version} after {versions.get(key)}"
            versions[key] = version
            if kind == b"delete":
                del held[key]
                continue
            body = json.loads(delta.value or b"", parse_float=Decimal)  # Sums are exact: two may be one float.
            if kind != b"insert" and all(held[key].get(name, held) == value for name, value in body.items()):
                return f"an update of {key!r} changes nothing: {body}"
            held.setdefault(key, {}).update(body)
            for pointer in json.loads(headers.get("removed") or b"[]"):
                held[key].pop(pointer[1:])
        last = {record.key: record.value for record in aggregate.read_output("sow")}
        sow = {key: json.loads(value, parse_float=Decimal) for key, value in last.items() if value is not None}
        if sow != held:
            return f"the deltas give {held}, the SOW topic has {sow}"
    return ""
