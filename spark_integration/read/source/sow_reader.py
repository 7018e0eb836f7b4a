"""Reads a SOW topic, one task for each partition, which keeps the latest record of every key in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegralType, StringType, StructType

from processor.errors import ConfigurationError, PositionLost, Stop
from spark_integration.read.decode import Decoding
from spark_integration.read.metadata_columns import SOW
from spark_integration.read.schemas.schema import pinned
from spark_integration.read.source.latest_rows import (
    VALUE,
    Latest,
    LatestRows,
    expires_at_ms,
    metadata_columns,
    record_fields,
    refuse_metadata,
)
from spark_integration.read.source.source_options import SourceOptions
from spark_integration.read.table_part import TablePart
from spark_integration.read.topic_facts import TopicFacts, reader_group

if TYPE_CHECKING:
    import pyarrow as pa


_RECORD_BYTES: Final = 300
"""Memory for the Python objects of a record, besides its bytes."""


@dataclass
class Range(InputPartition):
    """The range of offsets that one task reads; pickled for the executors."""

    partition: int
    begin: int
    end: int
    """The offset after the last one."""
    now_ms: int | None
    """Records expired at this time are left out; None: no record is."""


class SowSourceReader(DataSourceReader):
    """Reads a SOW topic up to one end for all partitions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Create a reader on the driver.

        Raises:
            ConfigurationError: a column has the name of a metadata column, but another type.
        """
        self._metadata = metadata_columns(options.on_misfit, options.metadata)
        refuse_metadata(schema, self._metadata)
        self._options = replace(options, settings=pinned(options.settings))
        self._schema = schema
        record = [field.name for field in record_fields(schema, self._metadata)]
        self._is_text = options.schema is None and record == [VALUE] and options.settings.topic.message_type == "json"
        self._topic = options.settings.kafka_topic("sow")
        self._group = reader_group(options.settings)
        self._keys = None if options.keys is None else frozenset(options.keys)

    def partitions(self) -> list[Range]:
        """The range of each partition of the topic, with ends that are fixed here.

        Raises:
            ConfigurationError: the topic does not exist, or cannot be read up to this end.
            BrokerUnavailable: Kafka did not answer in time.
            TopicMoved: another topic has taken its place.
        """
        options = self._options
        with closing(TopicFacts(self._topic, options.kafka, group=self._group)) as facts:
            part = self._part(facts)
            begins = facts.begins()
            ends = facts.committed_ends() if part.end is None else part.end.ends
        now_ms = int(time.time() * 1000) if part.end is None else part.end.time_ms
        # Even an empty task takes time.
        ranges = [Range(p, begins[p], ends[p], now_ms) for p in part.partitions if ends[p] > begins[p]]
        return ranges or [Range(0, 0, 0, None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The latest records of one partition, on an executor.

        Raises:
            ConfigurationError: they exceed the memory limit of the options.
            Stop: Kafka does not answer, or a record cannot be read.
        """
        assert isinstance(partition, Range)
        if partition.end <= partition.begin:
            return
        options = self._options
        latest = [
            one
            for one in _Fold(self._topic, options.max_bytes_per_partition).folded(self._chosen(partition), partition)
            if _is_live(one, partition.now_ms)
        ]
        struct = None if self._is_text else StructType(record_fields(self._schema, self._metadata))
        decoding = Decoding(
            options.settings, self._topic, struct, False, options.filter, shows_misfits=options.on_misfit == "column"
        )
        yield from LatestRows(decoding, self._schema, self._metadata).batches(latest, partition.partition)

    def _chosen(self, wanted: Range) -> Iterator[Any]:
        """The committed records of a range whose keys are read."""
        messages = self._messages(wanted)
        if self._keys is None:
            return messages
        keys = {key.encode() for key in self._keys}
        return (message for message in messages if message.key() in keys)

    def _part(self, facts: TopicFacts) -> TablePart:
        options = self._options
        try:
            return TablePart.of(
                facts, options.settings, options.at, self._keys, allow_compacted=options.allow_compacted
            )
        except ConfigurationError as error:
            if options.at is None:
                raise
            # The message has the argument of `read_sow`; here it is an option.
            problem = str(error).replace("allow_compacted=True", "allowCompacted 'true'")
            raise ConfigurationError(f"option {problem}") from None

    def _messages(self, wanted: Range) -> Iterator[Any]:
        """The committed records of a range, in order."""
        from processor.kafka.clients.log_reader import (  # noqa: PLC0415 - needed on an executor
            BOUNDED_FETCH_WAIT_MS,
            LogReader,
            read_range,
        )

        log = LogReader(self._options.kafka, group=self._group, fetch_wait_ms=BOUNDED_FETCH_WAIT_MS)
        begins, ends = {wanted.partition: wanted.begin}, {wanted.partition: wanted.end}
        try:
            for _, messages in read_range(log, self._topic, begins, ends):
                yield from messages
        except PositionLost as error:
            raise Stop(f"{error}; the topic was shortened while it was read: read it again") from None
        finally:
            log.close()


