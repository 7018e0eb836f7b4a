"""The records of the topic that a view reads: decoded, filtered, and rejected where they cannot be read."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final, cast

from processor.api import Input, Processor, RecordRejected
from processor.api.builtin import builtin_context
from processor.builtin.view.definitions import check_source
from processor.builtin.view.stage_output import show_ready
from processor.config import ViewConfig
from processor.errors import PartitionHeld, Stop, rejection
from processor.filter.filter import metadata_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Context, Record, Value
    from processor.filter import Filter
    from processor.filter.aggregate import AggregateDefinition, Contribution


_BAD: Final = cast("Value", object())
"""Stands for the value of a call that failed."""

_KEY: Final = itemgetter(0)

_NO_PLACE: Final = (0, 0, 0)


class FirstStage(Processor):
    """The base of stages whose state has each record that they read: its group, its join keys, its row, or itself."""

    settings_type = ViewConfig
    input: ClassVar[Input] = Input("sow", from_underlying=True)
    _context: Context

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse a definition that cannot be used."""
        assert isinstance(settings, ViewConfig)
        check_source(name, settings, cls._topic_of(name, settings), codec)
        cls._compile(name, settings)

    @staticmethod
    def _topic_of(name: str, settings: ViewConfig) -> str:  # noqa: ARG004
        """Return the topic whose records the stage of this name reads."""
        return settings.underlying

    @staticmethod
    @abstractmethod
    def _compile(name: str, settings: ViewConfig, /) -> object:
        """Compile the definition; a ConfigurationError refuses it."""

    def punctuate(self, now_ms: int) -> bool:  # noqa: ARG002
        """Set the gauge that shows whether the stage has caught up."""
        show_ready(self._context, is_ready=self._context.is_at_end)
        return False

    def rejected(self, record: Record, error: RecordRejected) -> None:  # noqa: ARG002
        """Take a record that was skipped by order, or whose output is too large, for one that does not count."""
        self.process([record._replace(value=None)])


class Source:
    """Reads the SOW records of one topic for a view."""

    def __init__(self, context: Context, topic: str, selected: Filter | None) -> None:
        """Create it.

        Args:
            context: decodes and rejects the records.
            topic: their family.
            selected: the records that count; None: all.
        """
        self._context = builtin_context(context)
        self._topic = topic
        self._selected = selected

    def each(self, records: Sequence[Record], take: Callable[[Record, Value | None], None]) -> None:
        """Call `take` with each record and its value: None if it is deleted, or does not count.

        A record on which `take` raises is rejected, and does not count.
        """
        for record, state in zip(records, self.read(records), strict=True):
            if record.key is not None and self.attempt(record, partial(take, record, state), _BAD) is _BAD:
                take(record, None)

    def read(self, records: Sequence[Record]) -> list[Value | None]:
        """Return the value of each record: None if it is deleted, or does not count.

        One that cannot be read is rejected, and does not count: its former value is not that of its key any more.
        """
        states = self._decoded(records)
        if states is None:
            states = [self.attempt(record, partial(self._decode, record)) for record in records]
        if self._selected is None:
            return states
        try:
            return self._counting(records, states)
        except Exception:  # noqa: BLE001, S110 - a function failed, in any way: one by one, then
            pass
        return [
            self.attempt(record, partial(self._counting, [record], [state]), [None])[0]
            for record, state in zip(records, states, strict=True)
        ]

    def attempt(self, record: Record, call: Callable[[], Value], otherwise: Value = None) -> Value:
        """Return the value of a call, or another one if it raises: then the record is rejected."""
        try:
            return call()
        except (PartitionHeld, Stop):
            raise
        except Exception as error:  # noqa: BLE001 - a message type or a function may fail in any way
            rejected = rejection(error)
            self._context.reject(record, rejected.reason, rejected.detail)
            return otherwise

    def contributions(
        self, records: Sequence[Record], definition: AggregateDefinition, *, partition: int | None = None
    ) -> list[Contribution | None]:
        """Return the contribution of each record; None where it does not count.

        A record that cannot be read or computed is rejected.

        Args:
            records: the records.
            definition: the aggregates.
            partition: the partition of the records; None: contributions have neither place nor metadata.
        """
        states = self.read(records)
        try:
            return self._computed(definition, partition, records, states)
        except Exception:  # noqa: BLE001, S110 - a function failed, in any way: one by one, then
            pass
        return [
            self.attempt(record, partial(self._computed, definition, partition, [record], [state]), [None])[0]
            for record, state in zip(records, states, strict=True)
        ]

    def _computed(
        self,
        definition: AggregateDefinition,
        partition: int | None,
        records: Sequence[Record],
        states: Sequence[Value | None],
    ) -> list[Contribution | None]:
        """Return the contribution of each record; None for those without a state."""
        present = [state for state in states if state is not None]
        places, metadata = [_NO_PLACE] * len(present), None
        if partition is not None:
            counting = [record for record, state in zip(records, states, strict=True) if state is not None]
            places = [(record.timestamp_ms, partition, record.offset) for record in counting]
            if definition.uses_metadata:
                metadata = [metadata_of(record, self._topic) for record in counting]
        made = definition.contributions(present, places, metadata)
        if len(made) == len(states):
            return [*made]
        contributions = iter(made)
        return [None if state is None else next(contributions) for state in states]

    def _counting(self, records: Sequence[Record], states: Sequence[Value | None]) -> list[Value | None]:
        """Return the values with None for each that does not count."""
        assert self._selected is not None
        matches = self._selected.matches
        if not self._selected.uses_metadata:
            return [state if state is not None and matches(state) else None for state in states]
        return [
            state if state is not None and matches(state, metadata_of(record, self._topic)) else None
            for record, state in zip(records, states, strict=True)
        ]

    def _decoded(self, records: Sequence[Record]) -> list[Value | None] | None:
        """Return the values of all records, parsed together; None: one of them is bad."""
        if not all(map(_KEY, records)) and any(record.key is None for record in records):
            return None
        messages = [record.value for record in records if record.value is not None]
        try:
            values = self._context.input_codec.decode_own_many(messages)
        except RecordRejected:
            return None
        if any(not isinstance(value, dict) for value in values):
            return None
        if len(messages) == len(records):
            return values
        decoded = iter(values)
        return [None if record.value is None else next(decoded) for record in records]

    def _decode(self, record: Record) -> Value | None:
        if record.key is None:
            raise RecordRejected("missing_key", "a SOW record has a key")
        if record.value is None:
            return None
        value = self._context.input_codec.decode_own(record.value)
        if not isinstance(value, dict):
            raise RecordRejected("not_an_object", "a view needs the fields of a record, which this one has not")
        return value


class FormerSource(Source):
    """Reads former states of records: those that cannot be read were rejected when they came, or will be."""

    has_failed = False
    """True if one of them could not be read."""

    def attempt(self, record: Record, call: Callable[[], Value], otherwise: Value = None) -> Value:  # noqa: ARG002
        """Return the value of a call, or another one if it raises: then `has_failed` is set."""
        try:
            return call()
        except (PartitionHeld, Stop):
            raise
        except Exception:  # noqa: BLE001 - as when the record came
            self.has_failed = True
            return otherwise
