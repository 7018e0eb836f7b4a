"""The plug-in `conflate`: holds updates back, delivers the due ones, and limits how far the input is committed."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import Counter
from heapq import nlargest
from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Input, Output, Processor, Record, RecordRejected
from processor.api.builtin import builtin_context
from processor.builtin.conflate.delivery import Delivery, Reader
from processor.builtin.conflate.pending import UNREAD_MAX, PendingUpdates, pack_head
from processor.config import ConflatedConfig
from processor.errors import PartitionHeld, Stop, rejection
from processor.filter.filter import compile_selection, require_fields, selects
from processor.merge import KeyFields
from processor.wire.record_headers import NO_CONFLATE, is_at_once, plain_versions, version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Stored
    from processor.builtin.conflate.pending import Pending
    from processor.filter import Filter


NEAR_MS: Final = 1_000
"""A difference of this size between a record's timestamp and the clock is no backlog: commits and fetches take time."""

_STEP: Final = 2.0
_RELAX: Final = 0.8


class AdaptiveInterval:
    """The length of the interval of all keys, fixed or by the backlog.

    - **Fixed**, the interval stays as it is, however far the reader is behind its input and however much clocks differ.
      A reader that is behind folds more all the same, as more updates of a key meet in one interval.
    - **Auto**, it lies between a floor and a ceiling. Once an interval the backlog is looked at: one of more than the
      interval (and a second) doubles it, none takes a fifth of it back. The longer it is, the more updates become one,
      and the fewer are delivered.
    """

    def __init__(self, floor_ms: int, ceiling_ms: int) -> None:
        """Begin at the floor, with no backlog; a fixed interval has a ceiling that is its floor."""
        self._floor_ms = floor_ms
        self._ceiling_ms = ceiling_ms
        self._next_ms = 0
        self.interval_ms = floor_ms
        """The length of an interval now, milliseconds."""

    def observe_lag(self, now_ms: int, lag_ms: int) -> None:
        """Adapt the interval to the backlog: the age of the last record read; 0 if no record is waiting."""
        if self._ceiling_ms == self._floor_ms or now_ms < self._next_ms:
            return
        backlog_ms = lag_ms - NEAR_MS
        if backlog_ms > self.interval_ms:
            self.interval_ms = min(self._ceiling_ms, int(self.interval_ms * _STEP))
        elif backlog_ms <= 0:
            self.interval_ms = max(self._floor_ms, int(self.interval_ms * _RELAX))
        self._next_ms = now_ms + self.interval_ms

    def shift(self, by_ms: int) -> None:
        """Adjust to a clock that was set back."""
        self._next_ms -= by_ms


NOTE_BYTES_MAX: Final = 1000
"""Longest note; of the rejected records it names the newest, and a successor may reject older ones again."""

_NOTE: Final = re.compile(r"seen (at least )?([0-9]{1,19})(?: rejected((?: [0-9]{1,19})+))?")


