"""Runs the streaming merge of a topic for the commands: its first micro-batch, its last ones, and those between.

The checkpoint of a streaming merge: the micro-batches that were planned and committed, and their input offsets.

    <path>/offsets/<number>   planned: the last line has the offset after the last record of each partition, as JSON
    <path>/commits/<number>   committed: all of its output is in Kafka
    <path>/closed/<number>    the first one of the drain of a handback that expires nothing

The files of the first two are Spark's own. A planned micro-batch that is not committed may have written a part of its
output; Spark repeats it at the next start, with the same records. A number is planned by one process only: a query that
was thought dead fails when it plans a number that its successor has planned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.errors import Stop
from spark_integration.foundation.options import offsets_option
from spark_integration.foundation.pyspark_private import hadoop_files
from spark_integration.merge.streaming.merge_stream import check_merge, end_of_now, merge_writer
from spark_integration.merge.streaming.processor import InputEnd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from processor.wire.control import Fence
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import Settings, TopicSettings
    from spark_integration.merge.topic_family import TopicFamily


_PLANNED: Final = "offsets"
_COMMITTED: Final = "commits"
_CLOSED: Final = "closed"


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
        by_partition = json.loads(self._plan(number)[-1])[kafka_topic]
        return {int(partition): int(offset) for partition, offset in by_partition.items()}

    def close_input(self) -> InputEnd:
        """Note the first micro-batch of the drain of a handback that expires nothing, unless it is noted.

        Returns:
            The time of the one before it. What expired in a last micro-batch that is committed is in Kafka; again, it
            would expire more where its run asked for the end of the input earlier, as a run that ends does. One that is
            not committed expires what it may have written.
        """
        last, first = self.planned, self._last(_CLOSED)
        assert last is not None
        if first is None:
            first = last if self.is_committed(last) else last + 1
            self._files.createNewFile(self._path(f"{self.path}/{_CLOSED}/{first}"))
        return InputEnd(int(json.loads(self._plan(first - 1)[1])["batchTimestampMs"]) if first else 0, 0)

    def forget_commit(self, number: int) -> None:
        """Have the next start repeat a micro-batch: its output comes again, and acks that wait for the next one too."""
        self._files.delete(self._path(f"{self.path}/{_COMMITTED}/{number}"), False)

    def _plan(self, number: int) -> list[str]:
        """The lines of a planned micro-batch: the format, its time and settings, and the offsets."""
        return [row.value for row in self._spark.read.text(f"{self.path}/{_PLANNED}/{number}").collect()]

    def _last(self, directory: str) -> int | None:
        path = self._path(f"{self.path}/{directory}")
        if not self._files.exists(path):
            return None
        names = [status.getPath().getName() for status in self._files.listStatus(path)]
        return max((int(name) for name in names if name.isdecimal()), default=None)


PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARALLELISM: Final = "spark.sql.shuffle.partitions"
_NO_DATA: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_OVERRIDDEN: Final = (
    "maxoffsetspertrigger", "minoffsetspertrigger",
    "startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp",
)  # fmt: skip
ONCE: Final = "36500 days"
"""A trigger after whose first micro-batch none follows."""
_LOOK_S: Final = 0.1


class MergeQuery(NamedTuple):
    """The streaming merge of one topic."""

    spark: SparkSession
    """The session that runs it."""
    settings: TopicSettings
    """The settings of the topic."""
    config: Settings
    """The same as the caller gave them."""
    options: Options
    """The options of Spark's Kafka source and sink."""

    def check(self, family: TopicFamily, *, takes_input: bool = True) -> None:
        """Refuse what a start of the query would refuse, but for living workers; changes nothing.

        Raises:
            ConfigurationError: session, options, settings or topics cannot be used.
            Stop: Kafka does not answer, or refuses.
        """
        with self._session_settings(is_endless=True):
            check_merge(self.spark, self.settings, self._options(takes_input), family, takes_input=takes_input)

    def start(
        self, fence: Fence, trigger: str | None, *, takes_input: bool = True, input_end: InputEnd | None = None
    ) -> StreamingQuery:
        """Start the query on the checkpoint of a fence.

        Args:
            fence: has the checkpoint, and the offsets at which a new checkpoint begins.
            trigger: the interval of micro-batches, such as `1 second`; None: process the input of now, and end.
            takes_input: whether new input is read; if not, a planned micro-batch is repeated, and the acks and records
                kept from it follow.
            input_end: the last time that the query asks for the end of the input; None: each micro-batch asks, or with
                `trigger=None` the start.
        """
        own = self._options(takes_input)
        if not takes_input:
            own["startingOffsets"] = offsets_option(self.settings.kafka_topic("publish"), fence.offsets)
        if trigger is None:
            input_end = end_of_now()
        with self._session_settings(is_endless=trigger is not None):
            writer = merge_writer(
                self.spark,
                self.settings.family,
                config=self.config,
                options=own,
                is_moved=True,
                takes_input=takes_input,
                input_end=input_end,
            )
            named = writer.queryName(merge_name(self.settings.name)).option("checkpointLocation", fence.checkpoint)
            if trigger is None:
                return named.trigger(availableNow=True).start()
            return named.trigger(processingTime=trigger).start()

    def run_until(
        self,
        fence: Fence,
        number: int,
        timeout_s: float,
        trigger: str = "0 seconds",
        input_end: InputEnd | None = None,
    ) -> None:
        """Run the query without new input until a micro-batch is committed.

        Raises:
            Stop: the query failed, or was too slow.
        """
        checkpoint, deadline_s = Checkpoint(self.spark, fence.checkpoint), time.monotonic() + timeout_s
        if checkpoint.is_committed(number):
            return
        query = self.start(fence, trigger, takes_input=False, input_end=input_end)
        try:
            while not checkpoint.is_committed(number):
                refuse_failed(query, self.settings.name)
                if time.monotonic() > deadline_s:
                    raise Stop(
                        f"{self.settings.name}: micro-batch {number} in {fence.checkpoint} was not committed within "
                        f"{timeout_s:g} s. Run the same command again, with a longer timeout"
                    )
                time.sleep(_LOOK_S)
        finally:
            query.stop()

    def _options(self, takes_input: bool) -> dict[str, str]:
        """The options of the source and the sink."""
        if takes_input:
            return dict(self.options)
        kept = {name: value for name, value in self.options.items() if name.lower() not in _OVERRIDDEN}
        return {**kept, "maxOffsetsPerTrigger": "0"}

    @contextmanager
    def _session_settings(self, *, is_endless: bool) -> Iterator[None]:
        """The session's settings for the query, while it starts.

        The checkpoint keeps the parallelism from then on; more state partitions than the topic has partitions are of no
        use. A query that is to end would begin a micro-batch for timers again and again.
        """
        conf: Any = self.spark.conf
        before: Mapping[str, str] = {name: conf.get(name) for name in (PROVIDER, _PARALLELISM, _NO_DATA)}
        conf.set(PROVIDER, ROCKSDB)
        conf.set(_NO_DATA, "true" if is_endless else "false")
        conf.set(_PARALLELISM, str(min(int(before[_PARALLELISM]), self.settings.topic.partitions)))
        try:
            yield
        finally:
            for name, value in before.items():
                conf.set(name, value)


def merge_name(topic: str) -> str:
    """The name of the query that merges a topic, by which logs and metrics call it."""
    return f"merge-{topic}"


def refuse_failed(query: StreamingQuery, topic: str) -> None:
    """Make sure that a query has not failed.

    Raises:
        Stop: it has, with Spark's error.
    """
    if (error := query.exception()) is not None:
        raise Stop(f"{topic}: the query on Spark failed: {error}") from error
