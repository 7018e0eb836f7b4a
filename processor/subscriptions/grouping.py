"""Aggregated subscriptions: the groups of the records that a subscriber's filter selects, and their rows.

The rows are records of a topic of their own, which exists in the engine alone: with a key, versions and deltas, so that
all other options hold for them as for any records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from processor.errors import SowstreamError
from processor.filter.aggregate import GroupIncomplete, group_key
from processor.record import Record
from processor.subscriptions.current_records import CurrentRecords
from processor.subscriptions.record_view import MemoryRecords
from processor.subscriptions.update import Update
from processor.wire.heads import INSERT, headers_of_version, removal_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from processor.filter.aggregate import Contribution, Group
    from processor.record import Headers
    from processor.subscriptions.grouping_spec import GroupingSpec
    from processor.subscriptions.spec import SubscriptionSpec
    from processor.subscriptions.topic import ParsedRecord

_Name: TypeAlias = "tuple[str | None, str, str | None]"

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
    """The groups of subscriptions with the same records, visible fields and projection. One thread only."""

    def __init__(self, spec: GroupingSpec, wall_ms: Callable[[], int]) -> None:
        """Begin without records; `wall_ms` returns the time, milliseconds since the epoch."""
        self.topic: Final = spec.topic
        """The topic of the rows."""
        self.view: Final = MemoryRecords()
        """The rows."""
        self.rows: Final = CurrentRecords(self.topic, self.view, wall_ms)
        """The rows as records of their topic."""
        self.rows.positions[_ROWS] = 0
        self.subscriptions = 0
        """The number of running subscriptions: with none, updates do not reach it any more."""
        self._taken: Update | None = None  # The last update, with its outcome for all subscriptions.
        self._outcome: tuple[RowChange, ...] | SowstreamError = ()
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
        entitlement = self._spec.entitlement
        for record, value in records:
            visible = value if entitlement is None else entitlement.visible(value)
            self._put(record.key or b"", self._spec.contribution(record, 0, visible))
        for key in list(self._groups):
            self._write(key, 0)

    def changes(self, update: Update, *, now: bool) -> tuple[RowChange, ...]:
        """The changes that an update of a record makes to rows. It is called by each subscription, and takes it once.

        Args:
            update: the update.
            now: whether the record counts after it.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        if update is not self._taken:
            self._taken = update
            try:
                self._outcome = tuple(self._take(update, now=now))
            except SowstreamError as error:
                self._outcome = error
        if isinstance(self._outcome, SowstreamError):
            raise self._outcome
        return self._outcome

    def _take(self, update: Update, *, now: bool) -> Iterator[RowChange]:
        """Take an update, and yield the changes of rows: of the record's old group, and of its new one."""
        old = self._members.get(update.key)
        if now:
            self._put(update.key, update.contribution(self._spec))
        elif old is not None:
            self._remove(update.key)
        new = self._members.get(update.key)
        keys = dict.fromkeys(member[0] for member in (old, new) if member is not None)
        for key in keys:
            before = self.rows.find(key)
            row = self._write(key, update.new.timestamp_ms)
            if row is not None:
                change = Update(self.topic, _ROWS, key, before, row)
                yield RowChange(change, was=before is not None, now=row.value is not None)

    def _put(self, key: bytes, part: Contribution) -> None:
        if key in self._members:
            self._remove(key)
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
        before = self.rows.find(key)
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


class SharedGroupings:
    """The groupings of an engine's running subscriptions, by the records, the visible fields and the projection."""

    def __init__(self) -> None:
        self._running: WeakValueDictionary[_Name, Grouping] = WeakValueDictionary()

    def grouping_of(self, spec: SubscriptionSpec, current: CurrentRecords, over_ms: int | None) -> Grouping:
        """The grouping of a subscription: that of others with equal rights and requests, or a new one.

        Args:
            spec: the subscription, with groups.
            current: the records of now.
            over_ms: the time by which expired records are left out of a new one; None: none is.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        assert spec.grouping is not None
        selection = spec.filter
        entitlement = None if spec.entitlement is None else spec.entitlement.text
        name = None if selection is None else selection.text, spec.grouping.text, entitlement
        grouping = self._running.get(name)
        if grouping is not None and grouping.subscriptions:
            return grouping
        grouping = Grouping(spec.grouping, current.wall_ms)
        grouping.load(current.selected(selection, over_ms))
        # Others are not kept up to date, or have groups that change with the clock.
        if spec.live and not (selection is not None and selection.moves_by_itself):
            self._running[name] = grouping
        return grouping
