"""The records and marks of one partition in Spark's state store, and their encoding.

    map        key                         value
    buckets    see `buckets`
    expiring   time in ms, ASCII decimal   keys, each as its length, little-endian uint32, and the key
    marks      name for one occasion       value
    kept       see `processor`

A micro-batch reads the bucket of each of its keys once, and writes each changed bucket once, at its end.

A record that expires has one entry in `expiring`, at its end or, if it was touched later, at an earlier time. When that
time comes, a record that was touched since gets an entry at its new end: a key that is touched each second costs one
entry and not thousands.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from processor.errors import Stop
from processor.record import Stored
from processor.wire.publisher_mark import is_one_shot, mark_record
from spark_integration.merge.partition_merge import refuse_scan

if TYPE_CHECKING:
    from processor.record import Outgoing, Record
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.streaming.buckets import Buckets, BulkMap, Entry


GRACE_MS: Final = 1_000
"""Delay of an expiry without input: the longest time that a publish may have been on its way to Kafka when the
micro-batch began."""

BUCKET_MS: Final = 500
"""Records that end within this time are checked together."""

_DELAY_MS_MAX: Final = 60_000

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__
_LENGTH = struct.Struct("<I")
_PLAIN_FIELDS: Final = 6
"""The fields of an entry without `group_stamps`."""

_WINDOW: Final = struct.Struct("<QQ")  # Records seen, and records rejected.
_EXAMPLE_CHARACTERS_MAX: Final = 300
_BY_OFFSET: Final = attrgetter("offset")


class SparkState:
    """The records of one partition, during one micro-batch."""

    def __init__(self, buckets: Buckets, expiring: BulkMap) -> None:
        self._buckets, self._expiring = buckets, expiring
        self._known: dict[bytes, Stored | None] = {}
        self._placed_at: dict[bytes, int] = {}
        self._changed: dict[bytes, None] = {}
        self._due: deque[tuple[int, bytes]] = deque()

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        """The states of these keys."""
        cache = self._known
        if missing := [key for key in dict.fromkeys(keys) if key not in cache]:
            for key, entry in self._buckets.get_many(missing):
                if entry is None:
                    cache[key] = None
                    continue
                cache[key] = _new(Stored, (*entry[:5], entry[6] if len(entry) > _PLAIN_FIELDS else b""))
                if entry[5]:
                    self._placed_at[key] = entry[5]
        return {key: cache[key] for key in keys}

    def get_some(self, keys: Sequence[bytes], bytes_max: int) -> tuple[dict[bytes, Stored | None], int]:  # noqa: ARG002
        """The states of all these keys: Spark bounds its batches."""
        return self.get_many(keys), len(keys)

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Store changes; `flush` writes them to Spark's store."""
        self._known.update(changes)
        self._changed.update(dict.fromkeys(changes))

    def due(self, until_ms: int, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The records due until a time, among the keys of `look_at`."""
        due, cache = self._due, self._known
        expired: list[tuple[bytes, Stored]] = []
        while due and due[0][0] <= until_ms and len(expired) < keys_max:
            time_ms, key = due.popleft()
            stored = cache[key]
            if stored is not None and stored.expires_at_ms == time_ms:
                expired.append((key, stored))
        # They stay due until `put_many`.
        due.extendleft((stored.expires_at_ms, key) for key, stored in reversed(expired))
        return expired

    def scan(self, after: bytes | None, keys_max: int) -> list[tuple[bytes, Stored]]:  # noqa: ARG002
        """Reject the scan; see `refuse_scan`."""
        refuse_scan()

    def expiring(self, time_ms: int) -> list[bytes]:
        """Remove and return the keys with an entry at a past time."""
        name = b"%d" % time_ms
        row = self._expiring.get_many([name])[name]
        if row is None:
            return []
        self._expiring.put_many({name: None})
        return list(dict.fromkeys(_keys(row)))

    def look_at(self, keys: Sequence[bytes], time_ms: int) -> None:
        """Check the keys of a time's entry: a key that is still placed there may be due, or gets a new entry."""
        states = self.get_many(keys)
        here = [key for key in keys if self._placed_at.get(key) == time_ms and states[key] is not None]
        for key in here:
            self._placed_at[key] = 0
            self._changed[key] = None
        due = [(stored.expires_at_ms, key) for key in here if (stored := states[key]) and stored.expires_at_ms]
        self._due = deque(sorted(due))

    def flush(self, now_ms: int, until_ms: int) -> list[int]:
        """Write all changes, and clear the cache.

        Args:
            now_ms: the time of the micro-batch.
            until_ms: the time until which all records have been processed.

        Returns:
            The times for new timers, at which records may expire.
        """
        if not self._changed:
            self._known, self._placed_at = {}, {}
            return []
        entries: dict[bytes, Entry | None] = {}
        placed: defaultdict[int, list[bytes]] = defaultdict(list)
        # A job that is behind must not check waiting records again and again.
        earliest_ms = now_ms + 1 + min((now_ms - until_ms) // 2, _DELAY_MS_MAX)
        for key in self._changed:
            stored = self._known[key]
            if stored is None:
                entries[key] = None
                continue
            placed_at = self._placed_at.get(key, 0)
            if stored.expires_at_ms:
                time_ms = max(_bucket(stored.expires_at_ms), earliest_ms)
                if not placed_at or time_ms < placed_at:
                    placed_at = time_ms
                    placed[time_ms].append(key)
            plain = (*stored[:5], placed_at)
            entries[key] = (*plain, stored.group_stamps) if stored.group_stamps else plain
        self._buckets.put_many(entries)
        self._known, self._placed_at, self._changed = {}, {}, {}
        return self._place(placed)

    def _place(self, placed: Mapping[int, Sequence[bytes]]) -> list[int]:
        """Add keys to the entries of their times; returns the times without an earlier entry."""
        if not placed:
            return []
        there = self._expiring.get_many([b"%d" % time_ms for time_ms in placed])
        rows = {name: (there[name] or b"") + _row(keys) for name, keys in zip(there, placed.values(), strict=True)}
        self._expiring.put_many(rows)
        return [int(name) for name, row in there.items() if row is None]


class SparkMarks:
    """The marks of one partition, during one micro-batch."""

    def __init__(self, marks: BulkMap, kept: BulkMap) -> None:
        """Create it.

        Args:
            marks: the map state of names for one occasion, from which an unchanged one goes after a time. Older
                checkpoints have the marks of all publishers there.
            kept: the map state of all other marks, which stay.
        """
        self._marks, self._kept = marks, kept
        self._known: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, bytes] = {}

    def get(self, name: bytes) -> bytes | None:
        """The value of a mark; None for a missing one."""
        if name not in self._known:
            value = self._kept.get_many([name])[name]
            self._known[name] = self._marks.get_many([name])[name] if value is None else value
        return self._known[name]

    def put(self, name: bytes, value: bytes) -> None:
        """Change a mark; `flush` writes it to Spark's store."""
        self._known[name] = self._changed[name] = value

    def flush(self) -> list[Outgoing]:
        """Write all changes; returns the records for the mark topic."""
        changed, self._changed = self._changed, {}
        once = {name: value for name, value in changed.items() if is_one_shot(name, value)}
        self._marks.put_many(once)
        self._kept.put_many({name: value for name, value in changed.items() if name not in once})
        return [mark_record(name, text) for name, text in changed.items()]


def _bucket(expires_at_ms: int) -> int:
    """The first time at which all records with this end, or one shortly before, can be checked."""
    return -(-(expires_at_ms + GRACE_MS) // BUCKET_MS) * BUCKET_MS


def _row(keys: Sequence[bytes]) -> bytes:
    return b"".join([_LENGTH.pack(len(key)) + key for key in keys])


def _keys(row: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(row):
        (length,) = _LENGTH.unpack_from(row, at)
        at += _LENGTH.size
        yield row[at : at + length]
        at += length


class RejectWindow:
    """The last records of one partition's input, of which too many may be rejected: then the partition stops.

    Probably a setting is wrong then, not the records. As for workers (`dlq_max_ratio`, `dlq_window_records`), with one
    difference: a window begins with its first rejected record, so that a partition without any keeps nothing.
    """

    def __init__(self, settings: TopicSettings, partition: int, kept: bytes | None) -> None:
        """Continue the window that the previous micro-batch has kept; None begins a new one."""
        self._settings, self._partition = settings, partition
        self._records = settings.topic.dlq_window_records
        self._rejected_max = settings.topic.dlq_max_ratio * self._records
        self._kept = kept
        self._seen, self._rejected = (0, 0) if kept is None else _WINDOW.unpack(kept)
        self._pending: dict[int, tuple[str, str]] = {}

    def rejected(self, record: Record, reason: str, detail: str) -> None:
        """Note a rejected record, which counts with the next `took`; one that is noted twice counts once."""
        if reason != "skipped":
            self._pending[record.offset] = reason, detail[:_EXAMPLE_CHARACTERS_MAX]

    def took(self, records: Sequence[Record]) -> None:
        """Count records that were merged or rejected.

        Raises:
            Stop: too many of a window were rejected.
        """
        pending, self._pending = self._pending, {}
        begin = 0
        for offset in sorted(pending):
            place = bisect_left(records, offset, key=_BY_OFFSET)
            self._pass(place - begin)
            begin = place + 1
            self._rejected += 1
            self._seen += 1
            if self._rejected > self._rejected_max:
                self._stop(pending, offset)
            self._pass(0)
        self._pass(len(records) - begin)

    @property
    def changed(self) -> bool:
        """True if there is another window to keep."""
        return self.value != self._kept

    @property
    def value(self) -> bytes | None:
        """The window for the next micro-batch; None where it has no rejected record."""
        return _WINDOW.pack(self._seen, self._rejected) if self._rejected else None

    def _pass(self, count: int) -> None:
        """Count records that were not rejected, and end the window where it is full."""
        if self._rejected:
            self._seen += count
        if self._seen >= self._records:
            self._seen = self._rejected = 0

    def _stop(self, pending: dict[int, tuple[str, str]], offset: int) -> None:
        topic, settings = self._settings.topic, self._settings
        reason, detail = pending[offset]
        count = Counter(reason for reason, _ in pending.values())[reason]
        raise Stop(
            f"{settings.kafka_topic('publish')} partition {self._partition}: {self._rejected} of {self._seen} records "
            f"in a row were rejected, at least {count} as {reason}, such as offset {offset}: {detail}. Nothing of this "
            "micro-batch is kept. If the topic's settings are wrong (message_type, schema, key), mend them and start "
            "the query again with its checkpoint. If the publisher is, mend it, and let these records pass with a "
            f"higher topics.{settings.name}.dlq_max_ratio (now {topic.dlq_max_ratio:g}; 1 stops nothing)"
        )
