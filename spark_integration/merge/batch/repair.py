"""Computes the repair of a SOW topic: the records that differ, with higher versions, and their deltas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from processor.builtin.delta_merge.record_change import key_alone
from processor.merge import KeyFields, diff
from processor.record import Record, Stored
from processor.wire.record_headers import (
    EMPTY,
    INSERT,
    delta_base_headers,
    kind_of_update,
    removal_headers,
    removed_header,
    renumbered,
    shared_with_delta,
    stored_from,
    version_of,
)
from spark_integration.foundation.arrow_records import outgoing, records

if TYPE_CHECKING:
    from processor.api import Codec, Headers, Outgoing
    from processor.topics.family import Role
    from spark_integration.foundation.settings import TopicSettings

THERE: Final = 0
"""Value of column `offset` for a record on the topic; each key has at most one row of each kind."""
WANTED: Final = 1
"""Value of column `offset` for a record that should be on the topic."""


_NOTHING: Final[Outgoing] = None, None, []


@dataclass(frozen=True, slots=True)
class Repair:
    """Compares two states of the world in a task; pickled for the executors."""

    settings: TopicSettings
    """The settings of the topic."""
    floors: Mapping[int, int]
    """The highest version of each partition in which versions were used: the life of a new record begins above it."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Compare sorted rows (`RECORDS_DDL`, by partition, key, offset); yields the rows to write (`OUTGOING_DDL`)."""
        codec, key = self.settings.codec(), KeyFields(self.settings.topic.key_fields)
        there: tuple[int, Outgoing] | None = None
        for batch in batches:
            out: dict[tuple[Role, int], list[Outgoing]] = {}
            for partition, record in zip(batch.column("partition").to_pylist(), records(batch), strict=True):
                row = record.key, record.value, record.headers or []
                is_met = there is not None and there[0] == partition and there[1][0] == record.key
                if there is not None and not is_met:
                    _put(out, there[0], _changes(codec, key, there[1], None, 0))
                if record.offset == WANTED:
                    old, floor = there[1] if there is not None and is_met else None, self.floors.get(partition, 0)
                    _put(out, partition, _changes(codec, key, old, row, floor))
                there = (partition, row) if record.offset == THERE else None
            for (role, number), sent in out.items():
                yield outgoing(role, number, sent)
        if there is not None:
            for role, one in _changes(codec, key, there[1], None, 0):
                yield outgoing(role, there[0], [one])


def _put(out: dict[tuple[Role, int], list[Outgoing]], partition: int, sent: Iterable[tuple[Role, Outgoing]]) -> None:
    for role, record in sent:
        out.setdefault((role, partition), []).append(record)


def _changes(
    codec: Codec, key: KeyFields, old: Outgoing | None, new: Outgoing | None, floor: int
) -> Iterator[tuple[Role, Outgoing]]:
    """The records that change one state of a key to another: role and record of each.

    Args:
        codec: the message type.
        key: the key fields.
        old: the SOW record on the topic; None or a tombstone where there is none.
        new: the SOW record that should be there; the `kind` of a tombstone is kept.
        floor: a version above which a new record begins.
    """
    name = (old or new or _NOTHING)[0]
    before = None if old is None else _stored(old)
    after = None if new is None else _stored(new)
    if before is None:
        if after is not None and new is not None:
            headers = new[2] if after.version > floor else renumbered(new[2], floor + 1)
            yield "sow", (name, new[1], headers)
            yield "delta", (name, *_delta(codec, key, headers, 0, None, after))
        return
    if after is None:
        version = max(before.version + 1, 0 if new is None else (version_of(new[2]) or 0))
        kind = None if new is None else kind_of_update(new[2])
        headers = removal_headers(version, kind or "delete")
        value, more = key_alone(codec, key, before)
        yield "sow", (name, None, headers)
        yield "delta", (name, value, headers + delta_base_headers(before.version, version) + more)
        return
    assert new is not None
    same = before.value == after.value and before.expires_at_ms == after.expires_at_ms
    same = same and before.group_stamps == after.group_stamps
    if same and after.version <= before.version:
        return
    version = max(after.version, before.version + 1)
    headers = renumbered(new[2], version)
    yield "sow", (name, new[1], headers)
    yield "delta", (name, *_delta(codec, key, headers, before.version, before, after))


def _delta(
    codec: Codec, key: KeyFields, headers: Headers, base: int, before: Stored | None, after: Stored
) -> tuple[bytes, Headers]:
    """The value and headers of the delta from one record to the next."""
    version = version_of(headers) or 0
    kind = [INSERT] if before is None else delta_base_headers(base, version)
    delta_headers = shared_with_delta(headers) + kind
    if not codec.can_delta:
        return after.value, delta_headers
    record = codec.decode_own(after.value)
    _, changed, removed = diff(None if before is None else codec.decode_own(before.value), record)
    delta = key.with_delta(record, changed)
    value, more = codec.encode_delta(delta) if codec.uses_headers else (codec.encode(delta), [])
    if removed:
        more = [*more, removed_header(removed)]
    elif not changed:
        more = [*more, EMPTY]
    return value, delta_headers + more


def _stored(record: Outgoing) -> Stored | None:
    key, value, headers = record
    return stored_from(Record(key, value, headers, 0, 0))
