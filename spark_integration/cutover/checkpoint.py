"""The checkpoint of a streaming merge: the micro-batches that were planned and committed, and their input offsets.

    <path>/offsets/<number>   planned: the last line has the offset after the last record of each partition, as JSON
    <path>/commits/<number>   committed: all of its output is in Kafka

Both are Spark's own files. A planned micro-batch that is not committed may have written a part of its output; Spark
repeats it at the next start, with the same records. A number is planned by one process only: a query that was thought
dead fails when it plans a number that its successor has planned.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from spark_integration.pyspark_private import hadoop_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLANNED: Final = "offsets"
_COMMITTED: Final = "commits"


class Checkpoint:
    """One checkpoint, in any file system that Hadoop knows."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Open the checkpoint at a path, which may be missing."""
        self._spark, self.path = spark, path.rstrip("/")
        self._path, self._files = hadoop_files(spark, self.path, f"the checkpoint at {self.path}")

    @property
    def planned(self) -> int | None:
        """The number of the last planned micro-batch; None before the first one."""
        return self._last(_PLANNED)

    @property
    def committed(self) -> int | None:
        """The number of the last committed micro-batch; None before the first one."""
        return self._last(_COMMITTED)

    def is_committed(self, number: int) -> bool:
        """Return whether a micro-batch is committed."""
        return bool(self._files.exists(self._path(f"{self.path}/{_COMMITTED}/{number}")))

    def offsets(self, number: int, kafka_topic: str) -> dict[int, int]:
        """The next input offset of each partition after a planned micro-batch."""
        lines = [row.value for row in self._spark.read.text(f"{self.path}/{_PLANNED}/{number}").collect()]
        by_partition = json.loads(lines[-1])[kafka_topic]
        return {int(partition): int(offset) for partition, offset in by_partition.items()}

    def forget_commit(self, number: int) -> None:
        """Have the next start repeat a micro-batch: its output comes again, and acks that wait for the next one too."""
        self._files.delete(self._path(f"{self.path}/{_COMMITTED}/{number}"), False)

    def _last(self, directory: str) -> int | None:
        path = self._path(f"{self.path}/{directory}")
        if not self._files.exists(path):
            return None
        names = [status.getPath().getName() for status in self._files.listStatus(path)]
        return max((int(name) for name in names if name.isdecimal()), default=None)
