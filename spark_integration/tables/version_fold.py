"""Folds the deltas of each key into the versions of its record, on the executors.

A merge that writes at least once may write the last deltas of a key again, all of them or the first ones, in their
order. Most repeats show by their versions. A life of the record that begins and ends within them shows by the header
`source` only: deltas of input records that are not behind the record's delete are repeats. So the fold needs of each
key its open version, and the end of the life before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from processor.codec import load_codec
from processor.codec.contract import CodecOptions
from processor.errors import RecordRejected, Stop
from processor.merge import apply_delta
from processor.wire.record_headers import source_offset
from processor.wire.subscriber_headers import read_delta_headers, read_removed
from spark_integration.foundation.arrow_records import headers_of

if TYPE_CHECKING:
    from processor.record import Headers, Value
    from spark_integration.foundation.settings import TopicSettings

_Row: TypeAlias = "tuple[Any, ...]"

VERSIONS_DDL: Final = (
    "key string, value string, version bigint, from_us bigint, to_us bigint, partition int, offset bigint, "
    "end_offset bigint, source bigint, gone_version bigint, gone_source bigint, gone_offset bigint, was_open boolean, "
    "is_state boolean"
)
"""The columns of a fold: one row for each version that began or ended.

`source` is the offset of the input record. The columns `gone_*` are those of the delete that ended the version; of
others, of the one that ended the record's life before. `is_state` marks the row with which the next fold of the key
begins: its open version, or the one that a delete has ended.
"""

REPEATED_MAX: Final = 200_000
"""The distance over which the end of a life is remembered, in offsets of the delta topic: twice the records of a
micro-batch of `merge_stream`.
"""

_ROWS_MAX: Final = 5000
_GONE: Final = ("delete", "expire")
STATE: Final = ("source", "gone_version", "gone_source", "gone_offset")
"""The columns that only the states of keys have."""
_SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.string()),
        ("version", pa.int64()),
        ("from_us", pa.int64()),
        ("to_us", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("source", pa.int64()),
        ("gone_version", pa.int64()),
        ("gone_source", pa.int64()),
        ("gone_offset", pa.int64()),
        ("was_open", pa.bool_()),
        ("is_state", pa.bool_()),
    ]
)


class _Gone(NamedTuple):
    """The delete that ended a life of a record."""

    version: int
    source: int | None
    offset: int


class _Open(NamedTuple):
    """The version of a key that has not ended."""

    text: str
    version: int
    from_us: int
    partition: int
    offset: int
    source: int | None
    gone: _Gone | None
    """The end of the life before."""
    was_open: bool
    record: Value | None = None
    """What `text` says; None: not parsed yet. The next delta changes it."""


@dataclass(frozen=True, slots=True)
class VersionFold:
    """Folds the rows of whole keys, for `mapInArrow`; pickled for the executors."""

    settings: TopicSettings
    """The settings of the topic."""
    overlap: Mapping[int, int] = field(default_factory=dict)
    """Of a history that began with the SOW topic, by partition, the offset before which deltas may be older than the
    record with which their key began.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold rows that are sorted by key, then `is_delta`, then offset.

        The columns are `key`, `is_delta`, `partition`, `offset`, `at_us`, `value`, `headers`, `version`, `source`,
        `gone_version`, `gone_source` and `gone_offset`. A row that is no delta is the state of its key: `value` is the
        record as JSON of its open version, or null where a delete has ended it.

        Raises:
            Stop: a delta does not follow from the version before it, or cannot be read.
        """
        fold = _Fold(self.settings, self.overlap)
        names = ("key", "is_delta", "partition", "offset", "at_us", "value", "version", *STATE)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in names]
            for key, is_delta, partition, offset, at_us, value, version, source, *gone, headers in zip(
                *columns, headers_of(batch.column("headers")), strict=True
            ):
                fold.begin(key)
                if is_delta:
                    fold.apply(partition, offset, at_us, value, headers)
                else:
                    fold.gone = None if gone[0] is None else _Gone(*gone)
                    fold.open = None
                    if value is not None:
                        text = value.decode()
                        fold.open = _Open(text, version, at_us, partition, offset, source, fold.gone, was_open=True)
            if len(fold.rows) >= _ROWS_MAX:
                yield fold.taken()
        fold.begin(None)
        yield fold.taken()


class _Fold:
    """The fold of one key at a time."""

    def __init__(self, settings: TopicSettings, overlap: Mapping[int, int]) -> None:
        self._topic, self._overlap = settings.name, overlap
        self._json = load_codec("json", CodecOptions(max_depth=settings.topic.max_depth))
        self._codec = settings.codec(reads_only=True)
        # What JSON was read from can be written again without looking for parts that JSON does not have.
        self._write = self._json.encode_decoded if type(self._codec) is type(self._json) else self._json.encode
        self._reads_headers = self._codec.uses_headers and self._codec.can_delta
        self._source = settings.kafka_topic("publish")
        self.key: str | None = None
        self.open: _Open | None = None
        self.gone: _Gone | None = None
        """The end of the last life, where none is open."""
        self.rows: list[_Row] = []
        self._ended: _Row | None = None
        """The row of a version that a delete has ended; the next one of its key decides whether it is the state."""

    def begin(self, key: str | None) -> None:
        """Begin with the rows of a key, if they are not begun; the last version of the one before stays open."""
        if key == self.key:
            return
        if self.open is not None and not self.open.was_open:
            self._put(self.open, None, None, self.open.gone, is_state=True)
        self._put_ended(is_state=True)
        self.key, self.open, self.gone = key, None, None

    def apply(self, partition: int, offset: int, at_us: int, value: bytes | None, headers: Headers | None) -> None:
        """Apply a delta: it ends the open version, and begins the next one unless it deletes the record."""
        place = f"{self._topic}: partition {partition}, offset {offset} of its delta topic, key {self.key!r:.100}"
        before = self.open
        try:
            kind, version, base, _, removed = read_delta_headers(headers)
            if version is None:
                raise Stop(f"{place}: there is no version in its headers; only deltas of workers have versions")
            source = self._source_of(partition, headers)
            is_new = kind == "insert" or base == 0
            if self._is_repeat(version, base, is_new, source, offset):
                return
            if before is None and not is_new and offset < self._overlap.get(partition, 0):
                return  # Older than the SOW topic when it was read, and the record was gone then.
            if kind in _GONE:
                self._delete(version, source, at_us, offset)
                return
            if not is_new and self._codec.can_delta and (before is None or base != before.version):
                has = "no version" if before is None else f"version {before.version}"
                raise Stop(
                    f"{place}: it applies to version {base}, and the history has {has}. Deltas before it are gone, or "
                    "the job began behind them: begin a new table with `begin: sow`"
                )
            text, record = self._merged(None if is_new else before, value, headers, removed)
        except (RecordRejected, TypeError, UnicodeDecodeError) as error:
            raise Stop(f"{place}: it cannot be read as JSON: {error}") from error
        gone = self.gone
        if before is not None:
            self._put(before, at_us, offset, before.gone, is_state=False)
            gone = before.gone
        self._put_ended(is_state=False)
        self.open = _Open(text, version, at_us, partition, offset, source, gone, was_open=False, record=record)
        self.gone = None

    def _is_repeat(self, version: int, base: int | None, is_new: bool, source: int | None, offset: int) -> bool:
        """Return whether a merge has written a delta again that is in the table already."""
        before = self.open
        gone = self.gone if before is None else before.gone
        if gone is not None and offset - gone.offset > REPEATED_MAX:
            gone = None
        if gone is not None and source is not None and gone.source is not None and source <= gone.source:
            return True
        if before is None:
            return gone is not None and not is_new and version <= gone.version
        if before.offset < 0 and (is_new or version != before.version + 1):
            return True  # Older than the record of the SOW topic with which the key began.
        if version <= before.version:
            return True
        return gone is not None and base != before.version and version <= gone.version

    def _delete(self, version: int, source: int | None, at_us: int, offset: int) -> None:
        """End the open version, if there is one, and with it the life of the record."""
        before = self.open
        if before is None:
            return
        sources = [one for one in (source, before.source) if one is not None]  # An expiry has none.
        self.gone = _Gone(version, max(sources, default=None), offset)
        self._ended = self._row(before, at_us, offset, self.gone)
        self.open = None

    def _source_of(self, partition: int, headers: Headers | None) -> int | None:
        """The offset of the input record of a delta; None where no header has it."""
        if headers is None or len(headers) == 1:  # Most have a version and nothing else.
            return None
        return source_offset(headers, f"{self._source}/{partition}/".encode())

    def _merged(
        self, before: _Open | None, value: bytes | None, headers: Headers | None, removed: bytes | None
    ) -> tuple[str, Value]:
        """The record after a delta, as JSON and as a value."""
        if value is None:
            raise RecordRejected("undecodable", "an update without a value")
        delta = (
            self._codec.decode_command(value, headers or [], is_delta=True)
            if self._reads_headers
            else self._codec.decode_own(value)
        )
        record = None
        if before is not None and self._codec.can_delta:
            record = self._json.decode_own(before.text.encode()) if before.record is None else before.record
        record = apply_delta(record, delta, read_removed(removed))
        return self._write(record).decode(), record

    def _put(
        self, begun: _Open, to_us: int | None, end_offset: int | None, gone: _Gone | None, *, is_state: bool
    ) -> None:
        """Write a version, with its end if it has one."""
        self.rows.append((*self._row(begun, to_us, end_offset, gone), is_state))

    def _put_ended(self, *, is_state: bool) -> None:
        """Write the version that a delete has ended."""
        if self._ended is not None:
            self.rows.append((*self._ended, is_state))
            self._ended = None

    def _row(self, begun: _Open, to_us: int | None, end_offset: int | None, gone: _Gone | None) -> _Row:
        ends = (None, None, None) if gone is None else gone
        return (self.key, begun.text, begun.version, begun.from_us, to_us, begun.partition, begun.offset, end_offset,
                begun.source, *ends, begun.was_open)  # fmt: skip

    def taken(self) -> pa.RecordBatch:
        """The rows until now, which are given up."""
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * len(_SCHEMA)
        self.rows = []
        arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
