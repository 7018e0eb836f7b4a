"""Random histories of SOW records, and a check of a view after every step."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.view import compiled_stages, partial_aggregate
from processor.builtin.view.start_pass import forget_process
from processor.config import TopicConfig
from processor.filter.aggregate import extremes
from processor.testing import ProcessorTestDriver
from tests.builtin.view.chain import AggregateChain
from tests.builtin.view.oracle import FIELDS, HAVING, Duck, Sow, as_written, difference, python_rows

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

    keys, changes_max = 12, 6  # Of records, and those of one step.

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
        for _ in range(rng.randint(1, self.changes_max)):
            number = rng.randrange(self.keys)
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
        names = {"customer", *(path[1:] for path in self.view["fields"])}
        return {key: {name: value for name, value in row.items() if name in names} for key, row in rows.items()}

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
        return self._of_view(python_rows(last.values(), has_having="having" in self.view))

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
        least = 2 if "having" in self.view else 1
        return super()._of_view({key: row for key, row in rows.items() if row["orders"] >= least})


_PLAIN = (0, 1, 2, 3, 4, 10, -5, 1.0, 1.5, 2.0, 123.25, -1.5, 10**17, None)
_MIXED = (*_PLAIN, "1", "1.0", "-3", "1e2", "tea", "zoo", True, False, -0.0, 0.1, -0.7, 10**18, 1e18, "", [3, "x"], {})


class ExtremesHistory(PartialHistory):
    """Combined `MIN` and `MAX`, of plain numbers or of values of any kind, with few values and groups in memory.

    In a third of the histories nothing is compiled.
    """

    keys, changes_max = 24, 20

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"limits {seed}")
        self._limits = {
            "_KEPT_MAX": rng.choice((2, 2, 3, 512)), "_GROUPS_MAX": rng.choice((0, 1, 100_000)),
            "_ROOM_MAX": rng.choice((0, 2_000_000)), "_PIECE": rng.choice((1, 2, 2_000)),
        }  # fmt: skip
        self.is_compiled = rng.random() < 2 / 3
        """True if plain records are read by compiled functions, where there are some."""
        self._values = rng.choice((_PLAIN, _PLAIN, _MIXED))
        self.refills = 0
        """How often all records were read again."""
        with self._limited():
            super().__init__(seed)

    def step(self) -> str:
        """Take a step with the limits of this history; returns what `History.step` does."""
        with self._limited():
            return super().step()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Have the limits of this history meanwhile."""
        real = partial_aggregate.ViewPartialAggregate._refill_some

        def refill(stage: partial_aggregate.ViewPartialAggregate) -> None:
            self.refills += not stage._is_refilling
            real(stage)

        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._limits.items():
                patch.setattr(partial_aggregate, name, value)
            patch.setattr(extremes, "KEPT_MAX", self._limits["_KEPT_MAX"])
            patch.setattr(compiled_stages, "has_compiled", self.is_compiled and compiled_stages.has_compiled)
            patch.setattr(partial_aggregate.ViewPartialAggregate, "_refill_some", refill)
            yield

    def _random_view(self) -> dict[str, Any]:
        fields = {path: FIELDS[path] for path in ("/orders", "/priced", "/qty", "/low", "/high", "/least")}
        fields |= {"/small": "MIN(/mixed)", "/large": "MAX(/mixed)"}
        for path in self.rng.sample([*fields][1:], self.rng.choice((0, 2, 4))):
            del fields[path]
        having = self.rng.choice(({}, {"having": "/orders > 1"}))
        view = VIEW | {"fields": fields, "partial_aggregation": True, "as_of": False} | having
        if self.rng.random() < 3 / 4:
            del view["filter"]
        return view

    def _change(self, key: str, partition: int) -> None:
        rng = self.rng
        record = random_record(rng, key)
        if record is not None:
            names = ("customer", "qty", "px", "mixed")
            record |= dict(zip(names, (rng.choice(("ann", "ann", "bob")), *rng.choices(_PLAIN, k=2), 0), strict=True))
            record["mixed"] = rng.choice(self._values)
            if not self.view.get("filter"):
                record["state"] = "new"
            if self._values is _PLAIN and rng.random() < 0.9:
                record.pop("name", None)
        self._note(key, partition, self.chain.put(partition, key, record), record)

    def _disturb(self) -> None:
        """Let the first stage also work a little at a time, so that records come while others are read again."""
        super()._disturb()
        for split in self.chain.splits:
            while self.rng.random() < 0.8:
                split.feed(self.rng.choice((0, 1, 2)))
                split.advance_time(1, punctuations_max=1)
                if self.rng.random() < 0.6:
                    split.commit()


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
            former = {name: as_written(value) for name, value in held.get(key, {}).items()}
            if kind != b"insert" and all(former.get(name) == as_written(value) for name, value in body.items()):
                return f"an update of {key!r} changes nothing: {body}"
            held.setdefault(key, {}).update(body)
            for pointer in json.loads(headers.get("removed") or b"[]"):
                held[key].pop(pointer[1:])
        last = {record.key: record.value for record in aggregate.read_output("sow")}
        sow = {key: json.loads(value, parse_float=Decimal) for key, value in last.items() if value is not None}
        if sow != held:
            return f"the deltas give {held}, the SOW topic has {sow}"
    return ""
