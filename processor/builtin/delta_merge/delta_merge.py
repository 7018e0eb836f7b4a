"""Merges publishes and deltas into the record of their key: from `publish` to `sow` and `delta` (spec merge.md).

Here are the batches: their states, their outputs, and which of two ways a command takes. Most commands are plain
(`plain`), and those of JSON are merged by the compiled fold; all others are carried out by `command_merge`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, cast

from processor.api import Context, Output, Record, RecordRejected, Stored
from processor.api.builtin import builtin_context
from processor.api.processor import lazy_model
from processor.builtin.delta_merge.acks import Acks, AnsweringProcessor
from processor.builtin.delta_merge.command_merge import CommandMerge
from processor.builtin.delta_merge.compiled_settings import compile_settings
from processor.builtin.delta_merge.deduplication import Deduplicator, Numbers
from processor.builtin.delta_merge.filter_delete import ByFilter, FilterDelete
from processor.builtin.delta_merge.messages import Messages
from processor.builtin.delta_merge.placement import Placement
from processor.builtin.delta_merge.plain import compiled_fold, has_compiled
from processor.builtin.delta_merge.record_change import EXPIRED_MAX
from processor.builtin.delta_merge.redelivery import Redelivery
from processor.queues.filler import QueueFiller
from processor.wire.command import CommandReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel

    from processor.api import State
    from processor.config import TopicConfig
    from processor.wire.command import CommandHeaders

READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the stored records that are read at once."""
_LOOK_BYTES: Final = 256 * 1024
"""After so many bytes of outputs a merge asks whether the batch should end."""
_LOOK_RECORDS: Final = 16
"""After so many records a merge asks, too."""


