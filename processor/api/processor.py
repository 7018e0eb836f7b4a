"""The parts of a plug-in: a class with its declarations and the methods that the runtime calls, or a hook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias, cast

from processor.record import Command, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api.context import Context
    from processor.codec.contract import Codec
    from processor.errors import RecordRejected
    from processor.record import Record
    from processor.topics.family import Role


class _LazyModel:
    """A class attribute with a model of another module."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get__(self, instance: object, owner: type) -> type[BaseModel]:
        model: type[BaseModel] = getattr(import_module(self._module), self._name)
        return model


def lazy_model(module: str, name: str) -> type[BaseModel]:
    """Return a class attribute whose value is a model of a module; the module is imported at the first read."""
    return cast("type[BaseModel]", _LazyModel(module, name))


class Preprocessed(NamedTuple):
    """A message from a preprocessor, with the command that the message itself asks for."""

    body: Value
    """The object that replaces the message."""
    command: Command
    """The command, in place of the header's or the topic's default. A `sow_delete` needs the key fields alone. Another
    word than the three commands is rejected as `plugin_failed`."""


class Incomplete(Preprocessed):
    """A message that does not have the values of some fields at the top: the record must have them already."""

    lacking: tuple[str, ...]
    """The names of the fields."""
    is_stored: bool
    """The treatment of the message where there is no record: True: one is stored without those fields, and counted as
    event `incomplete_row`; False: it is rejected as `schema_mismatch`."""

    @classmethod
    def of(cls, body: Value, command: Command, lacking: tuple[str, ...], *, is_stored: bool) -> Incomplete:
        """Create one."""
        message = cls(body, command)
        message.lacking, message.is_stored = lacking, is_stored
        return message


Preprocess: TypeAlias = Callable[[Value], "Value | Preprocessed"]
"""Changes a message before its key is made: takes the object, which it may change, and returns its replacement.

An entry point of the group `sowstream.preprocessors` takes its settings by keyword and returns such a function; each
partition has its own. Raising rejects the record: as `plugin_failed`, or with the reason of a RecordRejected. A record
without a Kafka key passes twice, on its own partition the second time, so the result must be the same for the same
message.

If the function has an attribute `needs`, it maps settings of the topic to the values without which the preprocessor
would give wrong records, such as `{"null_policy": "set"}`; a topic with other values is refused at the start. If it has
an attribute `needs_key`, a sentence, a record without a Kafka key is rejected as `missing_key` with that sentence.
"""

Enrich: TypeAlias = Callable[[Value, Value | None], Value]
"""Changes a message before it is merged: takes the object and a copy of the current record, None if there is none.

The message is the published one, a full record or a delta, and the returned object is merged in its place. An entry
point of the group `sowstream.enrichers` makes it, as for a `Preprocess`. It must leave key fields alone.
"""


class Input(NamedTuple):
    """The topic a processor reads."""

    role: Role | str
    """The role of the topic in its family: `publish` or `sow`; or a name of its own, such as `parts`: the internal
    topic into which other processors repartition their records, so that it has several inputs."""
    from_underlying: bool = False
    """True if it reads another family's topic (setting `underlying`), False if its own."""


class Output(NamedTuple):
    """A topic to which a processor may forward records."""

    role: str
    """The name of the output, as `forward` takes it; the topic is `<family>.<role>`. The names `sow`, `delta`,
    `publish`, `ack` and `mark` are the family's own roles; any other, such as `alerts`, is an output of the plug-in's
    own: lower-case letters, digits, `-` and `_`."""
    repartition: bool = False
    """True if the key's hash chooses the partition; False: always the input's partition number."""
    downstream: bool = False
    """True if the topic is the input of another processor, the one that the setting `into` names; then the processor
    chooses the partition of each record with `Context.forward_to`."""


class Processor(ABC):
    """A plug-in that takes its records in batches: one instance for each partition.

    Installed packages offer theirs in the entry-point group `sowstream.processors`. Most plug-ins are simpler as a
    `RecordProcessor`.
    """

    settings_type: ClassVar[type[BaseModel]] = lazy_model("processor.api.record_processor", "Settings")
    """The model of its settings, used by validation, `topics apply` and `--help`."""
    input: ClassVar[Input]
    """The topic it reads."""
    outputs: ClassVar[tuple[Output, ...]]
    """The topics it may forward to. Its state is restored from the one of role `sow`; without one it has no state."""
    keeps_table: ClassVar[bool] = False
    """True if it keeps a table of its input as private state: `Context.table` has the last record of each key. The
    input is then a compacted topic whose records have a header `version`: one with a name of its own, or the SOW topic
    of its underlying. Before the processor begins, the table is restored to the end of the input, so that it may have
    records that are about to come; the processor puts each later record itself."""
    keeps_input_keys: ClassVar[bool] = False
    """True if each record of its state has the key of the input record that it was made of, for an input that is the
    SOW topic of its underlying. After an outage in which deletes may have been removed from that topic
    (`delete.retention.ms`) it receives a tombstone, without a timestamp, for each key that the topic no longer has."""
    is_repeatable: ClassVar[bool] = False
    """True if it may run at least once, where the settings ask for that: it makes the same of the same records on the
    same states, whenever it receives them, writes the `source` of each SOW record, and skips the records in
    `Context.applied`. `RecordProcessor.put` does both in `process_record`; a processor that puts in `flush` or
    `punctuate` is not repeatable. All others run exactly once in any case."""

    @classmethod  # noqa: B027
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse settings that no partition could begin with; called before anything starts.

        Args:
            name: the family of its outputs.
            settings: its settings.
            codec: the message type of its records; None where only the settings are checked, as in `topics check`.

        Raises:
            ConfigurationError: the problem, and its remedy.
        """

    @abstractmethod
    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with a partition: its state is restored, no record has come yet."""

    @abstractmethod
    def process(self, records: Sequence[Record]) -> None:
        """Take the next records of the partition, in order.

        A processor that forwards much asks `Context.is_full` between two records, and calls `Context.stop` when it is.
        One that does not ask receives fewer records at once when its outputs are large or its calls are long.

        An exception is taken for the fault of one of the records: the task goes back to the last commit, delivers the
        records one at a time, and rejects the one that fails, for the reason of a RecordRejected or as `plugin_failed`.
        `Context.reject` rejects a record without it.
        """

    def rejected(self, record: Record, error: RecordRejected) -> None:  # noqa: B027
        """React to a record that was rejected because `process` raised on it, as by an answer to its publisher.

        Not called for records that the processor itself rejects.
        """

    def punctuate(self, now_ms: int) -> bool | None:  # noqa: B027
        """Do the work that is due by the wall clock. Called many times a second, also when no record comes.

        Long work is done in pieces: return True while there is more, and it is called again at once, after the records
        that came meanwhile; its outputs are then not committed piece by piece.
        """

    def flush(self) -> None:  # noqa: B027
        """Forward the results that were kept back to be made once in a transaction; called before each commit."""

    def close(self) -> None:  # noqa: B027
        """End with the partition. Nothing can be forwarded any more.

        It is also called after an `init` that raised, and must bear an instance that has only begun to be set up.
        """
