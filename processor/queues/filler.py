"""Writes the merged records of a batch that a queue's filter matches to the queues over their topic.

A message is the SOW record, whole, with its headers and the header `source`, which names the input record. The ways to
merge a batch give SOW records without their input records, for speed. Both are in the same order, and each input record
has one SOW record, except those that a way hands to the merge in parts: for these `follow` notes the SOW records that
there were before and after. So a topic with queues is merged as fast as one without, and pays for its messages only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from processor.errors import rejection
from processor.topics.family import queue_outputs
from processor.wire.dead_letter import reason_headers
from processor.wire.record_headers import message_headers, source_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from processor.api import Codec, Headers, Outgoing, Record, Value
    from processor.api.builtin import BuiltinContext
    from processor.config import QueueConfig, TopicConfig
    from processor.filter import Filter


def check_queue(name: str, settings: QueueConfig, codec: Codec | None) -> None:
    """Refuse a filter that cannot be used.

    Raises:
        ConfigurationError: it cannot be read, its records have no fields, or its answer changes by itself.
    """
    if _selected(name, settings) is not None and codec is not None:
        from processor.filter.filter import require_fields  # noqa: PLC0415 - as in `_selected`

        require_fields(f"queues.{name}.filter", settings.underlying, can_delta=codec.can_delta)


def _selected(name: str, settings: QueueConfig) -> Filter | None:
    """Compile the filter of a queue; None: it has every record."""
    if settings.filter is None:
        return None
    from processor.filter.filter import compile_selection  # noqa: PLC0415 - rare, and costly to import on Spark

    reason = "a record is looked at once, when it is merged"
    return compile_selection(f"queues.{name}.filter", settings.filter, changes_with=reason)


class _Queue(NamedTuple):
    """One queue over the topic."""

    messages: str
    """The output with its messages."""
    dead_letters: str
    """The output with the records that its filter failed on."""
    selected: Filter | None
    """Its filter; None: it has every record."""


class QueueFiller:
    """The queues over one partition of a SOW topic."""

    def __init__(self, context: BuiltinContext, source: bytes, settings: TopicConfig) -> None:
        """Compile the filters.

        Args:
            context: the partition's, with its queues.
            source: the input topic and partition, with which each header `source` begins.
            settings: the topic's.
        """
        self._context = context
        self._source = source
        self._has_source = settings.source_header
        self._queues = [_Queue(*queue_outputs(name), _selected(name, queue)) for name, queue in context.queues]
        self._uses_fields = any(queue.selected is not None for queue in self._queues)
        self._records: Sequence[Record] = ()
        self._spans: dict[int, tuple[int, int]] = {}

    def follow(
        self, records: Sequence[Record], sow: Sequence[Outgoing], take: Callable[[Record], int]
    ) -> Callable[[Record], int]:
        """Begin with a batch; return `take` as a function that also notes the SOW records of each record it takes.

        Args:
            records: the input records of the batch.
            sow: receives the SOW records of the batch.
            take: merges one record in parts.
        """
        self._records, self._spans = records, {}
        spans = self._spans

        def followed(record: Record) -> int:
            before = len(sow)
            made_bytes = take(record)
            spans[record.offset] = before, len(sow)
            return made_bytes

        return followed

    def fill(self, sow: Sequence[Outgoing]) -> None:
        """Forward the messages of a batch; records that no input record wrote, as expired ones, give none."""
        messages: list[list[Outgoing]] = [[] for _ in self._queues]
        for offset, (key, data, sow_headers) in self._updates(sow):
            headers = message_headers(sow_headers)
            assert data is not None
            with_source: Headers = headers if self._has_source else [*headers, source_header(self._source, offset)]
            body = self._body(data)
            for queue, its_messages in zip(self._queues, messages, strict=True):
                try:
                    if type(body) is _Unreadable:
                        raise body.error
                    is_selected = queue.selected is None or self._matches(queue.selected, key, data, headers, body)
                except Exception as error:  # noqa: BLE001 - a function of a filter is a plug-in and may raise anything
                    why = rejection(error)
                    source = f"{self._source.decode()}{offset}"
                    letter = [*headers, *reason_headers(why.reason, why.detail.encode()[:1000], source)]
                    self._context.forward(queue.dead_letters, key or b"", data, letter)
                    self._context.count("queue_filter_failed")
                    continue
                if is_selected:
                    its_messages.append((key, data, with_source))
        self._records, self._spans = (), {}
        for queue, its_messages in zip(self._queues, messages, strict=True):
            if its_messages:
                self._context.forward_many(queue.messages, its_messages)

    def _updates(self, sow: Sequence[Outgoing]) -> Iterator[tuple[int, Outgoing]]:
        """The SOW records that are no deletes, each with the offset of the input record that wrote it."""
        place, spans = 0, self._spans
        for record in self._records:
            span = spans.get(record.offset)
            if span is None:
                if place >= len(sow):
                    return  # The batch ended before this record.
                span = place, place + 1
            place = span[1]
            for outgoing in sow[span[0] : span[1]]:
                if outgoing[1] is not None:  # A record that was over expires first, and gives no message.
                    yield record.offset, outgoing

    def _body(self, data: bytes) -> Value:
        """The record's parsed value, if a filter looks at it; or the error with which it cannot be read."""
        if not self._uses_fields:
            return None
        try:
            return self._context.codec.decode_own(data)
        except Exception as error:  # noqa: BLE001 - a message type may be a plug-in
            return _Unreadable(error)

    def _matches(self, selected: Filter, key: bytes | None, data: bytes, headers: Headers, body: Value) -> bool:
        if not selected.uses_metadata:
            return bool(selected.matches(body))
        from processor.filter.filter import metadata_of_parts  # noqa: PLC0415 - as in `_selected`

        metadata = metadata_of_parts(key, data, headers, self._context.name, self._context.now_ms)
        return bool(selected.matches(body, metadata))


class _Unreadable:
    """The place of a record that cannot be parsed."""

    def __init__(self, error: Exception) -> None:
        self.error = error
