"""The order of a window that is built in slices, so that a thread with other work can go on in between.

::

    scan: the records of the beginning ──▶ catch up: the updates since then ──▶ sort the others ──▶ done
                                                                            windows begin

The scan sees the records of the beginning, and leaves out the keys of updates; these wait until it has ended. It keeps
the smallest keys apart: they are the first places, in which windows run and follow updates while the others are sorted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError, SowstreamError
from processor.filter.evaluation import NO_METADATA
from processor.subscriptions.request.record_order import BUCKET_KEYS, SlicedSort, member_keys
from processor.subscriptions.request.top_n import Places
from processor.subscriptions.request.turn import LargeDict
from processor.wire.subscriber_headers import is_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from processor.filter import Filter
    from processor.record import Record, Value
    from processor.subscriptions.request.member_keys import MemberKeys
    from processor.subscriptions.request.record_order import SortKey, SortOrder
    from processor.subscriptions.request.subscribed_topic import ParsedRecord, Topic
    from processor.subscriptions.request.turn import Turn
    from processor.subscriptions.request.update import Update

SLICE_RECORDS: Final = 250
"""Records of one slice: about 1 ms."""
SLICE_MEMBERS: Final = 1_000
"""The same where the value that places each record is found in its text."""
_PIECE_RECORDS: Final = 50
_PIECE_BYTES: Final = 64 * 1024
"""After so many of them it is asked whether the turn is over: a record may have a megabyte."""
_SORTED_PER_RECORD: Final = 4
"""So many keys are sorted in the time in which one record is read."""
FIRST_PLACES: Final = 2_000
"""Places that are there when the scan ends; a window that looks further waits for the sort."""
SPARE_PLACES: Final = 500
"""Places behind a window when it begins: so many records may leave it before others must be sorted at once."""


class OrderBuild:
    """Builds the places of the records that a filter matches, in one order."""

    def __init__(
        self,
        topic: Topic,
        selection: Filter | None,
        order: SortOrder,
        records: Iterable[Record],
        over_ms: int,
        *,
        first_places: int = FIRST_PLACES,
        spare_places: int = SPARE_PLACES,
        bucket_keys: int = BUCKET_KEYS,
        keeps_records: bool = False,
        records_max: int | None = None,
        turn: Turn | None = None,
    ) -> None:
        """Begin with the records of now.

        Args:
            topic: the topic.
            selection: matches the records of the order; None: all.
            order: the order.
            records: include all matches.
            over_ms: records that had expired by this time are left out.
            first_places: the places that are there before the others are sorted.
            spare_places: the places behind a window that must be there when it begins.
            bucket_keys: the keys that are sorted at once.
            keeps_records: whether `ordered` returns the records.
            records_max: it fails if more records match; None: any number may.
            turn: a slice ends with the turn, if that is over before its records; None: turns have no limit.
        """
        self.places: Final = Places(turn)
        """The places: of all records when `is_done`, the first ones when `is_ready`."""
        self.users = 0
        """Those who hold it: it is not dropped until the last of them lets it go."""
        self.is_done = False
        """True if all records are in it."""
        self.is_wanted = False
        """True if all of it is to be built even if no window runs in it: more are likely to follow."""
        self._topic = topic
        self._filter = selection
        self._order = order
        self._records = iter(records)
        self._over_ms = over_ms
        self._first_places = first_places
        self._spare_places = spare_places
        self._bucket_keys = bucket_keys
        self._kept: dict[bytes, Record] | None = LargeDict(turn) if keeps_records else None
        self._records_max = records_max
        self._turn = turn
        is_plain = selection is None and not keeps_records
        self._member_keys = member_keys(order, topic.codec) if is_plain else None
        self._scanned: list[SortKey] = []
        self._first: list[SortKey] = []  # The smallest keys of the scan, and some others.
        self._first_end: SortKey | None = None  # No key above it is one of the first; None: any may be.
        self._later: SlicedSort | None = None  # None: the scan goes on, or all keys are in the order.
        self._is_scanned = False
        self._updated: dict[bytes, SortKey | None] = {}  # The last place of each updated key; None: it has none.
        self._moved: set[bytes] = set()  # SOW keys of which `_later` has a key that is out of date.
        self._error: SowstreamError | None = None

    @property
    def has_failed(self) -> bool:
        """True if it cannot be completed, or missed an update."""
        return self._error is not None

    @property
    def keeps_records(self) -> bool:
        """True if it is of a snapshot, which `ordered` returns."""
        return self._kept is not None

    def fail(self, error: SowstreamError) -> None:
        """Note that an update is not in it."""
        self._error = error

    def abandon(self) -> None:
        """End it, if no window runs in it: its places refer to it, and a reference cycle would not be freed."""
        if not self.is_done and not self.places.windows:
            self.places.later = None
            self.fail(ConfigurationError("the order was abandoned"))

    def is_ready(self, depth: int) -> bool:
        """Return whether a window that looks at the first `depth` places can begin, or a snapshot."""
        if self._error is not None:
            return False
        if self._kept is not None:
            return self.is_done
        return self.places.is_loaded and self.places.has_reached(depth + self._spare_places)

    def advance(self, records_max: int | None = None) -> bool:
        """Take the next slice; returns whether all are taken.

        Args:
            records_max: how many records are read, or a part of the keys that are sorted in the same time; None: a
                millisecond's.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        if self._error is not None:
            raise self._error
        if self.is_done:
            return True
        if self._turn is not None:
            self._turn.begin()
        try:
            if not self._is_scanned:
                if self._member_keys is None:
                    self._scan(records_max or SLICE_RECORDS)
                else:
                    self._scan_members(self._member_keys, records_max or SLICE_MEMBERS)
            elif not self.places.is_loaded:
                self._catch_up(records_max or SLICE_RECORDS)
            else:
                self._sort((records_max or SLICE_RECORDS) * _SORTED_PER_RECORD)
        except Exception as error:
            self._error = self._topic.failure(error)
            raise
        return self.is_done

    def finish(self) -> None:
        """Take all slices that are left.

        Raises:
            SowstreamError: as `advance`.
        """
        while not self.advance():
            pass

    def ordered(self) -> Iterator[ParsedRecord]:
        """The records in their order, when all are in it; no update may follow."""
        assert self.is_done
        assert self._kept is not None
        kept, places = self._kept, self.places

        def records() -> Iterator[Record]:
            for sort_key in places.order:  # Their keys stay in it as long as something refers to the places.
                yield kept[sort_key[-1]]

        return self._topic.parsed(records())

    def load(self) -> None:
        """Take slices until the first places are there.

        Raises:
            SowstreamError: as `advance`.
        """
        while not self.places.is_loaded:
            self.advance()

    def add(self, sort_key: SortKey) -> None:
        """Add a key behind those that are at their places."""
        assert self._later is not None
        self._later.add(sort_key)

    def discard(self, sort_key: SortKey) -> None:
        """Leave out a key behind those that are at their places."""
        self._moved.add(sort_key[-1])

    def reach(self, depth: int) -> None:
        """Sort until more than `depth` keys are at their places, or all."""
        while not self.places.has_reached(depth):
            self._sort(self._bucket_keys)

    def changed(self, update: Update) -> None:
        """Put an updated record in its place, while no window does it."""
        if self.places.windows or self._error is not None:
            return
        key = update.key
        try:
            _, now = update.matches(self._filter)
            sort_key = self._sort_key(key, update.new_value, update.new) if now else None
            if self._kept is not None:
                self._keep(key, update.new if now else None)
            if self._is_scanned and key not in self._updated:
                self._place(key, sort_key)
            else:
                self._updated[key] = sort_key
        except Exception as error:  # noqa: BLE001 - It ends the windows that wait for the order.
            self._error = self._topic.failure(error)

    def _scan(self, records_max: int) -> None:
        """Read the next records."""
        sort_keys, scanned, updated = self.places.sort_keys, self._scanned, self._updated
        value_of, selection, over_ms = self._topic.value, self._filter, self._over_ms
        needs_value = selection is not None or self._order.text is not None
        key_of = self._sort_key if self._order.uses_metadata else None
        plain_key_of = self._order.key
        first, first_end, first_max = self._first, self._first_end, 2 * self._first_places
        turn, kept = self._turn, self._kept
        count = 0
        has_paused = False
        for record in islice(self._records, records_max):
            count += 1
            key = record.key or b""
            if key in updated or is_over(record, over_ms):
                continue
            value = value_of(record) if needs_value else None
            if selection is None or self._matches(selection, value, record):
                sort_key = key_of(key, value, record) if key_of else plain_key_of(key, value, NO_METADATA)
                sort_keys[key] = sort_key
                scanned.append(sort_key)
                if first_end is None or sort_key < first_end:
                    first.append(sort_key)
                    if len(first) >= first_max:
                        first_end = self._cut_first()
                if kept is not None:
                    self._keep(key, record)
            if turn is not None and turn.is_over:
                has_paused = True
                break
        self._first_end = first_end
        if count < records_max and not has_paused:
            self._begin_order()

    def _scan_members(self, keys: MemberKeys, records_max: int) -> None:
        """`_scan` for an order by a member that is found in the text of a record."""
        places, turn = self.places, self._turn
        has_ended = False
        for taken in range(0, records_max, _PIECE_RECORDS):
            has_ended = keys.scan(
                self._records,
                min(_PIECE_RECORDS, records_max - taken),
                _PIECE_BYTES,
                self._over_ms,
                self._updated,
                self._parsed_key,
                places.sort_keys,
                self._scanned,
                self._first,
                self._first_end,
            )
            if len(self._first) >= 2 * self._first_places:
                self._first_end = self._cut_first()
            if has_ended or (turn is not None and turn.is_over):
                break
        if has_ended:
            self._begin_order()

    def _parsed_key(self, record: Record) -> SortKey:
        return self._sort_key(record.key or b"", self._topic.value(record), record)

    def _keep(self, key: bytes, record: Record | None) -> None:
        """Keep the record of a key as it is now; None: it has none that matches."""
        assert self._kept is not None
        if record is None:
            self._kept.pop(key, None)
            return
        self._kept[key] = record
        if self._records_max is not None and len(self._kept) > self._records_max:
            raise ConfigurationError(
                f"option 'conflation_key': more than {self._records_max:,} records match, and their groups cannot be "
                "made in between other work; ask for fewer by the filter"
            )

    def _cut_first(self) -> SortKey:
        """Keep the smallest of the first keys; returns the largest of them."""
        self._first.sort()
        del self._first[self._first_places :]
        return self._first[-1]

    def _begin_order(self) -> None:
        """Put the smallest keys of the scan at their places; the others are for `_sort`."""
        places = self.places
        if self._first_end is not None:
            self._cut_first()
            places.bound = self._first.pop()
            places.later = self
            self._later = SlicedSort(self._scanned, places.bound, self._bucket_keys)
        places.order.update(self._first)
        self._scanned, self._first = [], []
        self._is_scanned = True

    def _catch_up(self, records_max: int) -> None:
        """Put the next updated keys in their places."""
        for _ in range(min(records_max, len(self._updated))):
            self._place(*self._updated.popitem())
        if not self._updated:
            self.places.is_loaded = True
            self.is_done = self._later is None

    def _sort(self, keys_max: int) -> None:
        """Put the next keys, in order, at the end."""
        later, places = self._later, self.places
        assert later is not None
        part = later.advance(keys_max)
        if self._moved:
            part = self._of_now(part)
        add = places.order.add
        for sort_key in part:
            add(sort_key)
        if later.is_done:
            places.bound = places.later = self._later = None
            self._moved.clear()
            self.is_done = places.is_loaded  # A key that was removed during `_catch_up` may have led here.
        elif later.bound is not None:
            places.bound = later.bound

    def _of_now(self, keys: list[SortKey]) -> list[SortKey]:
        """The keys, each once, without those of records that have moved since."""
        sort_keys, moved = self.places.sort_keys, self._moved
        now: list[SortKey] = []
        for key in keys:
            if key[-1] not in moved or (sort_keys.get(key[-1]) == key and not (now and now[-1] == key)):
                now.append(key)
        return now

    def _place(self, key: bytes, sort_key: SortKey | None) -> None:
        if sort_key is None:
            self.places.remove(key)
        else:
            self.places.put(key, sort_key)

    def _matches(self, selection: Filter, value: Value, record: Record) -> bool:
        return selection.matches(value, self._topic.metadata_of(record) if selection.uses_metadata else NO_METADATA)

    def _sort_key(self, key: bytes, value: Value, record: Record) -> SortKey:
        metadata = self._topic.metadata_of(record) if self._order.uses_metadata else NO_METADATA
        return self._order.key(key, value, metadata)
