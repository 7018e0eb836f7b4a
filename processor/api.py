"""What a plug-in author imports: the contract between a processor and the runtime that hosts it.

The words are Kafka Streams': a `Processor` is initialised with a `Context`, processes records, is punctuated by the
wall clock, forwards to named outputs and is closed. Two things differ. It gets its records in batches, so that the
hot path pays nothing per record; `RecordProcessor` gives them one at a time. And its state is the compacted output
itself: what it puts becomes durable with the same Kafka transaction as what it forwards, and comes back from there.

One instance serves one partition, on one thread: there are no locks to think of. After a failed transaction the
instance is closed and a new one begins at the last commit, so whatever it keeps in memory must follow from its
records, its state and its note.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

from processor.codec.contract import Codec
from processor.config import TopicConfig
from processor.errors import RecordRejected
from processor.record import (
    Change,
    Command,
    Header,
    Headers,
    Kind,
    Outgoing,
    Record,
    RejectReason,
    Stored,
    Value,
)
from processor.topics.family import Role
from processor.wire.headers import Name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Change",
    "Codec",
    "Command",
    "Context",
    "Enrich",
    "Header",
    "Headers",
    "Input",
    "Kind",
    "Marks",
    "Name",
    "Outgoing",
    "Output",
    "Preprocess",
    "Preprocessed",
    "Processor",
    "Record",
    "RecordProcessor",
    "RecordRejected",
    "RejectReason",
    "Settings",
    "State",
    "Stored",
    "Value",
]


class Preprocessed(NamedTuple):
    """A message as a preprocessor returns it where the message itself says what is to be done with it."""

    body: Value
    """The object to go on with."""
    command: Command
    """The command, in place of the header's or the topic's default. Of a `sow_delete` the body says the key alone."""


Preprocess: TypeAlias = Callable[[Value], "Value | Preprocessed"]
"""Changes a message before its key is made: it takes the object, which is its own, and returns the one to go on with.

An entry point of the group `sowstream.preprocessors` takes its settings by keyword and returns such a function; each
partition has its own. Raising rejects the record: as `plugin_failed`, or as the RecordRejected says. A record without
a Kafka key passes twice, on its own partition the second time, so it must return the same for the same message.

If the function has an attribute `needs`, it maps settings of the topic to the values without which the preprocessor
would give wrong records, such as `{"null_policy": "set"}`; a topic with others is refused at the start.
"""

Enrich: TypeAlias = Callable[[Value, Value | None], Value]
"""Changes a message before it is merged: it takes the object and a copy of the record it meets, None if there is none.

The message is what was published: a whole record, or a delta, and what is returned is merged in its place. Found in
the group `sowstream.enrichers`, as a `Preprocess`. Key fields it must leave alone.
"""


class Settings(BaseModel):
    """Base of a plug-in's typed settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Input(NamedTuple):
    """The topic a processor reads."""

    role: Role
    """Which topic of the underlying family: `publish` or `sow`."""
    from_underlying: bool
    """True if it reads another family's topic (setting `underlying`), False if its own."""


class Output(NamedTuple):
    """A topic a processor may forward to."""

    role: Role
    """Which topic of the processor's own family; `forward` names it by this."""
    repartition: bool = False
    """True if the key's hash chooses the partition; False: the input's partition number, always."""


