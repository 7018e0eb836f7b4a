"""The drills: each incident is caused, noticed, and repaired with the commands of the page."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

from processor.trial.broker.java import find_java
from tests.endtoend.raw_batch import produce_unreadable
from tests.programs.drills.migration import cluster_migrated
from tests.small_disk import small_disks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.programs.drills.drill import Drill


_SPARK_TIMEOUT_S: Final = 400.0
"""The longest run of a command of Spark, which may fetch its connector first."""


def restored_from_archive(drill: Drill) -> None:
    """The SOW topic is deleted, and Kafka has deleted older input before: only the archive has all commands."""
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")
    archive, file = drill.folder / "archive", drill.folder / "pipeline.yaml"
    job = {"job": "archive", "topics": [drill.name], "to": {"format": "parquet", "path": str(archive)}}
    file.write_text(yaml.safe_dump({"jobs": {"archive": job}}))
    drill.publish()
    worker = drill.start()
    drill.settle()
    spark(drill, file, "run", "archive", "--once")
    delete_input(drill)
    drill.publish()  # This is in no archive yet.
    drill.settle()
    drill.lose_sow(worker, adopt="latest")
    spark(drill, file, "backfill", drill.name, "--from", str(archive))
    drill.start()
    drill.publish()
    drill.recovered()


def delete_input(drill: Drill) -> None:
    """Delete the input that is archived, as Kafka does after `retention.ms`."""
    topic = f"{drill.name}.publish"
    partitions = drill.admin.list_topics(topic, timeout=15).topics[topic].partitions
    ends = [TopicPartition(topic, number, -1) for number in partitions]
    for deleted in drill.admin.delete_records(ends).values():
        deleted.result(30)
    drill.step("Kafka", f"the input of {topic} is deleted")


def spark(drill: Drill, file: Path, *words: str) -> None:
    """Run `sowstream-spark …` with the pipeline of this file."""
    program = [sys.executable, "-m", "spark_integration.cli", *words, "-c", str(file)]
    env = {**os.environ, "NO_COLOR": "1", "JAVA_HOME": str(find_java().parents[1])}
    drill.run(f"sowstream-spark {' '.join(words)}", program, timeout_s=_SPARK_TIMEOUT_S, env=env)


class Plan(NamedTuple):
    """One drill."""

    calamity: str
    """What goes wrong."""
    run: Callable[[Drill], None]
    """Breaks and repairs it."""
    settings: Mapping[str, Any]
    """Settings of the topic, and under `runtime` of the worker."""


def sow_deleted(drill: Drill) -> None:
    """The SOW topic is deleted under a running worker: it is built again from the input, which is kept for 7 days."""
    drill.publish()
    worker = drill.start()
    drill.settle()
    drill.lose_sow(worker, adopt="earliest")
    drill.start()
    drill.recovered()


def group_deleted(drill: Drill) -> None:
    """The consumer group is deleted: workers go on from the position in the mark topic, without a command."""
    drill.publish()
    worker = drill.start()
    drill.settle()
    drill.stop(worker)
    drill.calamity("the consumer group is deleted, with all offsets")
    group = f"{drill.world.config.group_prefix}.{drill.name}"
    drill.kafka_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--delete", "--group", group)
    drill.publish()
    drill.command("offsets", "show", drill.name, code=None)
    drill.noticed_s = 0.0
    drill.start()
    drill.recovered()


def poison_batch(drill: Drill) -> None:
    """A batch cannot be unpacked: its partition is held, the others go on, and the batch is skipped."""
    drill.publish()
    worker = drill.start()
    drill.settle()
    drill.calamity("a batch with a wrong checksum is in partition 0")
    offset = produce_unreadable(drill.world.bootstrap, f"{drill.name}.publish", 0, [b'{"id":0}'])
    drill.publish()
    drill.notice(worker, "partition held", "unreadable_batch")
    drill.command("status", code=None)
    drill.command("resume", drill.name, "--partition", "0", "--skip", str(offset), "--yes")
    drill.recovered()


def hanging_transaction(drill: Drill) -> None:
    """A foreign producer leaves a transaction open in the SOW topic, and the worker has lost its state."""
    drill.publish()
    worker = drill.start()
    drill.settle()
    drill.stop(worker)
    drill.world.forget_state()
    producer = Producer(
        {
            "bootstrap.servers": drill.world.bootstrap,
            "transactional.id": f"foreign-{drill.name}",
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    offsets: list[int] = []
    producer.produce(
        f"{drill.name}.sow", b"{}", b"foreign", 0, on_delivery=lambda _, message: offsets.append(message.offset())
    )
    assert producer.flush(30) == 0
    worker = drill.start()
    drill.publish()
    drill.calamity("partition 0 cannot be restored behind an open transaction")
    drill.notice(worker, "partition held", "open_transaction")
    drill.command("transactions", "list", drill.name, code=None)
    tool = "org.apache.kafka.tools.TransactionsCommand"
    place = ("--topic", f"{drill.name}.sow", "--partition", "0", "--start-offset", str(offsets[0]))
    drill.kafka_tool(tool, "abort", *place)
    drill.command("resume", drill.name, "--partition", "0")
    drill.recovered()


_SCHEMA: Final = {"type": "object", "properties": {"id": {"type": "integer"}, "sum": {"type": "integer"}}}
_NARROW_SCHEMA: Final = {"type": "object", "properties": {"id": {"type": "string"}, "sum": {"type": "integer"}}}


def _text(schema: Mapping[str, Any]) -> dict[str, str]:
    return {"text": json.dumps(schema)}


def incompatible_schema(drill: Drill) -> None:
    """A schema that the publishers' records do not fit is rolled out: they are dead letters, and go back afterwards."""
    drill.publish()
    worker = drill.start()
    drill.settle()
    drill.stop(worker)
    drill.configure(drill.name, schema=_text(_NARROW_SCHEMA))
    worker = drill.start()
    drill.calamity("the new schema wants a text where publishers send a number")
    drill.publish()
    drill.notice(worker, "record rejected", "schema_mismatch")
    drill.command("dlq", "list", drill.name, "--count", "1")
    drill.settle()  # Each record of the time is a dead letter.
    drill.stop(worker)
    drill.configure(drill.name, schema=_text(_SCHEMA))
    drill.start()
    drill.publish()
    drill.command("dlq", "replay", drill.name, "--reason", "schema_mismatch")
    drill.recovered()


