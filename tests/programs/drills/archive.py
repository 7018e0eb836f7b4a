"""The drill of a SOW topic that is lost when the input is no longer whole: an archive brings it back."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from confluent_kafka import TopicPartition

from processor.trial.broker.java import find_java

if TYPE_CHECKING:
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
