"""The process that `spark_batch` measures: one version of the code, with a Spark session.

It reads the name of a series from each line of the standard input, runs it, and answers with a line of JSON. It imports
nothing of `tests`, as it runs with the package of any commit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORD_DDL = "id LONG, price DOUBLE, qty LONG, state STRING, note STRING"
_FIELDS = ("price", "qty", "state", "note")
_NOW_MS = 1_700_000_000_000
_BATCH_RECORDS = 10_000  # As `spark.sql.execution.arrow.maxRecordsPerBatch` has it.


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Spark writes to the standard output.
    service = _Service(_arguments())
    for line in sys.stdin:
        print(json.dumps(service.answer(line.strip())), file=answers, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", help="the directory for the input")
    for name in ("deltas", "keys", "cores", "tasks"):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_args()


class _Service:
    """The series of one code."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from spark_integration import spark_session

        self._arguments = arguments
        self._spark = spark_session(
            "sowstream-bench",
            **{
                "spark.master": f"local[{arguments.cores}]",
                "spark.driver.memory": "2g",
                "spark.ui.enabled": "false",
                "spark.log.level": "ERROR",
                "spark.sql.shuffle.partitions": str(arguments.tasks),
                # A process that waits for its turn on a busy machine is not dead.
                "spark.network.timeout": "900s",
                "spark.executor.heartbeatInterval": "60s",
            },
        )
        self._batches: list[Any] = []

    def answer(self, request: str) -> dict[str, float]:
        """Carry out one request; the answer has the processor time in seconds where it is of this process alone."""
        if request == "write":
            self._write()
        elif request == "native":
            self._native()
        elif request.startswith("fold"):
            return {"cpu_s": self._fold(is_with_deltas=request.endswith("deltas"))}
        else:
            self._merge(request)
        return {}

    def _write(self) -> None:
        """Write the input, with and without headers."""
        from pyspark.sql import functions as F  # noqa: N812

        key = F.pmod(F.xxhash64("id"), F.lit(self._arguments.keys))
        number = F.col("offset").cast("string")
        changes = [
            F.concat(
                F.lit('"price":'), F.pmod("id", F.lit(9000)).cast("string"), F.lit('.25,"qty":'), F.pmod("id", F.lit(7))
            ),
            F.concat(F.lit('"state":"s'), F.pmod("id", F.lit(50)), F.lit('","qty":'), F.pmod("id", F.lit(1000))),
            F.concat(F.lit('"note":"n'), F.pmod("id", F.lit(100_000)), F.lit('"')),
        ]
        third = F.pmod("id", F.lit(3))
        change = F.when(third == 0, changes[0]).when(third == 1, changes[1]).otherwise(changes[2])
        rows = self._spark.range(0, self._arguments.deltas, 1, 4).select(
            key.cast("string").cast("binary").alias("key"),
            F.concat(F.lit('{"id":'), key.cast("string"), F.lit(","), change, F.lit("}")).cast("binary").alias("value"),
            F.pmod(key, F.lit(4)).cast("int").alias("partition"),
            F.col("id").alias("offset"),
            F.timestamp_millis(F.lit(_NOW_MS)).alias("timestamp"),
        )
        header = lambda name, value: F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))  # noqa: E731
        headers = F.array(header("client", F.lit("publisher-1")), header("sequence", number))
        ddl = "array<struct<key: string, value: binary>>"
        plain = rows.withColumn("headers", F.lit(None).cast(ddl))
        plain.write.parquet(f"{self._arguments.input}/plain")
        rows.withColumn("headers", headers).write.parquet(f"{self._arguments.input}/sequenced")

    def _read(self, name: str) -> Any:
        return self._spark.read.parquet(f"{self._arguments.input}/{name}")

    def _native(self) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        record = F.from_json(F.col("value").cast("string"), _RECORD_DDL)
        rows = (
            self._read("plain")
            .select("partition", "key", "offset", record.alias("record"))
            .select("partition", "key", "offset", "record.*")
        )
        last = [F.max_by(name, F.when(F.col(name).isNotNull(), F.col("offset"))).alias(name) for name in _FIELDS]
        merged = rows.groupBy("partition", "key").agg(F.max("id").alias("id"), F.count("*").alias("version"), *last)
        merged.write.format("noop").mode("overwrite").save()

    def _merge(self, series: str) -> None:
        from spark_integration.merge.batch.merge_batch import merge_batch

        history = self._read("sequenced" if series == "sequenced" else "plain")
        merged = merge_batch(self._spark, "bench", history=history, deltas=series == "deltas")
        assert merged.counts["merged"] == self._arguments.deltas, merged.counts
        merged.unpersist()

    def _fold(self, *, is_with_deltas: bool) -> float:
        """Merge the records in this process; processor time in seconds."""
        from spark_integration.foundation.settings import topic_settings
        from spark_integration.merge.batch.fold import Fold

        if not self._batches:
            self._batches = list(_sorted_batches(f"{self._arguments.input}/plain"))
        fold = Fold(topic_settings("bench", None), _NOW_MS, is_with_deltas)
        began_s = time.process_time()
        for _ in fold(iter(self._batches)):
            pass
        return time.process_time() - began_s


def _sorted_batches(path: str) -> Iterator[Any]:
    """The input of one task, as Spark gives it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path).drop_columns(["headers"])
    stamps = table.column("timestamp").cast(pa.timestamp("ms")).cast(pa.int64())
    headers = pa.array([[]] * table.num_rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    table = table.drop_columns(["timestamp"]).append_column("timestamp_ms", stamps).append_column("headers", headers)
    table = table.sort_by([("partition", "ascending"), ("key", "ascending"), ("offset", "ascending")])
    yield from table.combine_chunks().to_batches(max_chunksize=_BATCH_RECORDS)


if __name__ == "__main__":
    main()
