"""The state of a partition as its processor sees it: uncommitted over unwritten changes, a cache, and the store."""

from __future__ import annotations

import math
from collections import ChainMap
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from processor.errors import StateBehind, StateDamaged
from processor.store.contract import Progress
from processor.store.key_indexes import ChangedKeys, Expiry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from processor.record import Stored
    from processor.store.contract import Store, WipeReason

_ENTRY_BYTES = (
    256  # A key, its dict slot, the tuple, its numbers and the headers of the bytes objects; measured with tracemalloc.
)
_PIECE_KEYS = 64  # Records read at once while their size is being limited.
_STALE_KEYS = 1_000  # So many keys that were written since may be among the changed ones of a scan.
_REFRESH_MS = 600_000  # Greatest age of the progress of a quiet partition's store; the least horizon is hours.
_UNKNOWN: Final = cast("Stored", object())


class _Layer(dict[bytes, "Stored | None"]):
    """The last change of each key in one stage, and about how many bytes of memory all changes take."""

    __slots__ = ("counted", "size_bytes")

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0
        """The number of changes in the size: more than there are keys, if a key counts for several."""
        self.size_bytes = 0

    def add(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Add newer changes."""
        self.update(changes)
        if isinstance(changes, _Layer):
            self.counted += changes.counted
            self.size_bytes += changes.size_bytes
        else:
            self.counted += len(changes)
            self.size_bytes += _size(changes.values())

    def recount(self) -> None:
        """Make each key count once."""
        if self.counted > len(self):
            self.counted, self.size_bytes = len(self), _size(self.values())


class LayeredState:
    """One partition's state: dicts of encoded records in front of the store.

    ::

        staged      changed since `prepare`: of the transaction after the one that is being committed
        prepared    changed by the transaction that is being committed: kept by `commit`; `rollback` drops both
        unwritten   committed and not yet in the store, last state per key
        writing     the same, on its way there: piece by piece, as nothing is merged meanwhile; its position comes last
        known       the newest state of every key in memory: of these four, and cached records of the store

    Every read of the hot path is one look-up in `known`; the other dicts track the stage of each change. Records stay
    bytes: a cache of parsed ones takes more memory and feeds the garbage collector.
    """

    def __init__(self, store: Store, *, cache_bytes: int, on_wipe: Callable[[WipeReason], None] | None = None) -> None:
        """Put the layers in front of a store.

        Args:
            store: the committed records.
            cache_bytes: the size of the cache of the store's records.
            on_wipe: called with the reason whenever the store is wiped.
        """
        self.store = store
        self._on_wipe = on_wipe
        self._cache_bytes_max = cache_bytes
        self._expiry: Expiry | None = None  # Only for processors that use expiry.
        self._begin_at(store.progress())

    def _begin_at(self, progress: Progress) -> None:
        """Drop everything that is not in the store."""
        self._known: dict[bytes, Stored | None] = {}
        self._clean_bytes = 0
        self._staged, self._prepared, self._unwritten, self._writing = _Layer(), _Layer(), _Layer(), _Layer()
        # The part still to be written; None: the write has ended.
        self._pieces: Iterator[tuple[bytes, Stored | None]] | None = None
        self._changed_keys: ChangedKeys | None = None  # Of all four dicts, and some that were written; for scans only.
        self._position = progress.position
        self._written = progress
        self._writes = progress  # The store's progress after the write.
        self._restart_expiry(same=False)

    @property
    def unwritten_bytes(self) -> int:
        """About how many bytes wait to be written or are being written; a key may count once for each change."""
        return self._unwritten.size_bytes + self._writing.size_bytes

    def recount(self) -> None:
        """Make each key that waits count once.

        The rarer the writes to the store, the more changes of a key they combine; looking every key up with every
        commit, only to count it once, would be wasted work.
        """
        self._unwritten.recount()
        self._writing.recount()

    @property
    def is_writing(self) -> bool:
        """True if `write_some` must be called again."""
        return self._pieces is not None

    @property
    def position(self) -> int:
        """The SOW offset after the last committed change, written or not."""
        return self._position

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        """The states of these keys, None where there is none."""
        look_up = self._known.get
        states = {key: look_up(key, _UNKNOWN) for key in keys}
        missing = [key for key, stored in states.items() if stored is _UNKNOWN]
        if missing:
            self._read(missing, states)
        return states

    def get_some(self, keys: Sequence[bytes], bytes_max: int) -> tuple[dict[bytes, Stored | None], int]:
        """`get_many` for the first of these keys, up to a size of the store's records; also returns their number."""
        look_up = self._known.get
        states = {key: look_up(key, _UNKNOWN) for key in keys}
        missing = [key for key, stored in states.items() if stored is _UNKNOWN]
        left_bytes, begin = bytes_max, 0
        while begin < len(missing) and left_bytes > 0:
            piece = missing[begin : begin + _PIECE_KEYS]
            left_bytes -= self._read(piece, states)
            begin += _PIECE_KEYS
        if begin >= len(missing):
            return states, len(keys)
        unread = set(missing[begin:])
        return states, next(number for number, key in enumerate(keys) if key in unread)

    def _read(self, keys: Sequence[bytes], states: dict[bytes, Stored | None]) -> int:
        """Add the store's records of these keys to `states`; returns about how many bytes of memory they take."""
        read = dict(zip(keys, self.store.get_many(keys), strict=True))
        states.update(read)
        # A key that is not there is a new one: its record takes the place soon, and others keep theirs until then.
        return self._remember({key: stored for key, stored in read.items() if stored is not None})

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Stage changes; None deletes."""
        self._staged.add(changes)  # Counted now, while they are in the processor's cache.
        self._known.update(changes)
        if self._changed_keys is not None:
            self._changed_keys.add(changes)
        if self._expiry is not None:
            self._expiry.put(changes)

    def due(self, until_ms: int, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The states that expire until then, in order of time, at most `keys_max`; due until they are put again.

        Raises:
            StateDamaged: the store's index and its records contradict each other.
        """
        if self._expiry is None:
            self._expiry = Expiry(self.store)
            self._restart_expiry(same=False)
        if until_ms < self._expiry.first_ms:
            return []  # Most calls end here.
        newest = ChainMap(self._staged, self._prepared, self._unwritten, self._writing)
        expiring = self._expiry.due(newest, until_ms, keys_max)
        if not expiring:
            return []
        states = self.get_many([key for _, key in expiring])
        due = []
        for expires_at_ms, key in expiring:
            stored = states[key]
            if stored is None or stored.expires_at_ms != expires_at_ms:
                says = "is not there" if stored is None else f"says {stored.expires_at_ms}"
                raise StateDamaged(f"the index says that {key!r} expires at {expires_at_ms}; its record {says}")
            due.append((key, stored))
        return due

    @property
    def next_due_ms(self) -> float:
        """No state expires before this time, milliseconds since the epoch; infinity where `due` is not used."""
        return math.inf if self._expiry is None else self._expiry.first_ms

    def scan(self, after: bytes | None, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The states of the next keys in key order, uncommitted and unwritten changes included.

        Args:
            after: the key before them; None begins with the first.
            keys_max: the most to return; fewer are returned only at the end.
        """
        live: list[tuple[bytes, Stored]] = []
        layers = self._staged, self._prepared, self._unwritten, self._writing  # The newest comes first.
        if self._changed_keys is None:
            self._changed_keys = ChangedKeys(key for layer in layers for key in layer)
        while True:
            # One changed key more than asked for: all keys behind it belong to a later piece.
            changed = self._changed_keys.first(after, keys_max + 1)
            last = changed[keys_max] if len(changed) > keys_max else None
            rows = list(islice(self.store.scan(after), keys_max))
            # Changed keys after the last row belong to a later piece, unless the store has no more rows.
            until = rows[-1][0] if len(rows) == keys_max else None
            if last is not None and (until is None or last < until):
                until = last
            states: dict[bytes, Stored | None] = {key: row for key, row in rows if until is None or key <= until}
            for key in changed:
                if until is not None and key > until:
                    break
                for layer in layers:
                    if key in layer:
                        states[key] = layer[key]
                        break
            live += [(key, stored) for key in sorted(states) if (stored := states[key]) is not None]
            if until is None or len(live) >= keys_max:
                return live[:keys_max]
            after = until  # Some of them are deleted, and the store does not have the deletes yet.

    def prepare(self) -> None:
        """Close the set of changes that is committed next; later changes are not part of it."""
        assert not self._prepared
        self._prepared, self._staged = self._staged, _Layer()

    def rollback(self) -> None:
        """Drop the uncommitted changes: the staged and the prepared ones."""
        changed = self._prepared | self._staged
        for key in changed:
            if key in self._unwritten:
                self._known[key] = self._unwritten[key]
            elif key in self._writing:
                self._known[key] = self._writing[key]
            else:
                del self._known[key]
        if changed:
            self._prepared, self._staged = _Layer(), _Layer()
            self._restart_expiry(same=False)

    def commit(self, position: int | None) -> None:
        """Mark the prepared changes as committed.

        Args:
            position: the SOW offset after the transaction's last record; None if it wrote none.
        """
        self._unwritten.add(self._prepared)
        self._prepared = _Layer()
        if position is not None:
            self._position = position

    def restore(self, changes: Mapping[bytes, Stored | None], position: int, as_of_ms: int) -> None:
        """Apply records read back from the SOW topic; no change may be staged or prepared.

        Args:
            changes: the last record of each key; None deletes.
            position: the offset after them.
            as_of_ms: the time of the last of them, or now if no record follows.
        """
        assert not self._staged
        assert not self._prepared
        for key in changes:
            self._known.pop(key, None)
        if self._unwritten or self.is_writing:
            self._unwritten.add(changes)
            if self._changed_keys is not None:
                self._changed_keys.add(changes)
            self._position = position
            self.write(as_of_ms)
        else:
            self._apply(changes, position, as_of_ms)
        self._restart_expiry(same=not changes)

    @property
    def can_load(self) -> bool:
        """True if `load` may be used."""
        return not self._unwritten and not self.is_writing and self.store.can_load

    def load(self, rows: Mapping[bytes, bytes | None], position: int, as_of_ms: int, *, is_many: bool) -> None:
        """Apply encoded records, of which none expires, as `restore` does; for very many."""
        assert not self._staged
        assert not self._prepared
        assert not self._unwritten
        assert not self.is_writing
        if self._known:
            self._known = {}
            self._clean_bytes = 0
        progress = Progress(position, max(as_of_ms, self._written.applied_at_ms))
        self.store.load(rows, progress, is_many=is_many)
        self._written, self._position = progress, position
        self._restart_expiry(same=False)

    def write(self, now_ms: int) -> None:
        """Write the store up to the committed position; `now_ms` is a time before all later records, 0 if unknown."""
        self._write_rest()
        self.start_writing(now_ms)
        self._write_rest()

    def start_writing(self, now_ms: int) -> None:
        """Start writing the store up to the present position, with `write_some`; `now_ms` as for `write`."""
        is_fresh = now_ms - self._written.applied_at_ms < _REFRESH_MS
        is_done = not self._unwritten and self._written.position == self._position and is_fresh
        if is_done or self._pieces is not None:
            return
        self._writing, self._unwritten = self._unwritten, _Layer()
        self._pieces = iter(self._writing.items())
        self._writes = Progress(self._position, max(now_ms, self._written.applied_at_ms))

    def write_some(self, keys_max: int) -> None:
        """Write the states of the next `keys_max` keys, after `start_writing`."""
        assert self._pieces is not None
        piece = dict(islice(self._pieces, keys_max))
        is_last = len(piece) < keys_max
        try:
            self.store.apply(piece, self._writes if is_last else None)
        except BaseException:
            # All of it waits again. Its position does not move: `close` would write a position whose records were
            # refused.
            self._writing.add(self._unwritten)
            self._unwritten, self._writing, self._pieces = self._writing, _Layer(), None
            raise
        if is_last:
            self._written = self._writes
            written, self._writing, self._pieces = self._writing, _Layer(), None
            self._forget_clean()
            if self._changed_keys is not None and len(self._changed_keys) > 2 * len(self._known) + _STALE_KEYS:
                self._changed_keys = None  # Most of them are written: the next scan collects the others.
            known = self._known
            clean = {key: stored for key, stored in written.items() if key not in known} if known else written
            self._remember(clean, written.size_bytes if len(clean) == written.counted else None)
            self._restart_expiry(same=True)

    def usage(self) -> dict[str, int]:
        """The bytes of memory and disk by kind: of the store, of unwritten changes, and of the cache."""
        return {**self.store.usage(), "unwritten": self.unwritten_bytes, "known": self._clean_bytes}

    def wipe(self, reason: WipeReason = "damaged") -> None:
        """Delete everything, also in the store."""
        self.store.wipe()
        if self._on_wipe is not None:
            self._on_wipe(reason)
        self._begin_at(Progress(0, 0))

    def heal(self, error: StateDamaged) -> None:
        """Wipe a damaged state; go back to the store's records if the store is only behind."""
        if isinstance(error, StateBehind):
            self._begin_at(self.store.progress())
        else:
            self.wipe()

    def close(self, now_ms: int) -> None:
        """Drop uncommitted changes, write the rest as `write` does, and close the store."""
        self.rollback()
        try:
            self.write(now_ms)
        finally:
            self.store.close()

    def _write_rest(self) -> None:
        """Write the rest of the states that are being written."""
        if self.is_writing:
            self.write_some(len(self._writing) + 1)

    def _apply(self, changes: Mapping[bytes, Stored | None], position: int, as_of_ms: int) -> None:
        progress = Progress(position, max(as_of_ms, self._written.applied_at_ms))
        self.store.apply(changes, progress)
        # Not before: `close` would write a position whose records the store has refused.
        self._written, self._position = progress, position

    def _restart_expiry(self, *, same: bool) -> None:
        if self._expiry is not None:
            self._expiry.restart([self._writing, self._unwritten, self._prepared, self._staged], same=same)

    def _remember(self, read: Mapping[bytes, Stored | None], size: int | None = None) -> int:
        """Cache records of the store, within the limit; returns about how many bytes of memory they take."""
        if size is None:
            size = _size(read.values())
        if size > self._cache_bytes_max:
            return size
        if self._clean_bytes + size > self._cache_bytes_max:
            self._forget_clean()
        self._known.update(read)
        self._clean_bytes += size
        return size

    def _forget_clean(self) -> None:
        """Drop the cached records of the store."""
        self._known = self._writing | self._unwritten | self._prepared | self._staged
        self._clean_bytes = 0


def _size(states: Collection[Stored | None]) -> int:
    """About how many bytes of memory these states take, with their keys."""
    return len(states) * _ENTRY_BYTES + sum([len(stored[1]) for stored in states if stored is not None])
