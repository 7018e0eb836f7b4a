"""One run of `merge_stream` by the checkout that PYTHONPATH names; prints its figures as JSON.

It imports nothing that an older checkout may not have.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import Counter
from typing import Any, Self

import psutil
from confluent_kafka import Producer

_SAMPLE_S = 0.05
_SMALL = 1_000


def main(order: dict[str, Any]) -> None:
    """Merge the input in large micro-batches, of which the first does not count; then measure small ones."""
    spark = _session(order["cores"])
    with _Processors() as processors:
        large = _merge(spark, order, order["offsets"], processors)
        first, later = large[0], large[1:]
        count = sum(progress["rows"] for progress in later)
        seconds = sum(progress["seconds"] for progress in later)
        cpu = {kind: large[-1]["cpu"][kind] - first["cpu"][kind] for kind in ("java", "python")}
    figures = {
        "records_per_s": count / seconds,
        "cpu_s_per_million": sum(cpu.values()) / count * 1e6,
        "jvm_s_per_million": cpu["java"] / count * 1e6,
        "python_s_per_million": cpu["python"] / count * 1e6,
    }
    if order["small"]:
        _publish(order, order["small"] * _SMALL)
        with _Processors() as processors:
            small = sorted(progress["seconds"] for progress in _merge(spark, order, _SMALL, processors)[2:])
        figures |= {"small_p50_s": small[len(small) // 2], "small_max_s": small[-1]}
    print(json.dumps(figures))
    spark.stop()


def _session(cores: int) -> Any:
    from spark_integration import spark_session

    spark = spark_session(
        "merge-stream",
        **{
            "spark.master": f"local[{cores}]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": str(cores),
            # On a busy machine, a process that stands still is not dead.
            "spark.network.timeout": "900s",
            "spark.executor.heartbeatInterval": "60s",
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            # Else a query whose input is at its end goes on, to see whether something expires.
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _merge(spark: Any, order: dict[str, Any], offsets: int, processors: _Processors) -> list[dict[str, Any]]:
    """Merge all input that is there; returns rows, seconds and processor times so far of each micro-batch."""
    from spark_integration import merge_stream

    options = {"kafka.bootstrap.servers": order["bootstrap"], "maxOffsetsPerTrigger": str(offsets)}
    config = {"partitions": order["partitions"]}
    writer = merge_stream(spark, order["name"], config=config, options=options, initial=None)
    query = writer.option("checkpointLocation", order["checkpoint"]).trigger(availableNow=True).start()
    batches: dict[int, dict[str, Any]] = {}
    while query.isActive:
        time.sleep(_SAMPLE_S)
        _note(query, batches, processors)
    query.awaitTermination()
    _note(query, batches, processors)
    return list(batches.values())


def _note(query: Any, batches: dict[int, dict[str, Any]], processors: _Processors) -> None:
    for progress in query.recentProgress[-3:]:
        if progress["numInputRows"] and progress["batchId"] not in batches:
            seconds = progress["durationMs"]["triggerExecution"] / 1000
            batches[progress["batchId"]] = {
                "rows": progress["numInputRows"],
                "seconds": seconds,
                "cpu": processors.seconds(),
            }
            print(progress["batchId"], progress["numInputRows"], progress["durationMs"], file=sys.stderr)


def _publish(order: dict[str, Any], count: int) -> None:
    producer = Producer({"bootstrap.servers": order["bootstrap"], "partitioner": "murmur2_random", "linger.ms": 20})
    for number in range(count):
        key = number * 7919 % order["keys"]
        producer.produce(f"{order['name']}.publish", b'{"id":%d,"ts":%d}' % (key, number), b"%d" % key)
        producer.poll(0)
    assert producer.flush(60) == 0


class _Processors:
    """The processor time of this process and all that it starts, sampled: Spark's daemon reaps none of its children."""

    def __enter__(self) -> Self:
        self._cpu: dict[int, tuple[str, float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def seconds(self) -> dict[str, float]:
        """The seconds so far, of Java and of Python."""
        self._look()
        total: Counter[str] = Counter()
        for kind, seconds in list(self._cpu.values()):
            total[kind] += seconds
        return dict(total)

    def _watch(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        own = psutil.Process()
        for process in own.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                kind = "java" if process.name() == "java" else "python"
                self._cpu[process.pid] = kind, times.user + times.system


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