class DeltaMerge(AnsweringProcessor):
    """Holds the state of the world of one partition."""

    settings_type = lazy_model("processor.config", "TopicConfig")
    is_repeatable = True
    implementation = "compiled code for plain deltas of JSON" if has_compiled else "Python"
    outputs: ClassVar[tuple[Output, ...]] = (
        Output("sow"),
        Output("delta"),
        Output("publish", repartition=True),
        Output("ack"),
        Output("mark"),
    )

    def __init__(
        self,
        *,
        clock: Callable[[Record], int] | None = None,
        numbers: Numbers | None = None,
    ) -> None:
        """Create a merge, usually without arguments; the hooks are for batch programs, which read a history.

        Args:
            clock: the time at which a record is merged, milliseconds since the epoch, instead of the context's.
            numbers: finds the commands that repeat earlier ones, instead of the marks.
        """
        self._clock = clock
        self._given_numbers = numbers

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the settings once."""
        topic = cast("TopicConfig", settings)  # Or an object with the same attributes, as on Spark.
        codec, own_topic = context.codec, context.source_topic
        compiled = compile_settings(context.name, topic, codec)
        source = f"{own_topic}/{context.partition}/".encode()
        requests = CommandReader(topic.default_command, codec.header_names)
        self._context = context
        self._numbers = self._given_numbers or Deduplicator(
            context.marks, f"{own_topic}/".encode(), topic.sequence_jump_max
        )
        self._acks = Acks(answers_moved=topic.moved_from is not None)
        messages = Messages(codec, compiled.preprocess)
        self._placement = Placement(context, topic, compiled.key, own_topic, messages.body)
        self._redelivery = Redelivery(context, requests, self._numbers, self._acks, self._placement)
        self._commands = CommandMerge(
            context,
            topic,
            compiled,
            source=source,
            requests=requests,
            numbers=self._numbers,
            acks=self._acks,
            placement=self._placement,
            messages=messages,
        )
        self._by_filter = FilterDelete(context, self._numbers, self._acks, self._redelivery, self._delete_many)
        more = builtin_context(context)
        more.lives.is_used = True
        self._queues = QueueFiller(more, source, topic) if more.queues else None
        self._fold_plain = None
        if self._clock is None and topic.default_command == "delta_publish":  # The fold has one time for a batch.
            self._fold_plain = compiled_fold(
                topic, codec, more.lives, partition=context.partition, partitions=self._placement.partitions
            )

    def process(self, records: Sequence[Record]) -> None:
        """Merge the records in order, until it is enough; a delete by filter is carried out between two batches."""
        records, unread = self._with_text_keys(records)
        while records:
            records = self._merge_batch(records)
            if records and self._context.is_full():
                self._context.stop(records[0].offset)
                break
        self._reject_unread(unread, records[0].offset if records else None)
        self._answer()

    def _merge_batch(self, records: Sequence[Record]) -> Sequence[Record]:
        """Merge records up to a delete by filter, with one read and one write of states; returns those behind them."""
        commands = self._commands
        batch, states = _read_states(self._context.state, records)
        commands.begin(states)
        is_again = records[0].offset <= self._redelivery.until
        merge: Callable[[Record], int] = partial(
            self._merge_or_reject, self._merge_again if is_again else commands.merge
        )
        if self._queues is not None:
            merge = self._queues.follow(batch, commands.sow, merge)
        try:
            if self._fold_plain is None or is_again:
                count, folded_bytes = self._merge_each(batch, merge), 0
            else:
                count, folded_bytes = self._fold_plain(
                    batch, states, commands.changed, commands.sow, commands.delta, merge, self._context.is_full
                )
        except ByFilter as command:
            self._end_batch(None)
            return self._by_filter.take(command, records)
        self._end_batch(folded_bytes)
        return records[count:]

    def _merge_each(self, records: Sequence[Record], merge: Callable[[Record], int]) -> int:
        """Merge records, each by itself, until the batch is full; return how many were merged."""
        commands, clock, is_full = self._commands, self._clock, self._context.is_full
        output_bytes, look_bytes, look_at = 0, _LOOK_BYTES, _LOOK_RECORDS
        for number, record in enumerate(records):
            if output_bytes >= look_bytes or number >= look_at:
                look_bytes, look_at = output_bytes + _LOOK_BYTES, number + _LOOK_RECORDS
                if is_full(output_bytes):
                    return number
            if clock is not None:
                commands.now_ms = clock(record)
            output_bytes = merge(record)
        return len(records)

    def _merge_or_reject(self, merge: Callable[[Record], None], record: Record) -> int:
        """Carry out or reject a command; return the bytes of the outputs that the batch has made in this way."""
        try:
            merge(record)
        except RecordRejected as error:
            self._reject(record, error)
        return self._commands.output_bytes

    def _merge_again(self, record: Record) -> None:
        """Carry out a command that may be in SOW already."""
        if not self._redelivery.is_done(record):
            self._commands.merge(record)

    def _end_batch(self, more_bytes: int | None = 0) -> None:
        """Hand over states and outputs; `more_bytes` were made in other ways, None: they were not counted."""
        context, commands = self._context, self._commands
        context.state.put_many(commands.changed)
        size_bytes = None if more_bytes is None else commands.output_bytes + more_bytes
        context.forward_many("sow", commands.sow, size_bytes)
        context.forward_many("delta", commands.delta, None if size_bytes is None else 0)
        if self._queues is not None:
            self._queues.fill(commands.sow)

    def punctuate(self, now_ms: int) -> bool | None:  # noqa: ARG002
        """Expire due records, in order of due time; not before every record published in time has been seen."""
        if self._by_filter.is_running:
            return self._by_filter.go_on()
        if due := self._context.state.due(self._context.complete_until_ms, EXPIRED_MAX):
            self._commands.begin(dict(due))
            for key, stored in due:
                self._commands.expire(key, stored)
            self._end_batch()
        return None

    def _delete_many(self, record: Record, request: CommandHeaders, matching: Sequence[tuple[bytes, Stored]]) -> None:
        """Remove the records that a delete by filter finds."""
        commands = self._commands
        more = commands.more_headers(record, request)
        commands.begin(dict(matching))
        for key, old in matching:
            commands.remove(key, old, "delete", more)
        self._end_batch()


def _read_states(state: State, records: Sequence[Record]) -> tuple[Sequence[Record], dict[bytes, Stored | None]]:
    """Read the states that records meet: return the first records, as many as fit, and the states of their keys."""
    keys = [record[0] for record in records if record[0] is not None]
    states, count = state.get_some(keys, READ_BYTES_MAX)
    if count == len(keys):
        return records, states
    places = [place for place, record in enumerate(records) if record[0] is not None]
    return records[: places[count]], states
