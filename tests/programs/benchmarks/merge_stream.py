"""Measures the streaming merge: `python -m tests.programs.benchmarks.merge_stream --commands 200000 --cores 2`."""

from __future__ import annotations

import argparse
import random
import tempfile
import time

from confluent_kafka import Producer

from processor.kafka.admin.admin import Admin
from processor.tools.broker import EmbeddedBroker
from processor.topics.family import family_specs
from spark_integration import spark_session
from spark_integration.merge.streaming.merge_stream import merge_stream

ROLES = ("publish", "sow", "delta", "dlq", "ack", "mark")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS = 4


def main() -> None:
    """Publish all commands, merge them in one query, and print each micro-batch and the rate after the first."""
    arguments = _arguments()
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as directory:
        kafka = {"bootstrap.servers": broker.bootstrap}
        Admin(kafka).create(family_specs("orders", ROLES, partitions=PARTITIONS))
        _publish(kafka, arguments.commands, arguments.keys)
        spark = spark_session("merge-stream", **_session(arguments.cores))
        spark.sparkContext.setLogLevel("ERROR")
        options = {"kafka.bootstrap.servers": broker.bootstrap, "maxOffsetsPerTrigger": str(arguments.offsets)}
        begun_s = time.perf_counter()
        query = merge_stream(spark, "orders", config={}, options=options, initial=None)
        query = query.option("checkpointLocation", directory).trigger(availableNow=True).start()
        query.awaitTermination()
        took_s = time.perf_counter() - begun_s
        done = [progress for progress in query.recentProgress if progress.numInputRows]
        for progress in done:
            print(progress.batchId, progress.numInputRows, progress.durationMs)
        later = done[1:]
        later_s = sum(progress.durationMs["triggerExecution"] for progress in later) / 1000
        rate = sum(progress.numInputRows for progress in later) / later_s if later else 0
        print(f"{arguments.commands} in {took_s:.1f} s; after the first micro-batch {rate:,.0f}/s")
        spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in (("commands", 200_000), ("keys", 20_000), ("cores", 2), ("offsets", 50_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def _publish(kafka: dict[str, str], commands: int, keys: int) -> None:
    producer = Producer({**kafka, "partitioner": "murmur2_random", "linger.ms": 50})
    rng = random.Random(1)
    for number in range(commands):
        key = rng.randrange(keys)
        value = b'{"id":%d,"n":%d,"price":%d.25,"text":"some text of the order"}' % (key, number, number)
        producer.produce("orders.publish", value, str(key))
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def _session(cores: int) -> dict[str, str]:
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Otherwise a query at the end of its input runs further batches, to expire records.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }


if __name__ == "__main__":
    main()
