"""Runs functions on a Spark of some kind, in a process of its own, see `main`."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

import spark_integration
from processor.config import Config
from spark_integration import spark_session
from spark_integration.publish.batch_sender import recipe
from spark_integration.publish.sequence import PLANNED_FROM_MS, PLANNED_ROWS_BITS
from tests.waiting import until

SCHEMA = "id LONG, qty LONG"
LATE = "Python worker failed to connect back"
"""Spark's error where the Python of the driver takes longer than 10 s to start, as on a busy machine."""
LATE_S = 300
"""How long a step that fails by it is tried again: the machine may be busy for minutes."""


def main(mode: str, name: str, config: str, bootstrap: str, directory: str, results: str) -> None:
    """Run the steps in order, and write the result or the error of each to a file.

    Args:
        mode: `connect`, `local`, or `submitted`: the master is that of `spark-submit`.
        name: the family's name, whose topics exist and are empty.
        config: the settings file.
        bootstrap: the address of Kafka.
        directory: a folder for checkpoints and tables.
        results: the file for the results.
    """
    place = {"connect": {"spark.remote": "local[2]"}, "local": {"spark.master": "local[2]"}, "submitted": {}}[mode]
    spark = spark_session(
        mode,
        **place,
        **{"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"},
    )  # fmt: skip
    job = Job(spark, name, config, {"kafka.bootstrap.servers": bootstrap}, Path(directory))
    found = {}
    for step in Job.STEPS if mode == "connect" else [step for step in Job.STEPS if step not in Job.CONNECT_ONLY]:
        began, before = time.monotonic(), _processes()
        while True:
            try:
                found[step] = getattr(job, step)()
            except Exception as error:  # noqa: BLE001 - the test judges it
                traceback.print_exc()
                found[step] = f"{type(error).__name__}: {error}"
            if LATE not in str(found[step]) or time.monotonic() > began + LATE_S:
                break
            # The late Python still starts, and would make the next one late too.
            psutil.wait_procs(_processes() - before, timeout=60)
        print(step, found[step], f"{time.monotonic() - began:.1f} s", flush=True)
        Path(results).write_text(json.dumps(found))
    spark.stop()


def _processes() -> set[psutil.Process]:
    # The JVM of `spark-submit` is above this process, any other one below it.
    return set(psutil.Process(os.getppid()).children(recursive=True))