def disk_full(drill: Drill) -> None:
    """Another program fills the disk of the state: the worker stops without harm, and goes on once there is room."""
    with small_disks(drill.folder) as make:
        disk = make(32 << 20)
        drill.publish()
        worker = drill.start(state_dir=disk.path)
        drill.settle()
        drill.calamity("another program fills the disk")
        disk.leave_only(256 << 10)
        drill.publish(rounds=10, more_bytes=50_000)
        drill.notice(worker, "No space left on device", "make room, or give state_dir")
        drill.wait(lambda: worker.process.poll() is not None, "the worker has ended", worker)
        drill.stop(worker)
        (disk.path / "filler").unlink()
        drill.step("rm", "the other program's file is gone")
        worker = drill.start(state_dir=disk.path)
        drill.recovered()
        drill.stop(worker)


def partitions_grown(drill: Drill) -> None:
    """Partitions are added to the input: keys are in two of them from then on, and the topic moves to another."""
    drill.publish()
    worker = drill.start()
    drill.settle()
    new, topic = f"{drill.name}_7", f"{drill.name}.publish"
    drill.calamity("the input topic has 7 partitions in place of 4")
    drill.admin.create_partitions([NewPartitions(topic, 7)])[topic].result(30)
    drill.publish()  # Publishers notice nothing.
    drill.notice(worker, topic, "has 7 partitions", "sowstream reshard")
    drill.stop(worker)
    drill.configure(new, partitions=7, moved_from=drill.name, merge_rules={"/sum": "sum"})
    drill.command("topics", "apply")
    drill.start([drill.name, new])
    drill.command("reshard", drill.name, "--yes")
    drill.publish()
    drill.recovered(new)


_PATIENT: Final = {"runtime": {"internal": {"restore_stall_timeout_s": 10}}}
_SMALL_BUFFERS: Final = {"runtime": {"block_cache_bytes": 1 << 20}}
_WITH_SCHEMA: Final = {"message_type": "json-schema", "schema": _text(_SCHEMA)}
DRILLS: Final[dict[str, Plan]] = {
    "sow_deleted": Plan("the SOW topic is deleted", sow_deleted, {}),
    "group_deleted": Plan("the consumer group is deleted", group_deleted, {}),
    "hanging_transaction": Plan("a transaction stays open in the SOW topic", hanging_transaction, _PATIENT),
    "poison_batch": Plan("a batch cannot be unpacked", poison_batch, {"foreign_partition": "accept"}),
    "incompatible_schema": Plan(
        "a schema is rolled out that the records do not fit", incompatible_schema, _WITH_SCHEMA
    ),
    "partitions_grown": Plan("partitions were added to the input", partitions_grown, {}),
    "restored_from_archive": Plan(
        "the SOW topic is deleted when the input is no longer whole", restored_from_archive, {}
    ),
    "cluster_migrated": Plan("a topic moves to another cluster, and back", cluster_migrated, {}),
    "disk_full": Plan("the disk of the state is full", disk_full, _SMALL_BUFFERS),
}