class State(Protocol):
    """The last record of every key of this partition: the processor's own changes are seen at once."""

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        """The states of these keys, None where there is none. Keys may repeat."""

    def get_some(self, keys: Sequence[bytes], bytes_max: int) -> tuple[dict[bytes, Stored | None], int]:
        """`get_many` for the first of these keys, as far as they fit into memory; and how many of them those are.

        Args:
            keys: in the order in which they are needed; they may repeat.
            bytes_max: of the records that are read from the store; the last few may exceed it.
        """

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Stage new states, None to delete. Durable only with the commit of what was forwarded."""

    def due(self, until_ms: int, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The states that expire until then, in order of their `expires_at_ms`, at most so many.

        Nothing is removed: a state stays due until it is put again. Costs next to nothing where none is due.
        """

    def scan(self, after: bytes | None, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The states of the next keys in key order.

        A scan of all states goes on behind the last key that it got, and takes a thread's time: do it in pieces.

        Args:
            after: the key before them; None begins with the first.
            keys_max: how many at most; fewer come only at the end.
        """


class Marks(Protocol):
    """Small values of this partition that last besides the records, such as each publisher's highest sequence.

    Committed with everything else, and restored from the topic of role `mark`. Beyond a bound the one not changed for
    longest is forgotten. Names that begin with NUL are the runtime's.
    """

    def get(self, name: bytes) -> bytes | None:
        """The value of a mark, the processor's own changes included; None if there is none."""

    def put(self, name: bytes, value: bytes) -> None:
        """Set a mark. Of several values between two commits the last one reaches the topic."""


class Context(Protocol):
    """What the runtime gives a processor for one partition; all of it is the processor's to read, not to set."""

    name: str
    """The name the processor runs under: the family of its outputs."""
    source_topic: str
    """The Kafka topic of its input records, as header `source` names it."""
    partition: int
    """The partition number, the same on input and outputs."""
    partitions: int
    """Number of partitions of the topic; 1 where the processor has all keys, as under a test driver."""
    topic: TopicConfig
    """What holds for the topic's records: key fields, policies, limits. A copy has those of what it is a copy of."""
    codec: Codec
    """The message type of the topic."""
    state: State
    """The last record of every key; for processors that declare an output of role `sow`."""
    applied: Mapping[int, Sequence[bytes]]
    """Offset of each input record that comes again although it is in SOW, as `source` says there, with the keys of the
    records it changed; empty but where a worker without transactions died. Only for processors that are
    `is_repeatable`."""
    marks: Marks
    """What lasts besides the records; for processors that declare an output of role `mark`."""
    now_ms: int
    """Wall-clock time, milliseconds since the epoch; stands still during one call."""
    noted: str
    """The note that was committed beside the input position at which the processor began; empty if there was none."""
    stream_time_ms: int
    """The time up to which the input is known, never after `now_ms`: the wall clock once the processor has every record
    of the partition that Kafka told of, else the timestamp of the last one it was given. `punctuate` finds it to be
    `now_ms` in the first case alone."""

    def forward(self, output: Role, key: bytes, value: bytes | None, headers: Headers) -> None:
        """Send a record to one of the declared outputs, in the transaction that commits this input."""

    def forward_many(self, output: Role, records: Sequence[Outgoing], size_bytes: int | None = None) -> None:
        """`forward` for a whole batch: key, value and headers of each, in order.

        Args:
            output: the role of the output.
            records: the batch.
            size_bytes: the bytes of their values, if the processor has counted them; None: they are counted here.
        """

    def is_full(self, more_bytes: int = 0) -> bool:
        """Whether `process` should `stop` before its next record.

        It should when the outputs that wait to be sent take as much memory as `runtime.batch_bytes_max`, or the call
        has lasted for a tenth of a second: outputs are then sent, commits are made, and other threads have a turn.

        Args:
            more_bytes: outputs that the processor has made and not forwarded yet.
        """

    def stop(self, offset: int) -> None:
        """Take no record from this offset on in this call: called by `process` for one of the records it got.

        The processor ignores that record and all behind it. They are given again soon, when what was forwarded has
        been sent; until then `punctuate` may be called.
        """

    def partition_for(self, key: bytes) -> int:
        """The partition that a key's hash chooses, as Java's and Spark's clients do: murmur2."""

    def reject(self, record: Record, reason: RejectReason, detail: str) -> None:
        """Send an input record to the dead-letter topic, in the same transaction; it must not be merged."""

    def hold(self, offset: int | None, note: str = "") -> None:
        """Do not commit input positions above this offset until told otherwise; None: nothing is held.

        A record at or after a held offset is seen again after a restart.

        Args:
            offset: the offset.
            note: a short text, of 1,000 bytes as UTF-8 at most, that is committed beside the input position whenever
                one is committed: whoever begins there, after a restart, a rebalance or a rollback, has it as `noted`.
                It stands until the next `hold`, as does the one that was `noted` before the first. A change of it
                alone causes no commit.

        Raises:
            ValueError: the note is too long, or has a character that cannot be committed.
        """

    def pause(self, offset: int) -> None:
        """Take no record from this offset on until `resume`: called by `process` for one of the records it got.

        The processor ignores that record and all behind it; they are given again after `resume`. Meanwhile
        `punctuate` is called, and what it does is committed with the offset as input position: so much work that
        belongs between two records is done in pieces, and no piece keeps other partitions waiting for long.
        """

    def resume(self) -> None:
        """Take records again, from the offset of `pause` on."""

    def count(self, event: str, amount: int = 1) -> None:
        """Add to the metric `sowstream_events_total{processor, event}`."""

    def gauge(self, name: str, value: float) -> None:
        """Set the metric `sowstream_gauge{processor, partition, gauge}`: shown within a second, also without a commit.

        Shown until the partition leaves, or a rollback begins a new instance.
        """

    def observe(self, name: str, seconds: float, times: int = 1) -> None:
        """Add to the metric `sowstream_observed_seconds{processor, timing}`, so many times; counts when committed."""


class Processor(ABC):
    """A plug-in: one instance for each partition.

    Found through the entry-point group `sowstream.processors`.
    """

    settings_type: ClassVar[type[BaseModel]] = Settings
    """The model of its settings: `topics apply`, validation and `--help` know it."""
    input: ClassVar[Input]
    """The topic it reads."""
    outputs: ClassVar[tuple[Output, ...]]
    """The topics it may forward to. Its state is restored from the one of role `sow`; without one it has no state."""
    is_repeatable: ClassVar[bool] = False
    """Whether it may run at least once, where the settings say so: it makes the same of the same records on the same
    states, whenever it gets them, writes the `source` of each SOW record, and passes by what is in `Context.applied`.
    All others run exactly once whatever the settings say."""

    @classmethod  # noqa: B027
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse settings that no partition could begin with: asked before anything starts.

        Args:
            name: the family of its outputs.
            settings: its settings.
            codec: the message type of its records; None where only the settings are looked at, as in `topics check`.

        Raises:
            ConfigurationError: what is wrong, and what to do.
        """

    @abstractmethod
    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with a partition: its state is restored, no record has been seen."""

    @abstractmethod
    def process(self, records: Sequence[Record]) -> None:
        """Take the next records of the partition, in order.

        A processor that forwards much asks `Context.is_full` between two records, and calls `Context.stop` when it is.
        One that does not ask gets fewer records at once when its outputs are large or its calls are long.

        An exception, other than through `Context.reject`, is taken for the fault of one of the records: the task goes
        back to the last commit, finds that record by giving them one at a time, and rejects it as `plugin_failed`.
        """

    def rejected(self, record: Record, error: RecordRejected) -> None:  # noqa: B027
        """Hear that a record was put aside because `process` raised on it: whoever waits for it may be told.

        Not called for what the processor itself rejects.
        """

    def punctuate(self, now_ms: int) -> bool | None:  # noqa: B027
        """Do what is due by the wall clock. Called many times a second, also when no record comes.

        Whoever has much to do does it in pieces and returns True while there is more: it is called again at once,
        after the records that came meanwhile, and what it forwarded is not committed piece by piece.
        """

    def close(self) -> None:  # noqa: B027
        """End with the partition. Nothing can be forwarded any more."""


class RecordProcessor(Processor):
    """A processor that takes its records one at a time; a failing record rejects itself only."""

    context: Context

    def init(self, context: Context, settings: BaseModel) -> None:  # noqa: ARG002
        """Keep the context; a subclass that needs its settings extends this."""
        self.context = context

    def process(self, records: Sequence[Record]) -> None:
        """Give the records to `process_record` in turn."""
        for number, record in enumerate(records):
            if number and self.context.is_full():
                self.context.stop(record.offset)
                return
            try:
                self.process_record(record)
            except RecordRejected as error:
                self.context.reject(record, error.reason, error.detail)

    @abstractmethod
    def process_record(self, record: Record) -> None:
        """Take one record; raise RecordRejected to send it to the dead-letter topic."""