class Job:
    """One step for each function; every step returns plain values."""

    STEPS = (
        "session", "publish_deltas", "merge_batch", "load_merged", "hand_over", "read_sow", "read_sow_filtered",
        "read_sow_as_of", "read_sow_inferred", "read_deltas", "read_changes", "stream_sow", "stream_deltas",
        "stream_changes", "stream_changes_before", "publish_stream_unnamed", "publish_stream", "publish_stream_behind",
        "publish_in_foreach_batch", "publish_in_foreach_batch_unnamed", "sow_format", "sow_format_pushed", "view_batch",
        "backfill", "reconcile", "publish_records", "delete_records", "merge_stream", "history_of", "upsert_to",
        "read_snapshot", "read_versions", "takeover", "run_merge", "handback", "lag_listener", "schemas",
    )  # fmt: skip
    CONNECT_ONLY = (
        "publish_stream_unnamed", "publish_stream_behind", "publish_in_foreach_batch_unnamed", "upsert_to",
        "read_snapshot", "read_versions", "takeover", "run_merge", "handback",
    )  # fmt: skip
    """The steps that Spark Connect refuses; a classic session is not asked for them."""

    def __init__(self, spark: Any, name: str, config: str, options: dict[str, str], directory: Path) -> None:
        self.spark, self.name, self.config, self.options = spark, name, config, options
        self.directory = directory
        self.merged: Any = None
        self._is_behind = False

    def _call(self, function: str, *arguments: Any, **more: Any) -> Any:
        # Two writing tasks in place of sixteen.
        few = {"writers": 2} if function.startswith(("publish_", "delete_")) else {}
        return getattr(spark_integration, function)(*arguments, options=self.options, **few, **more)

    def _rows(self, frame: Any) -> list[list[Any]]:
        return sorted([row["id"], row["qty"]] for row in frame.select("id", "qty").collect())

    def _run(self, writer: Any, checkpoint: str) -> None:
        path = str(self.directory / checkpoint)
        query = writer.option("checkpointLocation", path).trigger(availableNow=True).start()
        query.awaitTermination()

    def session(self) -> str:
        """The class of the session."""
        return type(self.spark).__module__

    def publish_deltas(self) -> None:
        """Publish two rows."""
        rows = self.spark.createDataFrame([(1, 5), (2, 6)], SCHEMA)
        self._call("publish_deltas", rows, self.name, ["id"], ["qty"], config=self.config)

    def merge_batch(self) -> dict[str, int]:
        """Merge them, and keep the result for the next step."""
        self.merged = self._call("merge_batch", self.spark, self.name, config=self.config, deltas=True)
        return dict(self.merged.counts)

    def load_merged(self) -> int:
        """Save the result, and count its records in the files."""
        path = str(self.directory / "merged")
        self.merged.save(path)
        with spark_integration.load_merged(self.spark, path, self.name, config=self.config) as again:
            return int(again.records.count())

    def hand_over(self) -> None:
        """Write the merged records."""
        with self.merged:
            self._call("hand_over", self.merged, deltas=True)

    def read_sow(self) -> list[list[Any]]:
        """The records."""
        return self._rows(self._call("read_sow", self.spark, self.name, SCHEMA))

    def read_sow_filtered(self) -> list[list[Any]]:
        """The records of a filter that needs Python."""
        return self._rows(self._call("read_sow", self.spark, self.name, SCHEMA, filter="/qty % 2 = 0"))

    def read_sow_as_of(self) -> list[list[Any]]:
        """The records of now, by time."""
        at = dt.datetime.now(dt.UTC) - dt.timedelta(milliseconds=1)
        return self._rows(self._call("read_sow", self.spark, self.name, SCHEMA, at=at, allow_compacted=True))

    def read_sow_inferred(self) -> str:
        """The inferred columns."""
        table = self._call("read_sow", self.spark, self.name, "infer")
        return str(table.select("id", "qty").schema.simpleString())

    def read_deltas(self) -> list[list[Any]]:
        """The deltas."""
        return self._rows(self._call("read_deltas", self.spark, self.name, SCHEMA))

    def read_changes(self) -> list[list[Any]]:
        """The records before and after each change; there are none before."""
        return self._rows(self._call("read_changes", self.spark, self.name, SCHEMA, images="pre_post"))

    def stream_sow(self) -> int:
        """The number of streamed records."""
        return self._streamed("stream_sow", self.name)

    def stream_deltas(self) -> int:
        """The number of streamed deltas."""
        return self._streamed("stream_deltas", self.name)

    def stream_changes(self) -> int:
        """The number of streamed records after each change."""
        return self._streamed("stream_changes", self.name, images="post")

    def stream_changes_before(self) -> int:
        """The number of streamed records before and after each change, which keeps state; there are none before."""
        stream = self._call("stream_changes", self.spark, self.name, SCHEMA, images="pre_post")
        return self._count(stream, f"before_{self.name}")

    def _streamed(self, function: str, name: str, **more: Any) -> int:
        return self._count(self._stream(function, name, **more), f"{function}_{name}")

    def _count(self, stream: Any, table: str) -> int:
        query = stream.writeStream.format("memory").queryName(table).trigger(availableNow=True).start()
        query.awaitTermination()
        return int(self.spark.table(table).count())

    def _stream(self, function: str, name: str, **more: Any) -> Any:
        options = self.options | {"startingOffsets": "earliest"}
        return getattr(spark_integration, function)(self.spark, name, SCHEMA, options=options, **more)

    def publish_stream_unnamed(self) -> None:
        """Publish a stream without a name, which is refused."""
        stream = self._stream("stream_deltas", self.name)
        self._call("publish_deltas", stream, f"{self.name}_copy", ["id"], mask="_sow.changed")

    def publish_stream(self) -> None:
        """Publish a stream under a name."""
        stream = self._stream("stream_deltas", self.name)
        writer = self._call("publish_deltas", stream, f"{self.name}_copy", ["id"], mask="_sow.changed", client="copier")
        self._run(writer, "publish")

    def publish_stream_behind(self) -> None:
        """Publish a stream by a clock that is behind a batch of the same client, which is refused."""
        name = f"{self.name}_copy"
        if not self._is_behind:  # A step that is tried again adds no second record.
            way = recipe(["id"], [], 2)
            ahead_ms = int(time.time() * 1000) + 3_600_000
            sequence = str((ahead_ms - PLANNED_FROM_MS) << PLANNED_ROWS_BITS)
            producer = Producer({"bootstrap.servers": self.options["kafka.bootstrap.servers"]})
            headers = {"client": f"behind/{way}/1", "sequence": sequence}
            producer.produce(f"{name}.publish", b"{}", b"9", headers=headers, timestamp=ahead_ms)
            assert producer.flush(60) == 0
            self._is_behind = True
        stream = self._stream("stream_deltas", self.name)
        writer = self._call("publish_deltas", stream, name, ["id"], mask="_sow.changed", client="behind")
        self._run(writer, "behind")

    def publish_in_foreach_batch(self) -> None:
        """Publish within a `foreachBatch` of one's own."""
        name, options = f"{self.name}_copy", self.options

        def publish(batch: Any, number: int) -> None:
            from spark_integration import publish_deltas

            publish_deltas(batch, name, ["id"], mask="_sow.changed", options=options, client="own", batch_id=number)

        self._run(self._stream("stream_deltas", self.name).writeStream.foreachBatch(publish), "own")

    def publish_in_foreach_batch_unnamed(self) -> None:
        """Publish within a `foreachBatch` without a name, which is refused."""
        name, options = f"{self.name}_copy", self.options

        def publish(batch: Any, number: int) -> None:
            from spark_integration import publish_deltas

            publish_deltas(batch, name, ["id"], mask="_sow.changed", options=options)

        self._run(self._stream("stream_deltas", self.name).writeStream.foreachBatch(publish), "unnamed")

    def sow_format(self) -> list[list[Any]]:
        """The records, by the data source."""
        return self._rows(self.spark.read.format("sow").options(**self.options, topic=self.name, schema=SCHEMA).load())

    def sow_format_pushed(self) -> list[list[Any]]:
        """The record of a key that a condition names, which Spark passes to the data source from 4.1 on."""
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        reader = self.spark.read.format("sow").options(**self.options, topic=self.name, schema=SCHEMA)
        rows = self._rows(reader.option("pushFilters", "true").load().where("_sow.sow_key = '2'"))
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        return rows

    def view_batch(self) -> list[int]:
        """The values of a view over the topic."""
        view = {"underlying": self.name, "fields": {"/id": "/id", "/twice": "/qty * 2"}}
        config = Config(topics={self.name: {"partitions": 2, "key": ["/id"]}}, views={"doubled": view})
        rows = self._call("view_batch", self.spark, "doubled", config=config).collect()
        return sorted(json.loads(row["value"])["twice"] for row in rows)

    def backfill(self) -> dict[str, int]:
        """Return the numbers of changes that a backfill from an archive would make."""
        source = self.spark.read.format("kafka").options(**self.options, subscribe=f"{self.name}.publish")
        source.option("includeHeaders", "true").load().write.parquet(str(self.directory / "archive"))
        archive = str(self.directory / "archive")
        report = self._call(
            "backfill", self.spark, self.name, config=self.config, archive=archive, dry_run=True, keyless="merge"
        )
        return dict(report.changes)

    def reconcile(self) -> bool:
        """Return whether the records are the replay of deltas and archive."""
        archive = str(self.directory / "archive")
        return bool(
            self._call(
                "reconcile", self.spark, self.name, config=self.config, archive=archive, keyless="merge"
            ).is_equal
        )

    def publish_records(self) -> None:
        """Publish a full record."""
        rows = self.spark.createDataFrame([(1, 7)], SCHEMA)
        self._call("publish_records", rows, self.name, ["id"], config=self.config)

    def delete_records(self) -> None:
        """Publish a delete."""
        rows = self.spark.createDataFrame([(2,)], "id LONG")
        self._call("delete_records", rows, self.name, ["id"], config=self.config)

    def merge_stream(self) -> list[list[Any]]:
        """Merge by a stream, which keeps state, until its records are there."""
        name = f"{self.name}_stream"
        rows = self.spark.createDataFrame([(1, 7), (2, 8)], SCHEMA)
        self._call("publish_records", rows, name, ["id"], config=self.config)
        writer = self._call("merge_stream", self.spark, name, config=self.config)
        path = str(self.directory / "merge")
        query = writer.option("checkpointLocation", path).trigger(processingTime="1 second").start()
        try:
            until(lambda: not query.isActive or len(self._merged(name)) == 2, "the records", pause_s=1, patience_s=900)
        finally:
            query.stop()
        if (error := query.exception()) is not None:
            raise error
        return self._merged(name)

    def _merged(self, name: str) -> list[list[Any]]:
        return self._rows(self._call("read_sow", self.spark, name, SCHEMA))

    def history_of(self) -> dict[str, int]:
        """Merge plain files."""
        files = self.directory / "files"
        files.mkdir()
        (files / "a.json").write_text('{"id": 5, "qty": 1}\n{"id": 5, "qty": 2}\n')
        history = spark_integration.history_of(self.spark, str(files), self.name, config=self.config, order_by="qty")
        with spark_integration.merge_batch(self.spark, self.name, config=self.config, history=history) as merged:
            return dict(merged.counts)

    def upsert_to(self) -> None:
        """Keep a table in Parquet, which needs the JVM."""
        upsert = spark_integration.upsert_to(str(self.directory / "table"))
        self._run(self._stream("stream_sow", self.name).writeStream.foreachBatch(upsert), "upsert")

    def read_snapshot(self) -> None:
        """Read it, which needs the JVM."""
        spark_integration.read_snapshot(self.spark, str(self.directory / "table"))

    def read_versions(self) -> None:
        """Read a table of versions, which needs the JVM."""
        spark_integration.read_versions(self.spark, str(self.directory / "table"))

    def takeover(self) -> None:
        """Move the merge to Spark, which needs the JVM."""
        checkpoints = str(self.directory / "checkpoints")
        self._call("takeover", self.spark, self.name, config=self.config, checkpoints=checkpoints)

    def run_merge(self) -> None:
        """Merge on Spark, which needs the JVM."""
        self._call("run_merge", self.spark, self.name, config=self.config)

    def handback(self) -> None:
        """Move the merge back, which needs the JVM."""
        self._call("handback", self.spark, self.name, config=self.config)

    def lag_listener(self) -> bool:
        """The lag of a query is reported."""
        lags: list[Any] = []
        listener = spark_integration.LagListener(lags.append)
        self.spark.streams.addListener(listener)
        self._streamed("stream_sow", self.name)
        deadline = time.monotonic() + 60
        while not lags and time.monotonic() < deadline:
            time.sleep(0.1)  # Spark reports progress from a thread of its own.
        self.spark.streams.removeListener(listener)
        return bool(lags)

    def schemas(self) -> list[str]:
        """The columns of a schema file."""
        return list(spark_integration.schema_file("schemas/order.avsc").names)[:2]


Step = Callable[[], Any]

if __name__ == "__main__":
    main(*sys.argv[1:])
