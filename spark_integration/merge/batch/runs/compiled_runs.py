"""Gives Arrow batches to the compiled merge of runs (`json_runs`), and makes batches of its output.

Where it could not be compiled, or the environment variable `SOWSTREAM_NO_EXTENSIONS` is not empty, the workers' merge
takes all records (`PartitionMerge`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from processor.builtin.delta_merge.plain import compiled_fold, is_plain_state
from processor.record import Stored
from processor.wire.command import ack_types
from processor.wire.headers import TRAVELLING_HEADERS
from processor.wire.record_headers import headers_of_version, insert_headers, removal_headers
from spark_integration.foundation.arrow_records import HEADER, OUTGOING, headers_of
from spark_integration.merge.key_lives import MADE_OFFSETS

try:
    from spark_integration.merge.batch.runs.arrow_rows import Chunk, Rows
    from spark_integration.merge.batch.runs.json_runs import JsonRuns

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Codec
    from processor.config import TopicConfig
    from processor.record import Outgoing
    from spark_integration.merge.batch.runs.sequence_log import SequenceLog
    from spark_integration.merge.key_lives import KeyLives

IS_REPEAT: Final = "is_repeat"
"""The column that marks duplicates; without it there are none."""

DENIAL: Final = "denial"
"""The column with the detail of the rejection of a record that is rejected for its sequence; it is beside the other."""


class OpenKey(NamedTuple):
    """The result of the rows of one key, which may go on in the next chunk."""

    key: bytes
    state: Stored | None
    """Its state; None without a record."""
    last: Outgoing | None
    """Its last SOW record; None where nothing changed."""
    ended: int
    """The version with which its last life has ended; 0 if none has."""


class Part(NamedTuple):
    """The result of some rows of a chunk."""

    end: int
    """The row after the last one."""
    left: Sequence[tuple[int, int]]
    """The first row and the end of each run that has other commands than plain ones."""
    open: Sequence[OpenKey]
    """The keys that may go on in another chunk, or began in one."""
    merged: int
    """The number of rows merged, duplicates among them."""
    duplicates: int
    """The number of duplicates."""
    deletes_of_nothing: int
    """The number of deletes of a key without a record."""


class CompiledRuns:
    """The compiled merge of one partition within a task."""

    def __init__(self, runs: JsonRuns) -> None:
        """Wrap the merge; use `of`, which checks the settings."""
        self._runs = runs

    @classmethod
    def of(
        cls, codec: Codec, topic: TopicConfig, lives: KeyLives, *, partition: int, partitions: int, deltas: bool
    ) -> CompiledRuns | None:
        """Create the merge of a topic of JSON.

        Args:
            codec: the message type.
            topic: the settings.
            lives: the versions with which new records begin.
            partition: the number of the partition.
            partitions: the number of partitions that keys are hashed over; 1: every key may stay.
            deltas: whether deltas are output too.

        Returns:
            None where there is nothing compiled, or the topic does more than merge objects under key fields at the top.
        """
        fold = compiled_fold(topic, codec, lives, partition=partition, partitions=partitions)
        if not has_compiled or fold is None or topic.default_command not in ("publish", "delta_publish"):
            return None
        runs = JsonRuns(
            fold,
            ack_types,
            deltas=deltas,
            publishes=topic.default_command == "publish",
            base=lives.base,
            begin=lives.begin,
            made_offsets=MADE_OFFSETS,
        )
        return cls(runs)

    def merge(self, batch: ChunkOfBatch, begin: int, stored: Stored | None, ended: int, *, is_continued: bool) -> Part:
        """Merge rows from `begin` on, until the output is large.

        Args:
            batch: the rows.
            begin: the first row.
            stored: the state of its key.
            ended: the version with which the last life of that key has ended; 0 if none has.
            is_continued: whether the key has records in an earlier chunk.
        """
        is_left = not is_plain_state(stored)
        state = None if stored is None else (stored.version, stored.value)
        end, left, ends, merged, duplicates, of_nothing = self._runs.merge(
            batch.chunk, begin, is_continued, is_left, state, ended
        )
        opened = []
        for key, version, record, row, is_insert, last_ended in ends:
            if record is not None:
                headers = (insert_headers if is_insert else headers_of_version)(version)
            elif row >= 0:
                headers = removal_headers(last_ended, "delete")
            else:  # There was no record, and nothing has made one.
                continue
            state_after = None if record is None else Stored(version, record)
            last = None if row < 0 else (key, record, [*headers, *batch.passed(row)])
            opened.append(OpenKey(key, state_after, last, last_ended))
        return Part(end, left, opened, merged, duplicates, of_nothing)

    def take_log(self, log: SequenceLog) -> None:
        """Move the sequences of the merged records to the log."""
        entries = self._runs.take_log()
        if entries is not None:
            log.add(*entries)

    def take_rows(self, partition: int) -> list[pa.RecordBatch]:
        """Take the output of the finished keys."""
        return [
            _batch(role, partition, rows)
            for role, rows in (("delta", self._runs.delta), ("sow", self._runs.sow))
            if rows.count
        ]


class ChunkOfBatch:
    """The rows of a chunk with the addresses of their buffers."""

    def __init__(self, batch: pa.RecordBatch, chunk: Chunk, kept: Sequence[object]) -> None:
        """Keep the batch, on whose memory the chunk is."""
        self.chunk = chunk
        self._batch, self._kept = batch, kept

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> ChunkOfBatch | None:
        """Find the buffers of a batch; None where its columns are of other types, or lists of headers are null."""
        key, value, offset = (batch.column(name) for name in ("key", "value", "offset"))
        headers = batch.column("headers")
        has_types = key.type == value.type == pa.binary() and offset.type == pa.int64()
        if not has_types or headers.type != pa.list_(HEADER) or headers.null_count or key.null_count:
            return None
        names, texts = (headers.values.field(place) for place in (0, 1))
        repeats = None
        if IS_REPEAT in batch.schema.names:
            repeats = pc.fill_null(batch.column(IS_REPEAT), fill_value=False).cast(pa.uint8())
            if DENIAL in batch.schema.names:
                repeats = pc.if_else(pc.is_valid(batch.column(DENIAL)), pa.scalar(2, pa.uint8()), repeats)
        chunk = Chunk(
            batch.num_rows,
            _address(key, 1, 4), _address(key, 2),
            _address(value, 0), value.offset, _address(value, 1, 4), _address(value, 2),
            _address(offset, 1, 8),
            _address(headers, 1, 4),
            _address(names, 1, 4), _address(names, 2),
            _address(texts, 0), texts.offset, _address(texts, 1, 4), _address(texts, 2),
            0 if repeats is None else _address(repeats, 1, 1),
        )  # fmt: skip
        return cls(batch, chunk, [names, texts, repeats])

    def passed(self, row: int) -> list[tuple[str, bytes | None]]:
        """The headers of a row that travel on; none of a row below 0."""
        if row < 0:
            return []
        headers = headers_of(self._batch.column("headers").slice(row, 1))[0] or []
        return [header for header in headers if header[0] in TRAVELLING_HEADERS]


def _address(column: pa.Array, number: int, width: int = 0) -> int:
    """The address of a buffer of a column, at its first row where values are `width` bytes wide; 0 without a buffer."""
    buffer = column.buffers()[number]
    return 0 if buffer is None else buffer.address + width * column.offset


def _batch(role: str, partition: int, rows: Rows) -> pa.RecordBatch:
    """Make a batch of output rows."""
    count = rows.count
    keys, key_ends, values, value_ends, is_set, header_ends, names, name_ends, texts, text_ends = rows.take()
    present = pa.array(np.frombuffer(is_set, np.bool_)).buffers()[1] if 0 in is_set else None
    pairs = pa.StructArray.from_arrays(
        [_strings(pa.string(), names, name_ends), _strings(pa.binary(), texts, text_ends)], fields=list(HEADER)
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(role, count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            _strings(pa.binary(), keys, key_ends),
            _strings(pa.binary(), values, value_ends, present),
            pa.ListArray.from_arrays(_ends(header_ends), pairs, type=pa.list_(HEADER)),
        ],
        schema=OUTGOING,
    )


def _strings(kind: pa.DataType, data: bytes, ends: bytes, present: pa.Buffer | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(ends) // 4, [present, _ends(ends).buffers()[1], pa.py_buffer(data)])


def _ends(ends: bytes) -> pa.Array:
    """The offsets of a column: a zero, then the end of each value."""
    offsets = bytes(4) + ends
    return pa.Array.from_buffers(pa.int32(), len(offsets) // 4, [None, pa.py_buffer(offsets)])