class ReplayGuard:
    """The stretch of input between the committed position, that of the oldest pending update, and the last record read.

    The next owner of the partition reads these records again. The states of their keys show which of them were
    delivered, except for keys that were deleted. So nothing is delivered before all of them have come again: a key that
    was inserted, delivered, deleted and delivered again was, read a second time at once, never there. The note that is
    committed with the position lists the records that were rejected.
    """

    def __init__(self, noted: str) -> None:
        """Read the predecessor's note; there is none if a tool set the position."""
        note = _NOTE.fullmatch(noted)
        self.until = -1 if note is None else int(note[2])
        """The offset after the last record that was seen."""
        self.is_noted = note is not None
        """True if a predecessor left a note; a tool that sets the group's offsets leaves none."""
        self.is_exact = note is not None and note[1] is None
        """True if no predecessor has seen more. If the position was set back, one may have read up to the end."""
        self._again_until = None if note is None else self.until
        self._came_until = 0
        self.rejected = set() if note is None else {self.until - int(back) for back in (note[3] or "").split()}
        """Offsets of the records that were rejected, as far as they are behind the committed position."""

    def parted(self, records: Sequence[Record]) -> tuple[Sequence[Record], Sequence[Record]]:
        """Divide the next records: those that a predecessor may have seen, and those that none has seen."""
        if self._again_until is None:
            return records, []
        offsets = [record.offset for record in records]
        first_new = bisect_left(offsets, self._again_until)
        return records[:first_new], records[first_new:]

    def took(self, records: Sequence[Record]) -> None:
        """Note that these records have been seen."""
        self._came_until = records[-1].offset + 1
        self.until = max(self.until, self._came_until)

    def unrejected(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records that no predecessor rejected."""
        if not self.rejected:
            return records
        return [record for record in records if record.offset not in self.rejected]

    def note(self, held_offset: int | None) -> str:
        """Return the note for a successor that begins at an offset; None: after the last record that came."""
        begin = self._came_until if held_offset is None else held_offset
        # Earlier records do not come again.
        self.rejected = {offset for offset in self.rejected if offset >= begin}
        text = f"seen {self.until}" if self.is_exact else f"seen at least {self.until}"
        if not self.rejected:
            return text
        back = " ".join([str(self.until - offset) for offset in nlargest(NOTE_BYTES_MAX // 2, self.rejected)])
        text = f"{text} rejected {back}"
        return text if len(text) <= NOTE_BYTES_MAX else text[: text.rindex(" ", 0, NOTE_BYTES_MAX + 1)]


_PIECE_S: Final = 0.05
"""Processor time after which a piece of deliveries should end."""

DELIVERED_MAX: Final = 2_000
"""Keys delivered at once: where many are due, input and commits have their turn in between."""


def _selected(name: str, settings: ConflatedConfig) -> Filter | None:
    """Compile the filter of a copy; None: it has every record."""
    reason = "a copy changes with its topic alone"
    return compile_selection(f"conflated.{name}.filter", settings.filter, changes_with=reason)


class Conflate(Processor):
    """Holds back the updates of one partition; its state is the records that it delivered.

    Nothing pending is written anywhere: the input position that may be committed never passes an update that is not
    delivered, so a successor reads it again. It recognises a delivered update by the input offset in the header
    `source` of the conflated record and by the version: neither is above those of the conflated record. Versions alone
    prove nothing, as they began at 1 again after a delete in former releases, and offsets mean nothing on another
    cluster.
    """

    settings_type = ConflatedConfig
    input: ClassVar[Input] = Input("sow", from_underlying=True)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("delta"))
    keeps_input_keys: ClassVar[bool] = True

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse a filter that cannot be used."""
        assert isinstance(settings, ConflatedConfig)
        if _selected(name, settings) is not None and codec is not None:
            require_fields(f"conflated.{name}.filter", settings.underlying, can_delta=codec.can_delta)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with nothing pending."""
        assert isinstance(settings, ConflatedConfig)
        self._context = context
        self._source = f"{context.source_topic}/{context.partition}/".encode()
        self._key = KeyFields(context.topic.key_fields)
        self._pending = PendingUpdates(keys_max=settings.max_pending, bytes_max=settings.max_pending_bytes)
        self._interval = AdaptiveInterval(*settings.interval_range_ms)
        self._has_filter, self._piece_keys = settings.filter is not None, DELIVERED_MAX
        selected = _selected(context.name, settings)
        is_selected = None if selected is None else selects(selected, settings.underlying)
        self._reader = Reader(context.codec, is_selected, self._reject)
        self._replay_guard = ReplayGuard(context.noted)
        self._begin_offset = builtin_context(context).lives.next_offset
        self._is_again = True  # The next input may have been seen before.
        # Nothing is delivered before all input that was seen has come again.
        self._must_wait = self._replay_guard.is_noted
        self._clock_ms = 0

    def process(self, records: Sequence[Record]) -> None:
        """Add updates to those that wait; an update with `no_conflate` ends its interval at once."""
        now_ms = self._now(self._context.now_ms)
        self._replay_guard.took(records)
        if self._is_again:
            again, records = self._replay_guard.parted(records)
            self._take(self._not_yet_delivered(again), now_ms)
            self._must_wait = self._must_wait and not records
            if self._replay_guard.is_exact:
                self._is_again = not records
            else:
                records = self._not_yet_delivered(records)
        self._take(records, now_ms)
        self._make_room()
        self._hold()

    def punctuate(self, now_ms: int) -> bool:
        """Deliver the keys whose interval has ended; return whether there are more."""
        now_ms = self._now(now_ms)
        stream_time_ms = self._context.stream_time_ms
        is_at_end = self._context.is_at_end
        self._interval.observe_lag(now_ms, 0 if is_at_end or not stream_time_ms else now_ms - stream_time_ms)
        if is_at_end:
            # A replica that lags reports the end too early: input that a predecessor had seen may still come.
            self._is_again = self._is_again and self._replay_guard.is_noted
            self._replay_guard.is_exact, self._must_wait = True, False
        due: dict[bytes, Pending] = {}
        if not self._must_wait:
            began_s, count = time.thread_time(), self._piece_keys
            due = self._pending.due(now_ms - self._interval.interval_ms, count)
            self._observe_lateness(due, now_ms)
            self._deliver(due)
            self._hold()
            if self._has_filter:
                # A costly filter may take a millisecond for each update: fewer keys, then, in each piece.
                share = (time.thread_time() - began_s) / _PIECE_S
                self._piece_keys = max(1, int(count / share)) if share > 1 else min(DELIVERED_MAX, 2 * count)
            self._set_gauges(now_ms)
            return len(due) == count
        self._set_gauges(now_ms)
        return False

    def _take(self, records: Sequence[Record], now_ms: int) -> None:
        """Add updates to those that wait, each under its key."""
        pending_updates = self._pending
        find = pending_updates.pending.get
        taken = grown_bytes = 0
        # Every update of the topic passes here: updates are parsed later, many of a key at once.
        for record, version in zip(records, plain_versions(records), strict=True):
            key, value, offset = record[0], record[1], record[3]  # Quicker than by their names.
            if key is None:
                self._reject(record, RecordRejected("missing_key", "a SOW record has a key"))
                continue
            pending = find(key)
            if pending is None:
                pending = pending_updates.begin(key, offset, now_ms)
            if not version:
                grown_bytes += pending.keep_headers(record.headers)
            values, heads = pending.values, pending.heads
            values.append(value)
            heads += pack_head(offset, record[4], version)
            value_bytes = 0 if value is None else len(value)
            pending.value_bytes += value_bytes
            grown_bytes += value_bytes
            taken += 1
            if len(values) >= UNREAD_MAX:
                self._read_early(pending)
            if not version and record.headers and NO_CONFLATE in record.headers:
                self._end_at_once(pending, record)
        pending_updates.grew(taken, grown_bytes)

    def _not_yet_delivered(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records of a restart that a predecessor has not delivered."""
        came = self._replay_guard.unrejected(records)
        # The state of a key that waits was read before: its next updates are newer than the delivered one.
        pending = self._pending.pending
        asked = {key: None for record in came if (key := record[0]) is not None and key not in pending}
        states = self._context.state.get_many(list(asked))
        delivered: dict[bytes | None, Stored] = {key: old for key, old in states.items() if old is not None}
        if not came or max([old.source_offset for old in delivered.values()], default=-1) < came[0].offset:
            return came
        begin = self._begin_offset  # Deletes from before it were missed.
        fresh = []
        for record in came:
            old, version = delivered.get(record.key), version_of(record.headers) or 0
            # A copy that was moved here has offsets of another cluster: a higher one proves nothing alone.
            if old is not None and begin <= record.offset <= old.source_offset and version <= old.version:
                continue
            fresh.append(record)
            delivered.pop(record.key, None)  # Later ones are newer.
        if count := len(came) - len(fresh):
            self._context.count("already_delivered", count)
        return fresh

    def _end_at_once(self, pending: Pending, record: Record) -> None:
        """End a key's interval with an update that does not wait, unless it is a bad one."""
        if not is_at_once(record.headers):
            return
        if self._must_wait:
            return  # It was delivered at once the first time, too.
        self._read_early(pending)
        if pending.last is not None and pending.last.offset == record.offset:
            self._deliver({pending.key: self._pending.pop(pending.key)})

    def _read_early(self, pending: Pending) -> None:
        """Look at a key's updates before its interval is over."""
        size_bytes = pending.size_bytes
        self._reader.read(pending, self._context.state.get_many([pending.key])[pending.key])
        self._pending.shrank(pending, size_bytes)

    def _make_room(self) -> None:
        """Free memory if updates take too much: drop the superseded ones, then deliver the oldest keys early."""
        if is_heavy := self._pending.is_heavy:
            for pending in self._pending.overtaken.values():
                self._read_early(pending)
        # Some room is left, as each pass looks at every key.
        while overflow := self._pending.overflow(DELIVERED_MAX, leave_room=is_heavy):
            self._context.count("delivered_early", len(overflow))
            self._deliver(overflow)

    def _deliver(self, due: dict[bytes, Pending]) -> None:
        """Send the last state of each key and the paths that were touched."""
        if not due:
            return
        context = self._context
        delivery = Delivery(context.codec, self._key, self._source)
        updates = 0
        for key, old in context.state.get_many(list(due)).items():
            pending = due[key]
            read = self._reader.read(pending, old)
            last = pending.last
            if last is None:
                continue  # None of them was good.
            if read.state is None and old is None:
                context.count("never_delivered")
                continue
            try:
                delivery.add(key, pending, last, read, old)
            except (PartitionHeld, Stop):
                raise
            except Exception as error:  # noqa: BLE001 - a message type may fail in any way
                self._reject(last, rejection(error))
                continue
            updates += pending.count
        context.state.put_many(delivery.states)
        context.forward_many("sow", delivery.sow)
        context.forward_many("delta", delivery.delta)
        if updates:
            context.count("folded", updates)
            context.count("delivered", len(delivery.sow))

    def _reject(self, record: Record, error: RecordRejected) -> None:
        self._context.reject(record, error.reason, error.detail)
        self._replay_guard.rejected.add(record.offset)

    def _hold(self) -> None:
        """Keep the committed input position before the oldest pending update: a successor begins there."""
        oldest = self._pending.oldest
        held_offset = None if oldest is None else oldest.first_offset
        self._context.hold(held_offset, self._replay_guard.note(held_offset))

    def _now(self, now_ms: int) -> int:
        """Return the time; a clock that is set back does not make updates wait longer."""
        if now_ms < self._clock_ms:
            self._pending.shift(self._clock_ms - now_ms)
            self._interval.shift(self._clock_ms - now_ms)
        self._clock_ms = now_ms
        return now_ms

    def _observe_lateness(self, due: dict[bytes, Pending], now_ms: int) -> None:
        """Measure how long after the ends of their intervals keys are delivered."""
        began = Counter([pending.began_ms for pending in due.values()])
        for began_ms, keys in began.items():
            late_ms = now_ms - began_ms - self._interval.interval_ms
            self._context.observe("lateness", max(0, late_ms) / 1000, keys)

    def _set_gauges(self, now_ms: int) -> None:
        oldest = self._pending.oldest
        gauge = self._context.gauge
        gauge("pending_keys", len(self._pending))
        gauge("pending_bytes", self._pending.size_bytes)
        gauge("oldest_pending_seconds", 0.0 if oldest is None else (now_ms - oldest.began_ms) / 1000)
        gauge("interval_seconds", self._interval.interval_ms / 1000)
