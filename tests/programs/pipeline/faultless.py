"""A model of a pipeline without fault, which gives the evidence that a run should leave."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tests.endtoend.oracle import Seen
from tests.programs.faults.expected import expect
from tests.programs.pipeline.evidence import Archived, Evidence, Misfit, Quarantined, TableRow, VersionRow, Work
from tests.programs.pipeline.layout import BROKEN, FEATURES, GROUPS
from tests.programs.pipeline.rows import COLUMNS, Ledger, Notes, Rows, fits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.programs.pipeline.rows import Row

_PARTITIONS: Final = 4
_BEGAN_MS: Final = 1_795_000_000_000
_FILE_LINES: Final = 100
_QUERY: Final = " ".join(FEATURES.format(orders="orders").split())


def evidence(seed: int, count: int, keys: int) -> Evidence:
    """The evidence of `count` rows of files, half as many of the raw topic, and a quarter sent directly."""
    model = _Model(seed, count, keys)
    model.publish()
    made = Evidence("orders", "depth", "notes", "counts", _QUERY, model.ledger)
    made.topics |= model.family("orders", model.published)
    sow = {(record.key or b"").decode(): record for record in made.of("sow")}
    live = {key: json.loads(record.value) for key, record in sow.items() if record.value is not None}
    made.topics |= model.family("depth", _features(live))
    for role in ("publish", "delta"):
        for record in made.of(role):
            date = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).date().isoformat()
            made.archive.append(Archived(f"orders.{role}", record, date))
    made.table += [TableRow(key, int(sow[key].headers["version"]), record) for key, record in live.items()]
    made.history += _history(made.of("sow"))
    _add_troubles(made, model, count)
    made.quarantine += [Quarantined(*place, row.reason or "", row.text) for place, row in model.ledger.bad.items()]
    return made


class _Model:
    """The rows, and the records that ingest makes of them."""

    def __init__(self, seed: int, count: int, keys: int) -> None:
        self.ledger = Ledger()
        self.published: list[Seen] = []
        self._seed, self._count, self._keys = seed, count, keys
        self._ends = [0] * _PARTITIONS

    def publish(self) -> None:
        """Send all rows, and a few of them twice under one identity, as after a kill."""
        ways = (self._files(), self._raw(), self._direct())
        while sum(self._step(way) for way in ways):
            pass
        self.published.sort(key=lambda record: (record.partition, record.offset))

    def family(self, name: str, published: list[Seen]) -> dict[str, list[Seen]]:
        """The topics of a family that a worker without fault writes."""
        expected = expect(f"{name}.publish", published)
        times = {(record.partition, record.offset): record.timestamp_ms + 5 for record in published}
        sow, delta = [], []
        for partition, updates in sorted(expected.updates.items()):
            before: dict[bytes, Any] = {}
            for offset, update in enumerate(updates):
                at_ms = times[partition, int(update.source.rpartition("/")[2])]
                headers = {"version": str(update.version), "source": update.source}
                old = before.pop(update.key, None)
                value = None if update.record is None else _bytes(update.record)
                changed = value
                if update.record is None:
                    headers["kind"] = "delete"
                else:
                    before[update.key] = update.record
                    fields = update.record.items()
                    if old is None:
                        headers["kind"] = "insert"
                    else:
                        changed = _bytes({field: part for field, part in fields if old.get(field) != part})
                sow.append(Seen(partition, offset, update.key, value, headers, at_ms))
                delta.append(Seen(partition, offset, update.key, changed, headers, at_ms))
        letters = [
            Seen(record.partition, offset, record.key, record.value, {"source": source, "dlq_reason": "bad_json"})
            for offset, (source, record) in enumerate(expected.rejected.items())
        ]
        topics = {"publish": published, "sow": sow, "delta": delta, "dlq": letters}
        return {f"{name}.{role}": records for role, records in topics.items()}

    @staticmethod
    def _step(way: Iterator[None]) -> bool:
        return next(way, StopIteration) is not StopIteration

    def _files(self) -> Iterator[None]:
        for number, row in enumerate(islice(Rows(self._seed, self._keys, 1).lines(), self._count)):
            if row.text:
                place = f"rows-{number // _FILE_LINES:06d}.json", number % _FILE_LINES + 1
                self._ingest(place, row, {"client": "app.files/1/0", "sequence": str(number)})
            yield

    def _raw(self) -> Iterator[None]:
        for offset, row in enumerate(islice(Rows(self._seed, self._keys, 2).values(), self._count // 2)):
            self._ingest(("raw/0", offset), row, {"client": "app.raw/0", "sequence": str(offset)})
            yield

    def _direct(self) -> Iterator[None]:
        for key, value, headers in islice(Rows(self._seed, self._keys, 3).commands(), self._count // 4):
            self.ledger.direct += 1
            self._append(key, value, headers)
            yield from (None,) * 4  # As long as the other ways go on.

    def _ingest(self, place: tuple[str, int], row: Row, headers: dict[str, str]) -> None:
        self.ledger.rows[place] = row
        if row.reason is None and row.text is not None:
            key = str(json.loads(row.text)["id"]).encode()
            for _ in range(2 if row.number % 50 < 3 else 1):
                self._append(key, row.text.encode(), headers | {"command": "delta_publish"})

    def _append(self, key: bytes, value: bytes | None, headers: dict[str, str]) -> None:
        partition = sum(key) % _PARTITIONS
        at_ms = _BEGAN_MS + len(self.published)
        self.published.append(Seen(partition, self._ends[partition], key, value, headers, at_ms))
        self._ends[partition] += 1


def _add_troubles(made: Evidence, model: _Model, count: int) -> None:
    """The evidence of rows and records that do not fit, of CSV files, and of a job that always fails."""
    _, model.ledger.notes, bad = Notes(7).file(count)
    model.ledger.rows |= {("notes-000001.csv", line): row for line, row in bad.items()}
    good = model.ledger.notes.items()
    bodies = {str(key): {"id": key} if note is None else {"id": key, "note": note} for key, note in good}
    made.topics |= model.family("notes", _deltas("lines", bodies))
    lines = Counter(model.ledger.notes.values())
    counts = {note: {"id": note, "lines": number} for note, number in lines.items() if note is not None}
    made.topics |= model.family("counts", _deltas("counts", counts))
    made.keyless += [{"id": None, "lines": number} for number in (1, lines[None])]
    read_orders(made)
    made.work = {job: Work([1.0, 2.5, 4.0], 0) for jobs in GROUPS.values() for job in jobs} | {BROKEN: Work([], 3)}


def read_orders(made: Evidence) -> None:
    """Read the SOW topic into the table with columns, and set the records aside that do not fit."""
    rows: dict[str, Any] = {}
    last: dict[str, Misfit] = {}
    made.typed_misfits = []
    for one in made.of("sow"):
        key, record = (one.key or b"").decode(), json.loads(one.value or b"{}")
        last.pop(key, None)
        if one.value is None:
            rows.pop(key, None)
        elif fits(record):
            rows[key] = {name: record.get(name) for name in COLUMNS}
        else:
            last[key] = Misfit(one.partition, one.offset, key)
            made.typed_misfits.append(last[key])
    made.typed, made.depth_misfits = [*rows.values()], [*last.values()]


def _deltas(job: str, bodies: dict[str, dict[str, Any]]) -> list[Seen]:
    """The publications of new records by a job, in one partition."""
    return [
        Seen(0, offset, key.encode(), _bytes(body), {"client": f"app.{job}/1/0", "sequence": str(offset)}, _BEGAN_MS)
        for offset, (key, body) in enumerate(bodies.items())
    ]


def _features(live: dict[str, Any]) -> list[Seen]:
    """The publications of a job `features`: a first state of which each sum is lower, then the final one."""
    columns = (*COLUMNS,)
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    database.execute("CREATE TABLE orders (id INTEGER, n INTEGER, item TEXT, qty INTEGER, px REAL)")
    rows = [tuple(record.get(name) for name in columns) for record in live.values() if fits(record)]
    database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
    published = []
    for number, row in enumerate(database.execute(_QUERY)):
        for turn, lower in enumerate((1, 0)):
            body = {**row, "orders": row["orders"] - lower} if lower else {"id": row["id"], "orders": row["orders"]}
            headers = {"client": "app.depth/1/0", "sequence": str(2 * number + turn), "command": "delta_publish"}
            at_ms = _BEGAN_MS + 1_000 * turn
            published.append(Seen(0, 2 * number + turn, row["id"].encode(), _bytes(dict(body)), headers, at_ms))
    database.close()
    return published


def _history(sow: list[Seen]) -> list[VersionRow]:
    """The versions of the SOW records, each until the next one."""
    rows: list[VersionRow] = []
    present: dict[bytes, VersionRow] = {}
    for record in sow:
        key = record.key or b""
        if key in present:
            rows.append(present.pop(key)._replace(to_ms=record.timestamp_ms))
        if record.value is not None:
            version = int(record.headers["version"])
            present[key] = VersionRow(key.decode(), version, record.timestamp_ms, None, json.loads(record.value))
    return [*rows, *present.values()]


def _bytes(record: Any) -> bytes:
    return json.dumps(record).encode()
