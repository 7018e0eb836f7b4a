"""The evidence of a run: topics, archive, tables and quarantine, read without the product's code.

Topics are read with librdkafka's consumer, Parquet with Arrow and the rest with the standard library; the layout of the
directories is the documented one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tests.endtoend.oracle import Seen
from tests.programs.pipeline.layout import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.programs.pipeline.layout import Layout
    from tests.programs.pipeline.rows import Ledger


class Archived(NamedTuple):
    """A record in the archive."""

    topic: str
    record: Seen
    """The record, as it is on its topic."""
    date: str
    """The partition of the archive, such as `2026-11-23`."""


class TableRow(NamedTuple):
    """A row of the table of present records."""

    key: str
    version: int
    record: Any


class VersionRow(NamedTuple):
    """A row of the table of versions."""

    key: str
    version: int
    from_ms: int
    to_ms: int | None
    """None: the present version."""
    record: Any


class Quarantined(NamedTuple):
    """A row in the quarantine."""

    file: str
    """The name of the file without its directory, or `topic/partition`."""
    line: int
    reason: str
    text: str | None


class Misfit(NamedTuple):
    """A record that does not fit a schema."""

    partition: int
    offset: int
    key: str


class Work(NamedTuple):
    """The work of a job over all of its processes."""

    commits_s: list[float]
    """The times of its completed micro-batches, in seconds since the epoch."""
    failures: int
    """The failures in the logs."""


@dataclass
class Evidence:
    """The evidence; each topic in order of partition and offset."""

    orders: str
    """The family of the orders."""
    depth: str
    """The family of the features."""
    notes: str
    """The family of the rows of CSV files."""
    counts: str
    """The family of their numbers by note."""
    query: str
    """The query of the features."""
    ledger: Ledger
    topics: dict[str, list[Seen]] = field(default_factory=dict)
    """The committed records of each Kafka topic."""
    archive: list[Archived] = field(default_factory=list)
    table: list[TableRow] = field(default_factory=list)
    history: list[VersionRow] = field(default_factory=list)
    quarantine: list[Quarantined] = field(default_factory=list)
    typed: list[dict[str, Any]] = field(default_factory=list)
    """The rows of the table with columns."""
    typed_misfits: list[Misfit] = field(default_factory=list)
    """The records that this table has set aside."""
    depth_misfits: list[Misfit] = field(default_factory=list)
    """The records that the features have set aside."""
    keyless: list[dict[str, Any]] = field(default_factory=list)
    """The rows without a key that the numbers by note have set aside."""
    work: dict[str, Work] = field(default_factory=dict)
    """The work of each job."""
    may_repeat: bool = False
    """Whether Spark has merged, which writes a record of an interrupted micro-batch again, with the same content."""

    def of(self, role: str, family: str | None = None) -> list[Seen]:
        """The records of a role, of the orders or another family."""
        return self.topics[f"{family or self.orders}.{role}"]


def gather(layout: Layout, ledger: Ledger, *, may_repeat: bool) -> Evidence:
    """Read everything, when all jobs and workers have stopped."""
    evidence = Evidence(
        layout.orders, layout.depth, layout.notes, layout.counts, layout.query, ledger, may_repeat=may_repeat
    )
    for family in (layout.orders, layout.depth, layout.notes, layout.counts):
        for role in ("publish", "sow", "delta", "dlq"):
            evidence.topics[f"{family}.{role}"] = layout.world.read(role, family)
    evidence.archive = list(archived(layout.directory / "archive"))
    evidence.table = list(table_rows(layout.directory / "book"))
    evidence.history = list(version_rows(layout.directory / "history"))
    evidence.quarantine = list(quarantined(layout.directory / "quarantine"))
    evidence.typed = list(_snapshot(layout.directory / "typed", with_closed=False))
    evidence.typed_misfits = misfits(layout.directory / "quarantine-typed")
    evidence.depth_misfits = misfits(layout.directory / f"quarantine-{layout.depth}")
    evidence.keyless = list(set_aside(layout.directory / f"quarantine-{layout.counts}", "missing_key"))
    evidence.work = {job: _work(layout.directory, job) for jobs in GROUPS.values() for job in jobs}
    return evidence


def archived(path: Path) -> Iterator[Archived]:
    """The records of an archive."""
    if not path.is_dir():
        return
    partitions = pa.schema([("topic", pa.string()), ("date", pa.string()), ("batch", pa.string())])
    data = ds.dataset(path, format="parquet", partitioning=ds.partitioning(partitions, flavor="hive"))
    names = ("topic", "date", "partition", "offset", "key", "value", "headers")
    for batch in data.to_batches(columns=[*names, "timestamp"], batch_size=10_000):
        columns = [batch.column(name).to_pylist() for name in names]
        times_ms = _milliseconds(batch.column("timestamp"))
        for topic, date, partition, offset, key, value, headers, at_ms in zip(*columns, times_ms, strict=True):
            texts = {header["key"]: header["value"].decode() for header in headers or ()}
            yield Archived(topic, Seen(partition, offset, key, value, texts, at_ms), date)


def table_rows(path: Path) -> Iterator[TableRow]:
    """The rows of the last snapshot of a table of present records."""
    for row in _snapshot(path, with_closed=False):
        sow = row.get("_sow", row)
        yield TableRow(sow["sow_key"], sow["version"], _record(row))


def version_rows(path: Path) -> Iterator[VersionRow]:
    """The rows of the last snapshot of a table of versions."""
    for row in _snapshot(path, with_closed=True):
        yield VersionRow(row["sow_key"], row["version"], row["valid_from"], row["valid_to"], _record(row))


def quarantined(path: Path) -> Iterator[Quarantined]:
    """The rows of a quarantine, without files that a writer has not completed."""
    for row in _json_rows(path):
        place = row["file"]
        name = place.rpartition("/")[2] if place.endswith((".json", ".csv")) else place
        yield Quarantined(name, row["line"], row["reason"], row.get("row"))


def set_aside(path: Path, reason: str) -> Iterator[dict[str, Any]]:
    """The rows of a quarantine of features, which all have one reason."""
    for row in _json_rows(path):
        assert row["reason"] == reason, row
        yield json.loads(row["row"])


def misfits(path: Path) -> list[Misfit]:
    """The records in a quarantine that do not fit, and no others."""
    rows = [*_json_rows(path)]
    assert {row["reason"] for row in rows} <= {"misfit"}, rows[:3]
    return [Misfit(row["partition"], row["offset"], row["key"]) for row in rows]


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(path.rglob("*.json")):
        if not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts):
            yield from map(json.loads, file.read_text(encoding="utf-8").split("\n")[:-1])


def _work(directory: Path, job: str) -> Work:
    failures = 0
    for log in directory.glob("job-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            failures += event.get("event") == "job failed" and event.get("job") == job
    commits = (directory / "checkpoints" / job / "commits").glob("[0-9]*")
    return Work(sorted(file.stat().st_mtime for file in commits), failures)


def _snapshot(path: Path, *, with_closed: bool) -> Iterator[dict[str, Any]]:
    """The rows of the latest snapshot, with times in milliseconds."""
    names = path / "_snapshots"
    numbers = [int(file.stem) for file in names.glob("*.json") if file.stem.isdigit()] if names.is_dir() else []
    if not numbers:
        return
    content = json.loads((names / f"{max(numbers)}.json").read_text())
    directories: Sequence[str] = [content["directory"], *(content.get("closed", ()) if with_closed else ())]
    for directory in directories:
        is_state = with_closed and directory == content["directory"]
        for batch in ds.dataset(path / "data" / directory, format="parquet").to_batches(batch_size=10_000):
            columns = {
                name: _milliseconds(column) if pa.types.is_timestamp(column.type) else column.to_pylist()
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
            for values in zip(*columns.values(), strict=True):
                row = dict(zip(columns, values, strict=True))
                # The state of a key whose record is gone is its last version, which is in `closed` too.
                if not is_state or row["valid_to"] is None:
                    yield row


def _milliseconds(column: pa.Array) -> list[int | None]:
    """Times in milliseconds; one with a finer part is an error, as Kafka has none."""
    times: list[int | None] = pc.cast(column, pa.timestamp("ms", column.type.tz)).cast(pa.int64()).to_pylist()
    return times


def _record(row: dict[str, Any]) -> Any:
    return json.loads(row["value"])
