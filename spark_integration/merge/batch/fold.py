"""Merges sorted records into the last record of every key, in a Spark task: the workers' merge, without Kafka.

The input of a task is sorted by partition, key and offset, and processed in chunks. After a chunk, all its keys but the
last one are finished and leave memory. So a task holds one chunk and the record of one key, regardless of the number of
keys and of the number of deltas of a key.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import eq, itemgetter
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from processor.errors import Stop
from processor.kafka.partitioner import partition_for
from processor.record import Record
from processor.wire.command import is_delete_by_filter
from processor.wire.forwarding import RESERVED
from processor.wire.record_headers import stored_from
from spark_integration.foundation.arrow_records import in_chunks, outgoing, records
from spark_integration.merge.batch.runs.compiled_runs import DENIAL, IS_REPEAT, ChunkOfBatch, CompiledRuns
from spark_integration.merge.batch.runs.sequence_log import Denied, Repeat, SequenceLog
from spark_integration.merge.key_lives import KeyLives
from spark_integration.merge.partition_merge import KeyedState, PartitionMerge

if TYPE_CHECKING:
    from processor.api import Codec
    from processor.record import Outgoing, Stored
    from spark_integration.foundation.settings import TopicSettings

COUNT: Final = "count"
"""Value of column `topic` in a row with a counter: its key is the name, its value the number."""
RECORDS: Final = "records"
"""Counts the records that were merged."""
KEYLESS: Final = "keyless"
"""Counts the records without a key that were left out."""
FOREIGN: Final = "foreign"
"""Counts the records of new keys in another partition than the key's own that were left out."""
BY_FILTER: Final = "by_filter"
"""Counts the deletes by filter, which cannot be merged here."""
SEQUENCED: Final = "sequenced"
"""Counts the sequences that were written for the check of duplicates."""
REJECTED: Final = "rejected/"
"""Prefix of the counters of rejected records; the reason follows."""
BASE_OFFSET: Final = -1
"""The offset of a record of the base, which is no input."""

_CHUNK_RECORDS: Final = 2_000
_COLLECT_CHUNKS: Final = 500


