"""The runtime as a processor sees it: its state and marks, its outputs, the clock, and the input position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.codec.contract import Codec
    from processor.config import TopicConfig
    from processor.record import Headers, Outgoing, Record, Stored, Value


class State(Protocol):
    """The last record of every key of this partition; the processor's own changes are visible at once."""

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        """Return the states of these keys, None where there is none. Keys may repeat."""

    def get_some(self, keys: Sequence[bytes], bytes_max: int) -> tuple[dict[bytes, Stored | None], int]:
        """Return the states of the first of these keys, as far as they fit into memory, and the number of those keys.

        Args:
            keys: in the order in which they are needed; they may repeat.
            bytes_max: of the records that are read from the store; the last few may exceed it.
        """

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Stage new states, None to delete.

        A state lasts only if its SOW record is forwarded with it: `Context.put` does both, and is the documented way.
        This is for processors that write whole batches; `ProcessorTestDriver` compares their states with their SOW
        records at each commit.
        """

    def due(self, until_ms: int, keys_max: int) -> list[tuple[bytes, Stored]]:
        """Return the states that expire until then, in order of their `expires_at_ms`, at most so many.

        Nothing is removed: a state stays due until it is put again. Costs next to nothing where none is due.
        """

    def scan(self, after: bytes | None, keys_max: int) -> list[tuple[bytes, Stored]]:
        """Return the states of the next keys in key order.

        A scan of all states continues after the last key of the previous piece, and takes the thread's time: do it in
        pieces.

        Args:
            after: the key before them; None begins with the first.
            keys_max: how many at most; fewer come only at the end.
        """


class Marks(Protocol):
    """Small values of this partition that last besides the records, such as each publisher's highest sequence.

    They are all in memory, committed with everything else, and restored from the topic of role `mark`. A partition
    keeps 100,000 of them; beyond that the one not changed for longest is forgotten. Names that begin with NUL are the
    runtime's, and those that begin with `sequence/` the publishers'.
    """

    def get(self, name: bytes) -> bytes | None:
        """Return the value of a mark, the processor's own changes included; None if there is none."""

    def put(self, name: bytes, value: bytes) -> None:
        """Set a mark. Of several values between two commits the last one reaches the topic."""


