"""Reads files of messages as a history: archives without Kafka's columns, one message a line or a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.builtin.delta_merge.compiled_settings import compile_settings
from processor.errors import ConfigurationError, RecordRejected
from processor.kafka.partitioner import partition_for
from processor.record import COMMANDS, Command
from processor.wire.record_headers import command_header
from spark_integration.foundation.arrow_records import HEADERS_DDL, headers_column
from spark_integration.foundation.settings import Settings, TopicSettings, topic_settings
from spark_integration.foundation.sql import quoted
from spark_integration.merge.key_lives import MADE_OFFSETS
from spark_integration.read.mask import TO_JSON

if TYPE_CHECKING:
    from processor.api import Headers, Value

_HISTORY_DDL: Final = (
    f"key binary, value binary, headers {HEADERS_DDL}, partition int, offset bigint, timestamp_ms bigint"
)
_FILE_BITS: Final = MADE_OFFSETS.bit_length() - 1
"""Bits of an offset for the place in a file, below the file's number, from 1 on: 4 TiB each, two million files."""
_OFFSET_MAX: Final = 1 << 62


def history_of(
    spark: SparkSession,
    path: str,
    topic: str,
    *,
    config: Settings = None,
    format: Literal["json", "parquet"] = "json",  # noqa: A002 - as Spark's readers call it
    order_by: str | None = None,
    command: str | None = None,
    nulls: Literal["keep", "skip"] | None = None,
) -> DataFrame:
    """Read files as the history of a topic, for `merge_batch(history=…)`.

    Messages are merged in the order of the file names and of their places in the files, or in the order of a field. The
    key is computed from the body; `keyless` of `merge_batch` decides on messages without one. The timestamp is the
    modification time of the file.

    Args:
        spark: a session.
        path: a file, a directory, or a pattern, as for Spark's readers.
        topic: the family's name.
        config: its settings; see `topic_settings`.
        format: `json`: one message a line. `parquet`: one a row, whose columns are the message's fields; for topics of
            JSON only. Archives with Kafka's columns do not need this function: use `spark.read.parquet(path)`.
        order_by: the field at the top of a message, a whole number from 0, that orders the messages of a key; two with
            the same number are an error in the merge. None: order by file and place.
        command: the command of the messages; None: the topic's default command.
        nulls: the meaning of a null in a row of Parquet, where every row has all columns: `keep`: a null in the
            message; `skip`: a field that the message does not have.

    Raises:
        ConfigurationError: no such files exist, or they do not fit the topic.
    """
    settings = topic_settings(topic, config)
    if command is not None and command not in COMMANDS:
        raise ConfigurationError(f"command={command!r}: say one of {', '.join(sorted(COMMANDS))}")
    if format == "json":
        files = spark.read.text(path)
        value, block = F.col("value"), F.col("_metadata.file_block_start")
    elif format == "parquet":
        files = spark.read.parquet(path)
        value, block = _as_json(files, settings, nulls), F.col("_metadata.row_index")
    else:
        raise ConfigurationError(f"format={format!r}: say 'json' or 'parquet'")
    names = sorted({unquote(name) for name in files.inputFiles()})
    packed = [name for name in names if name.endswith(".bz2")]
    if order_by is None and packed:
        raise ConfigurationError(
            f"{packed[0]}: places in a file of this kind have no order; unpack it, or say order_by"
        )
    rows = files.select(
        value.cast("binary").alias("value"),
        F.col("_metadata.file_path").alias("file"),
        block.alias("block"),
        F.unix_millis("_metadata.file_modification_time").alias("timestamp_ms"),
    )
    numbers = {_bare(name): number for number, name in enumerate(names, 1)}
    read = _Read(settings, numbers, is_counted=format == "json", order_by=order_by, command=command)
    records = rows.mapInArrow(read, _HISTORY_DDL)
    return records.withColumn("timestamp", F.timestamp_millis("timestamp_ms")).drop("timestamp_ms")


@dataclass(frozen=True, slots=True)
class _Read:
    """Converts rows of files to records of a history; pickled for the executors."""

    settings: TopicSettings
    numbers: Mapping[str, int]
    """The number of each file from 1 on, in the order of names: no offset is taken for one of Kafka's."""
    is_counted: bool
    """True if column `block` is the start of a part of the file, plus a row count; else it is the row's number."""
    order_by: str | None
    command: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert rows of value, file, block and timestamp_ms, in the order of each file."""
        codec, topic = self.settings.codec(), self.settings.topic
        compiled = compile_settings(self.settings.name, topic, codec)
        headers: Headers = [] if self.command is None else [command_header(cast("Command", self.command))]
        place, count = None, 0
        for batch in batches:
            keys, offsets, partitions = [], [], []
            columns = [batch.column(name).to_pylist() for name in ("value", "file", "block")]
            for value, file, block in zip(*columns, strict=True):
                count = 0 if place != (file, block) else count + 1
                place = file, block
                body: Value = None
                key = None
                try:
                    body = codec.decode(value)
                    if type(body) is dict and compiled.preprocess is not None:
                        body = compiled.preprocess(body, self.settings.topic.default_command).body
                    text = compiled.key.text(body) if type(body) is dict else None
                    key = None if text is None else text.encode()
                except RecordRejected:
                    pass  # The merge rejects it with the reason.
                offset = (self.numbers[_bare(unquote(file))] << _FILE_BITS) + block + count * self.is_counted
                if self.order_by is not None and key is not None:
                    offset = _number(body, self.order_by, file)
                keys.append(key)
                offsets.append(offset)
                partitions.append(0 if key is None else partition_for(key, topic.partitions))
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(keys, pa.binary()),
                    batch.column("value"),
                    headers_column([headers] * len(keys)),
                    pa.array(partitions, pa.int32()),
                    pa.array(offsets, pa.int64()),
                    batch.column("timestamp_ms"),
                ],
                names=["key", "value", "headers", "partition", "offset", "timestamp_ms"],
            )


def _number(body: Any, field: str, file: str) -> int:
    """The number that orders a message."""
    number = body.get(field)
    if type(number) is not int or not 0 <= number < _OFFSET_MAX:
        raise ConfigurationError(
            f"{file}: a message has {number!r:.100} in field {field!r}, which is to order it: a whole number from 0"
        )
    return number


def _as_json(files: DataFrame, settings: TopicSettings, nulls: str | None) -> Any:
    """The JSON message made of all columns of a row."""
    if settings.topic.message_type != "json":
        raise ConfigurationError(
            f"{settings.name} is of message type {settings.topic.message_type!r}; rows of fields can be read as "
            "messages of JSON only: keep the messages themselves in column `value` of an archive with Kafka's columns"
        )
    if nulls not in ("keep", "skip"):
        raise ConfigurationError(
            f"nulls={nulls!r}: a row has all columns, so say what a null in it is: 'keep' (a null in the message) or "
            "'skip' (the message has no such field)"
        )
    options = {**TO_JSON, "ignoreNullFields": "true" if nulls == "skip" else "false"}
    return F.to_json(F.struct(*(F.col(quoted([name])) for name in files.columns)), options)


def _bare(name: str) -> str:
    """Normalise a file name: `file:/a` and `file:///a` are the same file."""
    scheme, _, rest = name.partition(":")
    return f"{scheme}:{rest.lstrip('/')}"