@dataclass(frozen=True, slots=True)
class Fold:
    """The merge of one task; pickled for the executors."""

    settings: TopicSettings
    """The settings of the topic."""
    as_of_ms: int
    """Records due at this time expire at the end, milliseconds since the epoch."""
    deltas: bool
    """True if deltas are output too."""
    rejects_keyless: bool = False
    """True if records without a key are rejected, with a worker's reason; else they are left out."""
    partitions: int | None = None
    """Number of partitions that keys are hashed over; None: unknown, and every key stays in its partition."""
    bases: Mapping[int, int] = field(default_factory=dict)
    """What is added to the versions of new records, by partition, where the marks have it: `wire.partition_marks`."""
    begins: Mapping[int, int] = field(default_factory=dict)
    """The first input offset by partition, of a history of the input topic."""

    @property
    def leaves_out_foreign(self) -> bool:
        """True if records that a worker forwards to their key's own partition are left out and counted."""
        is_moved = self.partitions is not None and self.settings.topic.foreign_partition == "move"
        return is_moved and not self.rejects_keyless

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge records (`RECORDS_DDL`) into output rows (`OUTGOING_DDL`), with the topic's role in column `topic`.

        The output has the last SOW record of each key, a tombstone if it was deleted, and the counters at the end.

        Raises:
            Stop: a worker would stop, or two records of a key have the same offset.
        """
        counts: Counter[str] = Counter()
        codec = self.settings.codec()
        folding: _Folding | None = None
        with _few_collections() as collect:
            for batch in in_chunks(iter(batches), _CHUNK_RECORDS):
                for partition, part in _by_partition(batch):
                    if folding is None or folding.partition != partition:
                        if folding is not None:
                            yield from folding.finish()
                        folding = _Folding(self, partition, codec, counts, is_marked=IS_REPEAT in batch.schema.names)
                    yield from folding.take(part)
                collect()
            if folding is not None:
                yield from folding.finish()
        if counts := +counts:
            yield outgoing(COUNT, 0, [(name.encode(), b"%d" % count, []) for name, count in counts.items()])


class _Folding:
    """The merge of one partition within a task."""

    def __init__(self, fold: Fold, partition: int, codec: Codec, counts: Counter[str], *, is_marked: bool) -> None:
        self.partition = partition
        self._fold, self._counts = fold, counts
        self._states = _States()
        self._lives = KeyLives(fold.bases.get(partition, 0), fold.begins.get(partition, 0))
        topic = fold.settings.topic
        rejects_foreign = fold.partitions is not None and topic.foreign_partition == "reject"
        self._log = SequenceLog(fold.settings.kafka_topic("publish"), is_marked=is_marked)
        self._partition_merge = PartitionMerge(
            fold.settings,
            partition,
            self._states,
            None,
            codec=codec,
            clock=_published_ms,
            numbers=self._log,
            partitions=(fold.partitions or 1) if rejects_foreign else 1,
            lives=self._lives,
        )
        self._compiled = CompiledRuns.of(
            codec,
            topic,
            self._lives,
            partition=partition,
            partitions=(fold.partitions or 1) if rejects_foreign or fold.leaves_out_foreign else 1,
            deltas=fold.deltas,
        )
        self._key: bytes | None = None
        self._is_foreign = False  # Whether the current key belongs to another partition.
        self._last: dict[bytes, Outgoing] = {}
        """The last SOW record of each unfinished key."""
        self._place: tuple[bytes | None, int] = None, -2
        """Key and offset of the last record."""

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Merge records, and output the finished keys."""
        keyless = batch.column("key").null_count
        if keyless:  # They are sorted before all others.
            first = records(batch.slice(0, keyless))
            self._counts[BY_FILTER] += sum(map(is_delete_by_filter, first))
            if self._fold.rejects_keyless:
                yield from self._reject(first)
            else:
                self._counts[KEYLESS] += keyless
            batch = batch.slice(keyless)
        if not batch.num_rows:
            return
        chunk = None if self._compiled is None else ChunkOfBatch.of(batch)
        arrived = _came(batch) if chunk is None else (yield from self._merge_compiled(batch, chunk))
        input_records = arrived
        if arrived:
            offsets = [record.offset for record in arrived]
            self._check_places(offsets, arrived)
            if BASE_OFFSET in offsets:
                input_records = self._begin(arrived)
            if self._fold.leaves_out_foreign:
                input_records = self._own(input_records)
            self._counts[RECORDS] += len(input_records)
        self._place = _place_of(batch, batch.num_rows - 1)
        yield from self._merge(input_records, self._place[0])
        yield from self._log.rows(self.partition, is_end=False)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Output the last key, after the last record."""
        yield from self._merge([], None)
        yield from self._log.rows(self.partition, is_end=True)
        self._count()

    def _merge_compiled(
        self, batch: pa.RecordBatch, chunk: ChunkOfBatch
    ) -> Generator[pa.RecordBatch, None, list[Record]]:
        """Merge the runs of plain commands, and output those of finished keys; returns the records of all others."""
        compiled, states, begin = self._compiled, self._states, 0
        assert compiled is not None
        place = key, _ = _place_of(batch, 0)
        assert key is not None
        if place == self._place:
            raise self._same_place(*place)
        is_continued, stored, ended = key == self._place[0], states.stored.get(key), self._lives.ended_at(key)
        self._place = None, -2
        left: list[Record] = []
        while begin < batch.num_rows:
            part = compiled.merge(chunk, begin, stored, ended, is_continued=is_continued)
            yield from compiled.take_rows(self.partition)
            for open_key, state, last, last_ended in part.open:
                states.put_many({open_key: state})
                if last_ended:
                    self._lives.end(open_key, last_ended)
                    self._lives.apply()
                if last is not None:
                    self._last[open_key] = last
            for first, end in part.left:
                left += _came(batch.slice(first, end - first))
            self._counts[RECORDS] += part.merged
            self._counts["duplicate"] += part.duplicates
            self._counts["delete_of_nothing"] += part.deletes_of_nothing
            begin, stored, ended, is_continued = part.end, None, 0, False
        compiled.take_log(self._log)
        return left

    def _merge(self, input_records: Sequence[Record], open_key: bytes | None) -> Iterator[pa.RecordBatch]:
        """Merge records, and finish all keys but the one that may continue."""
        states, merge = self._states, self._partition_merge
        if input_records:
            merge.process(input_records, 0)
        open_state = None if open_key is None else states.pop(open_key)
        if states.may_expire:
            merge.expire(self._fold.as_of_ms)
        yield from self._emit(open_key)
        states.reset({} if open_key is None or open_state is None else {open_key: open_state})
        self._lives.keep(open_key)

    def _reject(self, keyless: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Reject records without a key; they come before all others, so no other output is pending."""
        self._partition_merge.process(keyless, 0)
        self._counts[RECORDS] += len(keyless)
        yield from self._emit(None)

    def _emit(self, open_key: bytes | None) -> Iterator[pa.RecordBatch]:
        """Output the finished records, by role."""
        sent = self._partition_merge.take()
        self._last.update({record[0]: record for record in sent.get("sow", ())})  # type: ignore[misc]
        self._log.settle()
        held = None if open_key is None else self._last.pop(open_key, None)
        if self._last:
            yield outgoing("sow", self.partition, list(self._last.values()))
        self._last = {} if open_key is None or held is None else {open_key: held}
        if self._fold.deltas and "delta" in sent:
            yield outgoing("delta", self.partition, sent["delta"])
        if "dlq" in sent:
            yield outgoing("dlq", self.partition, sent["dlq"])

    def _count(self) -> None:
        """Add the counters of the merge to those of the task."""
        self._counts[SEQUENCED] += self._log.count
        self._counts.update(self._partition_merge.events)
        self._counts.update({f"{REJECTED}{reason}": count for reason, count in self._partition_merge.rejected.items()})

    def _begin(self, came: Sequence[Record]) -> list[Record]:
        """Store the records of the base; returns the input records."""
        input_records = []
        for record in came:
            if record.offset != BASE_OFFSET:
                input_records.append(record)
                continue
            assert record.key is not None
            self._states.put_many({record.key: stored_from(record)})
            self._last[record.key] = (record.key, record.value, record.headers or [])
        return input_records

    def _own(self, input_records: list[Record]) -> list[Record]:
        """The records whose key belongs to the partition, or has a record in it already."""
        own, partitions = [], self._fold.partitions or 1
        for record in input_records:
            key = record.key
            if key != self._key:
                assert key is not None
                self._key = key
                is_elsewhere = partition_for(key, partitions) != self.partition and not key.startswith(RESERVED)
                self._is_foreign = is_elsewhere and key not in self._states.stored
            if not self._is_foreign:
                own.append(record)
        if foreign := len(input_records) - len(own):
            self._counts[FOREIGN] += foreign
        return own

    def _check_places(self, offsets: list[int], came: Sequence[Record]) -> None:
        """Refuse two records of a key with the same offset, as their order is unknown."""
        if self._place != (came[0].key, offsets[0]) and not any(map(eq, offsets, offsets[1:])):
            self._place = came[-1].key, offsets[-1]
            return
        key, offset = self._place
        for record in came:
            if record.offset == offset and record.key == key:
                raise self._same_place(key, offset)
            key, offset = record.key, record.offset
        self._place = key, offset

    def _same_place(self, key: bytes | None, offset: int) -> Stop:
        return Stop(
            f"{self._fold.settings.name}: two records of the key {key!r:.100} are both at offset {offset} of "
            f"partition {self.partition}, so that nothing says which of them came first; "
            "mend columns `partition` and `offset` of the history"
        )


