"""Aggregated subscriptions: the groups of the records that a subscriber's filter selects, and their rows.

The rows are records of a topic of their own, which exists in the engine alone: with a key, versions and deltas, so that
all other options hold for them as for any records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.filter.aggregate import GroupIncomplete, group_key
from processor.record import Record
from processor.subscriptions.current_records import CurrentRecords
from processor.subscriptions.record_view import MemoryRecords
from processor.subscriptions.update import Update
from processor.wire.heads import INSERT, headers_of_version, removal_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from processor.filter.aggregate import Contribution, Group
    from processor.record import Headers, Value
    from processor.subscriptions.grouping_spec import GroupingSpec
    from processor.subscriptions.topic import ParsedRecord

_ROWS: Final = 0
"""The partition of the rows: an engine has them all."""


class RowChange(NamedTuple):
    """A change of one row."""

    update: Update
    """The row before and after."""
    was: bool
    """True if there was a row."""
    now: bool
    """True if there is one."""


class Grouping:
    """The groups of one subscription. One thread only."""

    def __init__(self, spec: GroupingSpec, wall_ms: Callable[[], int]) -> None:
        """Begin without records; `wall_ms` returns the time, milliseconds since the epoch."""
        self.topic: Final = spec.topic
        """The topic of the rows."""
        self.view: Final = MemoryRecords()
        """The rows."""
        self.rows: Final = CurrentRecords(self.topic, self.view, wall_ms)
        """The rows as records of their topic."""
        self.rows.positions[_ROWS] = 0
        self._spec = spec
        self._groups: dict[bytes, Group] = {}
        self._members: dict[bytes, tuple[bytes, Contribution]] = {}  # Of each record that counts.
        self._versions: dict[bytes, int] = {}
        self._offset = 0

    def load(self, records: Iterable[ParsedRecord]) -> None:
        """Take the records with which the subscription begins.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        for record, value in records:
            self._put(0, record, value)
        for key in list(self._groups):
            self._write(key, 0)

    def changes(self, update: Update, *, now: bool) -> Iterator[RowChange]:
        """Take an update of a record, and return the changes of rows: of its old group, and of its new one.

        Args:
            update: the update.
            now: whether the record counts after it.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        old = self._members.get(update.key)
        if now:
            self._put(update.partition, update.new, update.new_value)
        elif old is not None:
            self._remove(update.key)
        new = self._members.get(update.key)
        keys = dict.fromkeys(member[0] for member in (old, new) if member is not None)
        for key in keys:
            before = self.view.get_many([key])[key]
            row = self._write(key, update.new.timestamp_ms)
            if row is not None:
                change = Update(self.topic, _ROWS, key, before, row)
                yield RowChange(change, was=before is not None, now=row.value is not None)

    def _put(self, partition: int, record: Record, value: Value) -> None:
        key = record.key or b""
        if key in self._members:
            self._remove(key)
        place = record.timestamp_ms, partition, record.offset
        metadata, entitlement = self._spec.source.metadata_of(record), self._spec.entitlement
        if entitlement is not None:
            value, metadata = entitlement.visible(value), entitlement.visible_metadata(metadata)
        part = self._spec.definition.contribution(value, place, metadata)
        row_key = group_key(part.group)
        group = self._groups.get(row_key)
        if group is None:
            group = self._groups[row_key] = self._spec.definition.new_group()
        group.add(part)
        self._members[key] = row_key, part

    def _remove(self, key: bytes) -> None:
        row_key, part = self._members.pop(key)
        self._groups[row_key].remove(part)

    def _write(self, key: bytes, timestamp_ms: int) -> Record | None:
        """Put the row of a group into the view; returns it, a tombstone without members, or None if nothing changed."""
        group = self._groups[key]
        try:
            row = self._spec.definition.row(group)
        except GroupIncomplete:
            group = self._groups[key] = self._built(key)
            row = self._spec.definition.row(group)
        before = self.view.get_many([key])[key]
        value = None if row is None else self.topic.codec.encode(row)
        if row is None:
            del self._groups[key]
        if value == (None if before is None else before.value):
            return None
        version = self._versions.get(key, 0) + 1
        headers: Headers
        if value is None:
            headers = removal_headers(version, "delete")
            self._versions.pop(key, None)
        else:
            headers = [*headers_of_version(version), *([INSERT] if before is None else [])]
            self._versions[key] = version
        record = Record(key, value, headers, self._offset, timestamp_ms)
        self._offset += 1
        self.view.put(_ROWS, [record])
        return record

    def _built(self, key: bytes) -> Group:
        """Build a group from its members."""
        group = self._spec.definition.new_group()
        for row_key, part in self._members.values():
            if row_key == key:
                group.add(part)
        return group