class _Fold:
    """Collects the latest record of every key, up to a limit of memory."""

    def __init__(self, topic: str, max_bytes: int) -> None:
        self._topic, self._max_bytes = topic, max_bytes

    def folded(self, messages: Iterator[Any], wanted: Range) -> list[Latest]:
        """The latest record of each key that was not deleted."""
        latest: dict[bytes | None, tuple[Any, int]] = {}
        held = 0
        for message in messages:
            key, value = message.key(), message.value()
            if (before := latest.pop(key, None)) is not None:
                held -= before[1]
            if value is None:
                continue
            # Most records are replaced by later ones, so that nothing more is made of a message here.
            size = _RECORD_BYTES + len(key or b"") + len(value)
            for name, content in message.headers() or ():
                size += len(name) + len(content or b"")
            latest[key] = message, size
            held += size
            if held > self._max_bytes:
                raise ConfigurationError(
                    f"{self._topic} partition {wanted.partition}: its latest records take more than the "
                    f"{self._max_bytes:,} bytes of option 'maxBytesPerPartition'; raise it, as far as the executors' "
                    "Python has memory (spark.executor.pyspark.memory), or use read_sow, which folds in the JVM and "
                    "goes to disk"
                )
        return [
            Latest(key, message.value(), message.headers(), message.offset(), message.timestamp()[1])
            for key, (message, _) in latest.items()
        ]


def _is_live(one: Latest, now_ms: int | None) -> bool:
    """Return whether a record has not expired, also if no worker is running to delete it."""
    expires = expires_at_ms(one.headers)
    return now_ms is None or expires is None or expires > now_ms


_KEY: Final = "sow_key"


class PushingReader(SowSourceReader):
    """A reader whose keys Spark may narrow.

    Spark calls `pushFilters` from version 4.1 on where `spark.sql.python.filterPushdown.enabled` is true, and refuses a
    reader that has it elsewhere; so it is a class of its own.
    """

    def pushFilters(self, filters: Iterable[Any]) -> Iterator[Any]:  # noqa: N802 - Spark's name
        """Narrow the keys by the conditions that name some, and leave every condition to Spark as well.

        Args:
            filters: the conditions, all of which hold: objects of `pyspark.sql.datasource`, such as `EqualTo`.
        """
        for condition in filters:
            keys = self._keys_of(condition)
            if keys is not None:
                self._keys = keys if self._keys is None else self._keys & keys
            yield condition

    def _keys_of(self, condition: Any) -> frozenset[str] | None:
        """The only keys that a condition can hold for; None if it names none."""
        # By name, as PySpark 4.0 does not have the classes.
        match type(condition).__name__:
            case "EqualTo":
                values = [condition.value]
            case "In":
                values = list(condition.value)
            case _:
                return None
        kind = self._kind_of(tuple(condition.attribute))
        if kind is None or not all(type(value) is kind for value in values):
            return None
        return frozenset(map(str, values))

    def _kind_of(self, path: tuple[str, ...]) -> type | None:
        """The type of the values of a column whose text is the key; None for other columns."""
        places = {"struct": (SOW, _KEY), "flat": (_KEY,)}
        if path == places.get(self._options.metadata):
            return str
        # Without the topic's settings its key fields are not certain.
        if not self._options.has_config or self._options.settings.topic.key_fields != (f"/{'/'.join(path)}",):
            return None
        data_type = next((field.dataType for field in self._schema.fields if (field.name,) == path), None)
        if isinstance(data_type, IntegralType):
            return int
        return str if isinstance(data_type, StringType) else None