class _States(KeyedState):
    """The states of the keys of a chunk."""

    @property
    def may_expire(self) -> bool:
        return any(stored.expires_at_ms for stored in self._stored.values())

    @property
    def stored(self) -> Mapping[bytes, Stored]:
        return self._stored

    def reset(self, stored: dict[bytes, Stored]) -> None:
        self._stored = dict(stored)


_published_ms: Final = itemgetter(4)  # By number: twice as fast as by name.


def _place_of(batch: pa.RecordBatch, row: int) -> tuple[bytes | None, int]:
    """Key and offset of a row."""
    return batch.column("key")[row].as_py(), batch.column("offset")[row].as_py()


def _came(batch: pa.RecordBatch) -> list[Record]:
    """The records of a batch; duplicates have the type `Repeat`, and those rejected for their sequence `Denied`."""
    came = records(batch)
    if IS_REPEAT not in batch.schema.names:
        return came
    flags, details = batch.column(IS_REPEAT).to_pylist(), [None] * len(came)
    if DENIAL in batch.schema.names:
        details = batch.column(DENIAL).to_pylist()
    return list(map(_treated, came, flags, details))


def _treated(record: Record, is_repeat: bool | None, detail: str | None) -> Record:
    if detail is not None:
        denied = Denied(*record)
        denied.detail = detail
        return denied
    return Repeat(*record) if is_repeat else record


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch by partition."""
    numbers = batch.column("partition")
    begin, end = 0, batch.num_rows
    while begin < end:
        number = numbers[begin].as_py()
        if numbers[end - 1].as_py() == number:
            yield number, batch.slice(begin)
            return
        rest = numbers.slice(begin).to_pylist()
        length = next(place for place, other in enumerate(rest) if other != number)
        yield number, batch.slice(begin, length)
        begin += length


@contextmanager
def _few_collections() -> Iterator[Callable[[], None]]:
    """Disable Python's garbage collector, and collect now and then: only rejections create cycles of objects.

    The collector would walk all objects of a chunk again and again, which costs a fifth of the time.
    """
    was_enabled = gc.isenabled()
    # The daemon has frozen what its workers share: thawed, those objects would be walked, and their memory copied.
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    if not was_frozen:
        gc.freeze()
    gc.disable()
    chunks = 0

    def collect() -> None:
        nonlocal chunks
        chunks += 1
        if chunks % _COLLECT_CHUNKS == 0:
            gc.collect()

    try:
        yield collect
    finally:
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