class Context(Protocol):
    """The runtime's side of the contract for one partition; a processor reads its attributes and never sets them."""

    name: str
    """The name the processor runs under: the family of its outputs."""
    source_topic: str
    """The Kafka topic of its input records, as in header `source`."""
    partition: int
    """The partition number, the same on input and outputs."""
    partitions: int
    """Number of partitions of the topic; 1 where the processor has all keys, as under a test driver."""
    topic: TopicConfig
    """Settings of the topic's records: key fields, policies, limits. A copy has those of its underlying topic."""
    codec: Codec
    """The message type of the topic."""
    state: State
    """The last record of every key; for processors that declare an output of role `sow`."""
    table: State
    """The last record of every key of the input, for processors that declare `keeps_table`. A processor puts each
    record that it takes with `put_many`, unless its offset is below `table_until`."""
    table_until: int
    """The input offset up to which the table was restored: earlier records are in it before they come."""
    applied: Mapping[int, Sequence[bytes]]
    """Input records that are redelivered although SOW already has their result: offset → keys of the changed records.
    Filled only after the crash of a worker without transactions, for processors that are `is_repeatable`; the headers
    `source` of the SOW topic have these offsets."""
    marks: Marks
    """Small values that last besides the records; for processors that declare an output of role `mark`."""
    now_ms: int
    """Wall-clock time, milliseconds since the epoch; constant during one call."""
    noted: str
    """The note that was committed with the input position at which the processor began; empty if there was none."""
    stream_time_ms: int
    """The time up to which the input is known, never after `now_ms`: the timestamp of the last record received, or, if
    that is later, a time before which the partition had no record that the processor has not received. Without input
    that time follows the wall clock at a distance of about a second, and of a few tenths while records of the state are
    due; it stands still as long as the partition's leader does not answer, and is 0 for a moment where the clock is set
    back behind it."""
    complete_until_ms: int
    """A time before which the partition had no record that the processor has not received, as Kafka has proven; 0 if it
    is unknown, as until a backlog is read. An expiry goes by it: the timestamp of a record, which `stream_time_ms`
    follows, is from a publisher's clock, which may be ahead of those of records that wait behind it."""
    is_at_end: bool
    """True if the processor has received every record of the partition, as far as Kafka has reported. Records may have
    come since: for an action that must wait for them, compare with `stream_time_ms`."""
    acts: int
    """The number of calls until now that wrote, rejected, held, stopped or paused: more than before a record, if that
    has done something. A `RecordProcessor` reads it where a record is rejected."""

    def put(self, key: bytes, record: Value, headers: Headers | None = None) -> None:
        """Write the record of a key: its state, its SOW record, its version and its delta, all or nothing.

        The version counts the key's updates, over all of its lives: the record of a key without one begins above every
        version that the key has had. The delta has the changed paths, its header `removed` the paths
        that are gone, so that replaying the deltas gives the SOW records; it is written if the processor declares an
        output `delta`.

        Args:
            key: the key of the record: that of an input record, or one that no other partition writes.
            record: the full record, as the topic's message type can write it; the caller may go on changing it. None
                deletes the record, as `delete` does.
            headers: more headers for both outputs, such as `correlation_id`; `expires_at` and `expiration` are for SOW
                and the state alone.

        Raises:
            RecordRejected: the record is larger or deeper than the topic's settings allow, or is no object.
            TypeError: the message type cannot write it; or the key or a header has the wrong type.
            ValueError: `headers` has one that this method writes itself, such as `version`.
            UndeclaredOutput: the processor declares no output of role `sow`.
        """

    def delete(self, key: bytes, headers: Headers | None = None) -> bool:
        """Delete the record of a key: a tombstone on SOW, and its key fields with the kind `delete` as the delta.

        Args:
            key: the key of the record.
            headers: more headers for both outputs.

        Returns:
            False if there was no record; then nothing is written.

        Raises:
            TypeError, ValueError, UndeclaredOutput: as `put`.
        """

    def forward(self, output: str, key: bytes, value: bytes | None, headers: Headers) -> None:
        """Send a record to one of the declared outputs, in the transaction that commits this input."""

    def forward_many(self, output: str, records: Sequence[Outgoing], size_bytes: int | None = None) -> None:
        """Send a batch to one of the declared outputs: key, value and headers of each record, in order.

        Args:
            output: the name of the output.
            records: the batch.
            size_bytes: the bytes of their values, if the processor has counted them; None: they are counted here.
        """

    def forward_to(self, output: str, partition: int, records: Sequence[Outgoing]) -> None:
        """Send a batch to one partition of an output that is declared as `downstream`.

        Args:
            output: the name of the output.
            partition: the partition of its topic.
            records: key, value and headers of each record, in order.
        """

    def is_full(self, more_bytes: int = 0) -> bool:
        """Return whether `process` should `stop` before its next record.

        It should when the outputs that wait to be sent take as much memory as `runtime.batch_bytes_max`, or the call
        has lasted for a tenth of a second: outputs are then sent, commits are made, and other threads have a turn. It
        should, too, after `stop` or `pause`.

        Args:
            more_bytes: outputs that the processor has made and not forwarded yet.
        """

    def stop(self, offset: int) -> None:
        """Take no record from this offset on in this call; `process` calls it for one of the records it received.

        The processor ignores that record and all behind it. They are delivered again soon, when the forwarded records
        have been sent; until then `punctuate` may be called.
        """

    def partition_for(self, key: bytes, output: str | None = None) -> int:
        """Return the partition that a key's hash chooses, as Java's and Spark's clients do: murmur2.

        Args:
            key: the key.
            output: a downstream output, whose topic has partitions of its own; None: the processor's own topics.
        """

    def partitions_of(self, output: str) -> int:
        """Return the number of partitions of a downstream output's topic, as for a record that all of them get."""

    def reject(self, record: Record, reason: str, detail: str) -> None:
        """Send an input record to the dead-letter topic, in the same transaction; it must not be merged.

        Args:
            record: the input record.
            reason: one of `RejectReason`, or a word of the plug-in's own: lower-case letters, digits and `_`, one of a
                few, as it is a label of metrics too.
            detail: the same as a sentence, with the place.

        Raises:
            ValueError: the reason is no such word.
        """

    def hold(self, offset: int | None, note: str = "") -> None:
        """Commit no input position above this offset until the next `hold`; None: nothing is held.

        A record at or after a held offset is delivered again after a restart.

        Args:
            offset: the offset.
            note: a short text, of 1,000 bytes as UTF-8 at most, that is committed with the input position: a processor
                that begins there, after a restart, a rebalance or a rollback, has it as `noted`. It stands until the
                next `hold`, as does the one that was `noted` before the first. A change of it alone causes no commit.

        Raises:
            ValueError: the note is too long, or has a character that cannot be committed.
        """

    def pause(self, offset: int) -> None:
        """Take no record from this offset on until `resume`; `process` calls it for one of the records it received.

        The processor ignores that record and all behind it; they are delivered again after `resume`. Meanwhile
        `punctuate` is called, and its outputs are committed with the offset as input position: so much work that
        belongs between two records is done in pieces, and no piece keeps other partitions waiting for long.
        """

    def resume(self) -> None:
        """Take records again, from the offset of `pause` on."""

    def count(self, event: str, amount: int = 1) -> None:
        """Add to the metric `sowstream_events_total{processor, event}`.

        Raises:
            ValueError: the amount is negative.
        """

    def gauge(self, name: str, value: float) -> None:
        """Set the metric `sowstream_gauge{processor, partition, gauge}`, which shows it without waiting for a commit.

        It is removed when the partition leaves, or a rollback begins a new instance. The names of the built-in
        processors' gauges and timings are taken: each has a metric of its own.

        Raises:
            TypeError, ValueError: the value is no number.
        """

    def observe(self, name: str, seconds: float, times: int = 1) -> None:
        """Add to the metric `sowstream_observed_seconds{processor, timing}`, so many times; counts when committed."""
