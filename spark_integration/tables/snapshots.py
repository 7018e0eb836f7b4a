"""Keeps a table as complete snapshots of plain Parquet: each is written aside, then made the latest in one step.

    <path>/data/<number>-<random>/…parquet   a snapshot; readers find it by its name file below
    <path>/_snapshots/<number>.json          its name file, with the next offset of each partition of the topic

A table of versions has more directories of rows, which its later snapshots share: those of ended versions, `closed`.
Its snapshots have the state of each key: the open version, or, for a while, the last one, which is in `closed` too.

The name file is written aside too and then renamed, so that it is complete or missing. A writer that dies before that
leaves a directory without a name file, which the next writer removes. A table has one writer at a time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from processor.errors import ConfigurationError, Stop
from spark_integration.foundation.pyspark_private import hadoop_files

_NAMES: Final = "_snapshots"
_DATA: Final = "data"
_SUFFIX: Final = ".json"


class Snapshot(NamedTuple):
    """One snapshot of the table."""

    number: int
    """The number of the snapshot, from 1."""
    directory: str
    """The directory of its rows, below `data`."""
    applied: Mapping[int, int]
    """The next offset of each partition of the topic: all earlier updates are in the snapshot."""
    closed: Sequence[str] = ()
    """More directories of rows, below `data`, which stay as long as a snapshot names them."""


class Snapshots:
    """The snapshots of one table, in any file system that Hadoop knows."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Open the snapshots at a path, which may be missing."""
        self._spark, self.path = spark, path.rstrip("/")
        self._path, self._files = hadoop_files(spark, self.path, f"the snapshots at {self.path}")

    def all(self) -> list[Snapshot]:
        """All snapshots, the oldest first."""
        return list(map(self._read, self._numbers()))

    def latest(self) -> Snapshot | None:
        """The latest snapshot; None before the first one."""
        numbers = self._numbers()
        # Only the latest is read: an older one may be removed meanwhile.
        return self._read(numbers[-1]) if numbers else None

    def present(self) -> Snapshot:
        """The latest snapshot, of a table that exists.

        Raises:
            ConfigurationError: it does not exist yet.
        """
        if (latest := self.latest()) is None:
            raise ConfigurationError(
                f"there is no table at {self.path}: no batch has been written to it yet; check the path"
            )
        return latest

    def rows(self, snapshot: Snapshot) -> DataFrame:
        """The rows of a snapshot."""
        return self._spark.read.parquet(f"{self.path}/{_DATA}/{snapshot.directory}")

    def closed_rows(self, snapshot: Snapshot) -> list[DataFrame]:
        """The rows of each directory in `closed`."""
        return [self._spark.read.parquet(f"{self.path}/{_DATA}/{directory}") for directory in snapshot.closed]

    def write(self, rows: DataFrame, applied: Mapping[int, int], closed: Sequence[str] = ()) -> Snapshot:
        """Write rows to a new snapshot, which readers find after `switch`; `closed` are its other directories."""
        before = self.latest()
        number = 1 if before is None else before.number + 1
        return Snapshot(number, self.write_rows(rows, f"{number}"), dict(applied), tuple(closed))

    def write_rows(self, rows: DataFrame, name: str) -> str:
        """Write rows to a directory of their own, which no reader finds yet; returns its name."""
        directory = f"{name}-{uuid.uuid4().hex[:12]}"
        rows.write.parquet(f"{self.path}/{_DATA}/{directory}")
        return directory

    def switch(self, snapshot: Snapshot) -> None:
        """Make a written snapshot the latest, for all readers from now on.

        Raises:
            Stop: another writer has written the table meanwhile.
        """
        final = self._at(f"{_NAMES}/{snapshot.number}{_SUFFIX}")
        aside = self._at(f"{_NAMES}/.{snapshot.directory}")
        content: dict[str, Any] = {
            "directory": snapshot.directory,
            "applied": {str(p): offset for p, offset in snapshot.applied.items()},
        }
        if snapshot.closed:
            content["closed"] = list(snapshot.closed)
        stream = self._files.create(aside, True)
        try:
            stream.write(bytearray(json.dumps(content).encode()))
        finally:
            stream.close()
        if self._files.exists(final) or not self._files.rename(aside, final):
            self._files.delete(aside, False)
            raise Stop(
                f"{self.path}: somebody else has written snapshot {snapshot.number} meanwhile; let one query write a "
                "table, and start this one again"
            )

    def clean(self, keep: int) -> None:
        """Remove all but the last snapshots, and the files of writers that died."""
        snapshots = self.all()
        for old in snapshots[:-keep]:
            # The name file goes first, so that a reader who finds one also finds its rows.
            self._files.delete(self._at(f"{_NAMES}/{old.number}{_SUFFIX}"), False)
        named = {name for snapshot in snapshots[-keep:] for name in (snapshot.directory, *snapshot.closed)}
        for directory in self._listed(_DATA):
            if directory not in named:
                self._files.delete(self._at(f"{_DATA}/{directory}"), True)
        for name in self._listed(_NAMES):
            if not name.endswith(_SUFFIX):
                self._files.delete(self._at(f"{_NAMES}/{name}"), False)

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(_SUFFIX) for name in self._listed(_NAMES))
        return sorted(int(name) for name in names if name.isdigit())

    def _read(self, number: int) -> Snapshot:
        stream = self._files.open(self._at(f"{_NAMES}/{number}{_SUFFIX}"))
        try:
            content = json.loads(bytes(stream.readAllBytes()))
            applied = {int(partition): int(offset) for partition, offset in content["applied"].items()}
            return Snapshot(number, str(content["directory"]), applied, tuple(content.get("closed", ())))
        except (ValueError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"{self.path}/{_NAMES}/{number}{_SUFFIX} is damaged: {error!r}; remove it, and the snapshot before it "
                "counts"
            ) from None
        finally:
            stream.close()

    def _listed(self, directory: str) -> list[str]:
        at = self._at(directory)
        if not self._files.exists(at):
            return []
        return [str(status.getPath().getName()) for status in self._files.listStatus(at)]

    def _at(self, name: str) -> Any:
        return self._path(f"{self.path}/{name}")
