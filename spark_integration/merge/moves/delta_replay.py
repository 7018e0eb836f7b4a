"""Replays the deltas of each key, and compares the result with the key's record on the SOW topic.

A record on the SOW topic was read while workers wrote. Deltas before the first end of their topic are certainly older
than it, those from the second end on newer; it may be the state after any of the deltas between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from processor.merge import apply_delta, strictly_equal
from processor.wire.record_headers import version_of
from processor.wire.subscriber_headers import read_delta_headers, read_removed
from spark_integration.foundation.arrow_records import records
from spark_integration.merge.streaming.merge_stream import OFFSETS_PER_TRIGGER

if TYPE_CHECKING:
    from processor.api import Codec
    from processor.record import Record
    from spark_integration.foundation.settings import TopicSettings

SAME: Final = "same"
"""The replay gives the record."""
PARTIAL: Final = "partial"
"""The first deltas of the key are gone; the version fits."""
UNSEEN: Final = "unseen"
"""All deltas of the key are gone."""
MISSING: Final = "missing"
"""The SOW topic lacks a record that the replay gives."""
SURPLUS: Final = "surplus"
"""The SOW topic has a record that the replay does not give."""
VALUE: Final = "value"
"""The values differ."""
VERSION: Final = "version"
"""The versions differ."""
GAP: Final = "gap"
"""Deltas between two versions are missing."""
DIFFERENT: Final = (MISSING, SURPLUS, VALUE, VERSION, GAP)
"""The kinds of a difference."""

RESULT_DDL: Final = (
    "kind string, partition int, key binary, there binary, wanted binary, there_version bigint, wanted_version bigint"
)
"""A row for each key, and one for each gap; the fields of `Difference`. The values of equal records are left out."""
_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("there", pa.binary()),
        ("wanted", pa.binary()),
        ("there_version", pa.int64()),
        ("wanted_version", pa.int64()),
    ]
)

SOW_OFFSET: Final = -1
"""Value of column `offset` of the row with the SOW record, which stands before the deltas of its key."""

_REPEATED_MAX: Final = OFFSETS_PER_TRIGGER  # Deltas of one key in a micro-batch.
_GONE: Final = ("delete", "expire")


@dataclass(frozen=True, slots=True)
class DeltaReplay:
    """Replays and compares in a task; pickled for the executors."""

    settings: TopicSettings
    """The settings of the topic."""
    first_ends: dict[int, int]
    """By partition, the end of the delta topic before the SOW topic was read."""
    is_complete: dict[int, bool]
    """By partition, whether all deltas since its first record are there."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Compare sorted rows (`RECORDS_DDL`, by partition, key, offset); yields `RESULT_DDL`."""
        codec = self.settings.codec()
        key: KeyReplay | None = None
        for batch in batches:
            out: list[tuple[Any, ...]] = []
            for partition, record in zip(batch.column("partition").to_pylist(), records(batch), strict=True):
                if key is None or (key.partition, key.key) != (partition, record.key):
                    out += key.rows() if key is not None else []
                    key = KeyReplay(codec, partition, record.key or b"", is_complete=self.is_complete[partition])
                if record.offset == SOW_OFFSET:
                    key.expect(record)
                else:
                    key.apply(record, is_certain=record.offset < self.first_ends[partition])
            yield _batch(out)
        if key is not None:
            yield _batch(key.rows())


class KeyReplay:
    """The replay of one key: its record on the SOW topic, then its deltas in order."""

    def __init__(self, codec: Codec, partition: int, key: bytes, *, is_complete: bool) -> None:
        self.partition, self.key = partition, key
        self._codec = codec
        self._version = 0 if is_complete else None  # None: no delta was seen, and earlier ones may be gone.
        self._record: Any = None
        self._is_live = False
        self._is_known = is_complete  # Whether the record is known, and not its version only.
        self._there: bytes | None = None
        self._there_version: int | None = None
        self._expected: Any = None
        self._verdict = self._judge()
        self._gaps: list[tuple[Any, ...]] = []
        self._recent: OrderedDict[int, None] = OrderedDict()  # Digests of the last deltas.

    def expect(self, record: Record) -> None:
        """Set the record of the SOW topic."""
        self._there, self._there_version = record.value, version_of(record.headers)
        if record.value is not None:
            self._expected = self._codec.decode_own(record.value) if self._codec.can_delta else record.value
        self._verdict = self._judge()

    def apply(self, delta: Record, *, is_certain: bool) -> None:
        """Apply a delta; one that is not certain counts only if the record does not fit without it."""
        headers = read_delta_headers(delta.headers)
        kind, version, base = headers.kind, headers.version, headers.base
        assert version is not None, "a worker writes a version"
        is_repeat = self._is_repeat(delta)
        if kind == "insert":
            self._record, self._is_known = self._decoded(delta), True
        elif self._version is not None and base != self._version:
            if version <= self._version or is_repeat:
                return
            self._gaps.append((GAP, self.partition, self.key, None, None, self._version, version))
            self._is_known = False
        elif self._is_known and kind not in _GONE:
            removed = read_removed(headers.removed)
            if self._codec.can_delta and base != 0:
                self._record = apply_delta(self._record, self._decoded(delta), removed)
            else:
                self._record = self._decoded(delta)
        self._version, self._is_live = version, kind not in _GONE
        if not self._is_live:
            self._record, self._is_known = None, True
        if is_certain or self._verdict in DIFFERENT:
            self._verdict = self._judge()

    def _is_repeat(self, delta: Record) -> bool:
        """Return whether the delta has come before: Spark repeats a micro-batch after a failure."""
        digest = hash((delta.value, tuple(delta.headers or ())))
        if digest in self._recent:
            return True
        self._recent[digest] = None
        if len(self._recent) > _REPEATED_MAX:
            self._recent.popitem(last=False)
        return False

    def rows(self) -> list[tuple[Any, ...]]:
        """The verdict, and the gaps; nothing for a key without a record on either side."""
        if self._verdict not in DIFFERENT:
            is_live = self._there is not None
            return [*self._gaps, *([(self._verdict, self.partition, self.key, *[None] * 4)] if is_live else [])]
        wanted = None
        if self._is_live and self._is_known:
            wanted = self._codec.encode_decoded(self._record) if self._codec.can_delta else self._record
        version = self._version if self._is_live else None
        place = self._verdict, self.partition, self.key
        return [*self._gaps, (*place, self._there, wanted, self._there_version, version)]

    def _judge(self) -> str:
        """Compare the record of the SOW topic with the replay so far."""
        if self._there is None:
            return MISSING if self._is_live else SAME
        if not self._is_live:
            return UNSEEN if self._version is None else SURPLUS
        if self._version != self._there_version:
            return VERSION
        if not self._is_known:
            return PARTIAL
        is_same = strictly_equal(self._record, self._expected) if self._codec.can_delta else self._record == self._there
        return SAME if is_same else VALUE

    def _decoded(self, delta: Record) -> Any:
        value = delta.value or b""
        if not self._codec.can_delta:
            return value
        if self._codec.uses_headers:
            return self._codec.decode_command(value, delta.headers or [], is_delta=True)
        return self._codec.decode_own(value)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[] for _ in _SCHEMA]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
