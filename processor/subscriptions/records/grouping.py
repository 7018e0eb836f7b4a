"""Aggregated subscriptions: the groups of the records that a subscriber's filter selects, and their rows.

The rows are records of a topic of their own, which exists in the engine alone: with a key, versions and deltas, so that
all other options hold for them as for any records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from processor.errors import ConfigurationError, GroupsLost, SowstreamError
from processor.filter.aggregate import GroupIncomplete
from processor.record import Record
from processor.subscriptions.records.current_records import CurrentRecords
from processor.subscriptions.request.subscribed_topic import PAUSE, MemoryRecords
from processor.subscriptions.request.turn import LARGE
from processor.subscriptions.request.update import Update
from processor.values.key_text import group_key
from processor.wire.record_headers import INSERT, headers_of_version, removal_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from processor.filter.aggregate import Contribution, Group
    from processor.record import Headers, Value
    from processor.subscriptions.request.subscribed_topic import ParsedRecord
    from processor.subscriptions.request.subscription_spec import GroupingSpec, SubscriptionSpec
    from processor.subscriptions.request.turn import Turn

_Name: TypeAlias = "tuple[str | None, str, str | None]"

GROUPS_MAX: Final = 5_000
"""Groups of a subscription where others wait: a snapshot of so many begins within a turn."""
_REBUILT_MAX: Final = 20_000
"""Records from which a group is built again within a turn."""
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

    def __init__(self, spec: GroupingSpec, wall_ms: Callable[[], int], turn: Turn | None = None) -> None:
        """Begin without records.

        Args:
            spec: the groups.
            wall_ms: returns the time, milliseconds since the epoch.
            turn: others wait while it works, so that its groups are limited, and freed in turns; None: none does.
        """
        self.topic: Final = spec.topic
        """The topic of the rows."""
        self.view: Final = MemoryRecords()
        """The rows."""
        self.rows: Final = CurrentRecords(self.topic, self.view, wall_ms)
        """The rows as records of their topic."""
        self.rows.positions[_ROWS] = 0
        self.subscriptions = 0
        """The number of running subscriptions: with none, updates do not reach it any more."""
        self._turn = turn
        self._taken: Update | None = None  # The last update, with its outcome for all subscriptions.
        self._outcome: tuple[RowChange, ...] | SowstreamError = ()
        self._spec = spec
        self._groups: dict[bytes, Group] = {}
        self._members: dict[bytes, tuple[bytes, Contribution]] = {}  # Of each record that counts.
        self._offset = 0

    def __del__(self) -> None:
        """Leave the members of large groups to later turns, one by one, as groups keep their values."""
        if self._turn is not None and len(self._members) > LARGE:
            self._turn.leave(_emptied(self._members, self._groups))

    def load(self, records: Iterable[ParsedRecord]) -> None:
        """Take the records with which the subscription begins.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        for record, value in records:
            self.put(record.key or b"", self.contribution(record, value))
        for key in list(self._groups):
            self.write(key, 0)

    @property
    def groups(self) -> Iterable[bytes]:
        """The keys of the rows, with those that are not written yet."""
        return self._groups.keys()

    def contribution(self, record: Record, value: Value) -> Contribution:
        """The part of a record that its group needs."""
        entitlement = self._spec.entitlement
        return self._spec.contribution(record, value if entitlement is None else entitlement.visible(value))

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
            except Exception as error:  # noqa: BLE001 - It ends all subscriptions that share the groups.
                self._outcome = self.topic.failure(error)
        if isinstance(self._outcome, SowstreamError):
            raise self._outcome
        return self._outcome

    def _take(self, update: Update, *, now: bool) -> Iterator[RowChange]:
        """Take an update, and yield the changes of rows: of the record's old group, and of its new one."""
        for key in self.change(update.key, update.contribution(self._spec) if now else None):
            before = self.rows.find(key)
            row = self.write(key, update.new.timestamp_ms)
            if row is not None:
                change = Update(self.topic, _ROWS, key, before, row)
                yield RowChange(change, was=before is not None, now=row.value is not None)

    def change(self, key: bytes, part: Contribution | None) -> Iterable[bytes]:
        """Put a record into its group, or take it out; returns the keys of the rows to write: the old and the new."""
        old = self._members.get(key)
        if part is not None:
            self.put(key, part)
        elif old is not None:
            self._remove(key)
        new = self._members.get(key)
        return dict.fromkeys(member[0] for member in (old, new) if member is not None)

    def put(self, key: bytes, part: Contribution) -> None:
        """Put a record into its group.

        Raises:
            ConfigurationError: there are too many groups.
        """
        if key in self._members:
            self._remove(key)
        row_key = group_key(part.group)
        group = self._groups.get(row_key)
        if group is None:
            if self._turn is not None and len(self._groups) >= GROUPS_MAX:
                raise ConfigurationError(
                    f"option 'projection': there are more than {GROUPS_MAX:,} groups; group by fewer fields, or filter"
                )
            group = self._groups[row_key] = self._spec.definition.new_group()
        group.add(part)
        self._members[key] = row_key, part

    def _remove(self, key: bytes) -> None:
        row_key, part = self._members.pop(key)
        self._groups[row_key].remove(part)

    def write(self, key: bytes, timestamp_ms: int) -> Record | None:
        """Put the row of a group into the view; returns it, a tombstone without members, or None if nothing changed."""
        group = self._groups.get(key)
        if group is None:
            return None  # It was written as empty before.
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
        version = self._offset + 1  # They grow also for a group that comes back.
        headers: Headers
        if value is None:
            headers = removal_headers(version, "delete")
        else:
            headers = [*headers_of_version(version), *([INSERT] if before is None else [])]
        record = Record(key, value, headers, self._offset, timestamp_ms)
        self._offset += 1
        self.rows.move(_ROWS, self._offset)
        self.view.put(_ROWS, [record])
        return record

    def _built(self, key: bytes) -> Group:
        """Build a group from its members.

        Raises:
            GroupsLost: that would take too long.
        """
        if self._turn is not None and len(self._members) > _REBUILT_MAX:
            raise GroupsLost("the next least or greatest value of a group is not known; the groups are built again")
        group = self._spec.definition.new_group()
        for row_key, part in self._members.values():
            if row_key == key:
                group.add(part)
        return group


