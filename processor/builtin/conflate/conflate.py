"""The processor: holds updates back, delivers what is due, and says how far the input may be committed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Input, Output, Processor, Record, RecordRejected
from processor.builtin.conflate.delivery import Delivery
from processor.builtin.conflate.filter import check_selection, selection
from processor.builtin.conflate.interval import Pace
from processor.builtin.conflate.pending import HEADERS_BYTES, UNREAD_MAX, Window, pack_head
from processor.builtin.conflate.reader import Reader
from processor.builtin.conflate.replay_guard import Seen
from processor.builtin.rejection import rejection
from processor.config import ConflatedConfig
from processor.errors import PartitionHeld, Stop
from processor.merge import KeyFields
from processor.wire.heads import NO_CONFLATE
from processor.wire.sow_headers import is_at_once, plain_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api import Codec
    from processor.builtin.conflate.pending import Pending

DELIVERED_MAX: Final = 2_000
"""Keys delivered at once: where many are due, input and commits have their turn in between."""


class Conflate(Processor):
    """Holds back the updates of one partition; its state is what it delivered.

    Nothing pending is written anywhere: the input position that may be committed never passes an update that is not
    delivered, so a successor reads it again. What was delivered it knows by the input offset that the conflated
    record carries as `source`: versions begin anew when a deleted key comes back.
    """

    settings_type = ConflatedConfig
    input: ClassVar[Input] = Input("sow", from_underlying=True)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("delta"))

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse a filter that cannot be used."""
        assert isinstance(settings, ConflatedConfig)
        check_selection(name, settings, codec)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with nothing pending."""
        assert isinstance(settings, ConflatedConfig)
        self._context = context
        self._source = f"{context.source_topic}/{context.partition}/".encode()
        self._key = KeyFields(context.topic.key_fields)
        self._window = Window(keys_max=settings.max_pending, bytes_max=settings.max_pending_bytes)
        self._pace = Pace(*settings.interval_range_ms)
        self._reader = Reader(context.codec, selection(context.name, settings), self._reject)
        self._seen = Seen(context.noted)
        self._is_again = True  # What comes may have been seen before.
        self._must_wait = self._seen.is_noted  # Nothing can be told before all that was seen has come again.
        self._clock_ms = 0

    def process(self, records: Sequence[Record]) -> None:
        """Let updates wait; those marked `no_conflate` end their interval at once."""
        now_ms = self._now(self._context.now_ms)
        self._seen.took(records)
        if self._is_again:
            again, records = self._seen.parted(records)
            self._take(self._not_yet_delivered(again), now_ms)
            self._must_wait = self._must_wait and not records
            if self._seen.is_exact:
                self._is_again = not records
            else:
                records = self._not_yet_delivered(records)
        self._take(records, now_ms)
        self._make_room()
        self._hold()

    def punctuate(self, now_ms: int) -> bool:
        """Deliver the keys whose interval has ended; whether there are more."""
        now_ms = self._now(now_ms)
        stream_time_ms = self._context.stream_time_ms
        self._pace.feel(now_ms, now_ms - stream_time_ms if stream_time_ms else 0)
        if stream_time_ms == now_ms:  # All was read.
            # Still again is what a predecessor had seen: an end that is told by a replica that lags comes too early.
            self._is_again = self._is_again and self._seen.is_noted
            self._seen.is_exact, self._must_wait = True, False
        due: dict[bytes, Pending] = {}
        if not self._must_wait:
            due = self._window.due(now_ms - self._pace.interval_ms, DELIVERED_MAX)
            self._tell_lateness(due, now_ms)
            self._deliver(due)
            self._hold()
        self._tell_levels(now_ms)
        return len(due) == DELIVERED_MAX

    def _take(self, records: Sequence[Record], now_ms: int) -> None:
        """Let these wait, each under its key."""
        window = self._window
        find = window.pending.get
        taken = grown_bytes = 0
        # This loop takes every update of the topic: what an update means is looked at later, for many of a key at once.
        for record, version in zip(records, plain_versions(records), strict=True):
            key, value, offset = record[0], record[1], record[3]  # Quicker than by their names.
            if key is None:
                self._reject(record, RecordRejected("missing_key", "a SOW record has a key"))
                continue
            pending = find(key)
            if pending is None:
                pending = window.begin(key, offset, now_ms)
            if not version:
                pending.keep_headers(record.headers)
                grown_bytes += HEADERS_BYTES
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
        window.grew(taken, grown_bytes)

    def _not_yet_delivered(self, records: Sequence[Record]) -> Sequence[Record]:
        """What comes again after a restart, without what a predecessor was done with."""
        came = self._seen.unrejected(records)
        # A key that waits has been asked about: what comes of it now comes after what was not delivered.
        pending = self._window.pending
        asked = {key: None for record in came if (key := record[0]) is not None and key not in pending}
        states = self._context.state.get_many(list(asked))
        until: dict[bytes | None, int] = {key: old.source_offset for key, old in states.items() if old is not None}
        if not came or max(until.values(), default=-1) < came[0].offset:
            return came
        fresh = [record for record in came if record.offset > until.get(record.key, -1)]
        if known := len(came) - len(fresh):
            self._context.count("already_delivered", known)
        return fresh

    def _end_at_once(self, pending: Pending, record: Record) -> None:
        """End a key's interval with an update that waits for nothing, unless it is a bad one."""
        if not is_at_once(record.headers):
            return
        if self._must_wait:
            return  # What was seen is delivered: it did not wait then either.
        self._read_early(pending)
        if pending.last is not None and pending.last.offset == record.offset:
            self._deliver({pending.key: self._window.pop(pending.key)})

    def _read_early(self, pending: Pending) -> None:
        """Look at a key's updates before its interval is over."""
        size_bytes = pending.size_bytes
        self._reader.read(pending, self._context.state.get_many([pending.key])[pending.key])
        self._window.shrank(pending, size_bytes)

    def _make_room(self) -> None:
        """Forget what has been overtaken, where updates take too much memory; deliver early what is still too much."""
        if is_heavy := self._window.is_heavy:
            for pending in self._window.overtaken.values():
                self._read_early(pending)
        # With room left, for each key is looked at: not to be done again after every few records.
        while overflow := self._window.overflow(DELIVERED_MAX, leave_room=is_heavy):
            self._context.count("delivered_early", len(overflow))
            self._deliver(overflow)

    def _deliver(self, due: dict[bytes, Pending]) -> None:
        """Send each key's last state and what was touched."""
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
        self._seen.rejected.add(record.offset)

    def _hold(self) -> None:
        """The oldest pending update is where a successor must begin."""
        oldest = self._window.oldest
        held_offset = None if oldest is None else oldest.first_offset
        self._context.hold(held_offset, self._seen.note(held_offset))

    def _now(self, now_ms: int) -> int:
        """The clock; what waits is not to wait longer because somebody set it back."""
        if now_ms < self._clock_ms:
            self._window.shift(self._clock_ms - now_ms)
            self._pace.shift(self._clock_ms - now_ms)
        self._clock_ms = now_ms
        return now_ms

    def _tell_lateness(self, due: dict[bytes, Pending], now_ms: int) -> None:
        """How long after the ends of their intervals keys are delivered."""
        began = Counter([pending.began_ms for pending in due.values()])
        for began_ms, keys in began.items():
            late_ms = now_ms - began_ms - self._pace.interval_ms
            self._context.observe("lateness", max(0, late_ms) / 1000, keys)

    def _tell_levels(self, now_ms: int) -> None:
        oldest = self._window.oldest
        gauge = self._context.gauge
        gauge("pending_keys", len(self._window))
        gauge("pending_bytes", self._window.size_bytes)
        gauge("oldest_pending_seconds", 0.0 if oldest is None else (now_ms - oldest.began_ms) / 1000)
        gauge("interval_seconds", self._pace.interval_ms / 1000)