def _emptied(members: dict[bytes, tuple[bytes, Contribution]], groups: dict[bytes, Group]) -> Iterator[None]:
    """Take all members out of their groups, one in each step."""
    while members:
        row_key, part = members.popitem()[1]
        groups[row_key].remove(part)
        yield


class GroupingBuild:
    """Builds the groups of a subscription in slices.

    ::

        scan: the records of the beginning ──▶ the updates since then ──▶ the rows ──▶ done
    """

    def __init__(self, spec: SubscriptionSpec, current: CurrentRecords) -> None:
        """Begin with the records of now."""
        assert spec.grouping is not None
        assert current.turn is not None
        self.grouping: Final = Grouping(spec.grouping, current.wall_ms, current.turn)
        """The groups; complete when `advance` has returned True."""
        self.users = 0
        """Those who hold it."""
        self._spec = spec.grouping
        self._filter = spec.filter
        self._turn = current.turn
        self._records = current.selected(spec.filter, current.wall_ms(), pauses=True)
        self._is_scanned = False
        self._updated: dict[bytes, Contribution | None] = {}  # Of each updated record; None: it does not count.
        self._unwritten: dict[bytes, None] = {}
        self._error: SowstreamError | None = None

    @property
    def has_failed(self) -> bool:
        """True if it cannot be completed, or missed an update."""
        return self._error is not None

    def is_ready(self, depth: int) -> bool:  # noqa: ARG002 - Rows have no order yet.
        """Return whether all groups are there."""
        return self._is_scanned and not self._updated and not self._unwritten and self._error is None

    def advance(self) -> bool:
        """Go on for one turn; returns whether all groups are there.

        Raises:
            SowstreamError: a record cannot be parsed, a third party's function raised, or there are too many groups.
        """
        if self._error is not None:
            raise self._error
        grouping, turn = self.grouping, self._turn
        turn.begin()
        try:
            while not turn.is_over and not self.is_ready(0):
                if not self._is_scanned:
                    self._scan()
                elif self._updated:
                    self._unwritten.update(dict.fromkeys(grouping.change(*self._updated.popitem())))
                else:
                    grouping.write(self._unwritten.popitem()[0], 0)
        except Exception as error:
            self._error = grouping.topic.failure(error)  # Others may wait for the same groups.
            raise
        return self.is_ready(0)

    def changed(self, update: Update) -> None:
        """Take an update, while no subscription does it."""
        if self.grouping.subscriptions or self._error is not None:
            return
        try:
            _, now = update.matches(self._filter)
            self._updated[update.key] = update.contribution(self._spec) if now else None
        except Exception as error:  # noqa: BLE001 - It ends the subscriptions that wait for the groups.
            self._error = self.grouping.topic.failure(error)

    def _scan(self) -> None:
        """Take the records up to the end of the turn."""
        grouping, updated = self.grouping, self._updated
        for parsed in self._records:
            if parsed is PAUSE:
                return
            record, value = parsed
            if (key := record.key or b"") not in updated:
                grouping.put(key, grouping.contribution(record, value))
        self._is_scanned = True
        self._unwritten = dict.fromkeys(grouping.groups)


class SharedGroupings:
    """The groupings of an engine's running subscriptions, by the records, the visible fields and the projection."""

    def __init__(self) -> None:
        self._running: WeakValueDictionary[_Name, Grouping] = WeakValueDictionary()
        self._builds: dict[_Name, GroupingBuild] = {}

    def __bool__(self) -> bool:
        """Return whether a grouping is being built, which must follow the updates."""
        return bool(self._builds)

    def prepare(self, spec: SubscriptionSpec, current: CurrentRecords) -> GroupingBuild | None:
        """Begin to build the groups of a subscription in slices, or join the build; None: they are there."""
        name = _name(spec)
        running = self._running.get(name)
        if current.turn is None or (running is not None and running.subscriptions):
            return None
        build = self._builds.get(name)
        if build is None or build.has_failed:
            build = self._builds[name] = GroupingBuild(spec, current)
        build.users += 1
        return build

    def release(self, build: GroupingBuild) -> None:
        """Let go of a build of `prepare`."""
        build.users -= 1
        if not build.users:
            self._builds = {name: one for name, one in self._builds.items() if one is not build}

    def changed(self, update: Update) -> None:
        """Take an update."""
        for build in self._builds.values():
            build.changed(update)

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
        name = _name(spec)
        grouping = self._running.get(name)
        if grouping is not None and grouping.subscriptions:
            return grouping
        build = self._builds.get(name)
        if build is not None and build.is_ready(0):
            grouping = build.grouping
        else:
            grouping = Grouping(spec.grouping, current.wall_ms, current.turn)
            grouping.load(current.selected(selection, over_ms))
        # Others are not kept up to date, or have groups that change with the clock.
        if spec.live and not (selection is not None and selection.moves_by_itself):
            self._running[name] = grouping
        return grouping


def _name(spec: SubscriptionSpec) -> _Name:
    """Equal for subscriptions with the same records, visible fields and projection."""
    assert spec.grouping is not None
    entitlement = None if spec.entitlement is None else spec.entitlement.text
    return None if spec.filter is None else spec.filter.text, spec.grouping.text, entitlement
