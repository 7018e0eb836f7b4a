"""A record as the subscribers to one topic see it: parsed once, each filter evaluated once, each selection made once.

Subscribers have different rights, but many have the same condition, or the same fields. The answers are kept by the
texts of both, so that 1,000 subscribers with 20 conditions cost 20 evaluations::

    record ──▶ value ──▶ selected(fields) ──▶ matches(condition, fields)
                 1          each list once        each pair once
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.filter.evaluation import NO_METADATA
from processor.wire.subscriber_headers import is_over

if TYPE_CHECKING:
    from processor.filter import Filter, RecordMetadata
    from processor.record import Record, Value
    from processor.subscriptions.order import SortKey, SortOrder
    from processor.subscriptions.select import Select
    from processor.subscriptions.topic import Topic

_UNREAD: Final = object()


class EvaluatedRecord:
    """One record of an update, with the answers of filters and the selections of fields that were made of it."""

    __slots__ = (
        "_answers",
        "_metadata",
        "_over",
        "_partition",
        "_selected",
        "_sort_keys",
        "_topic",
        "_value",
        "record",
    )

    def __init__(self, topic: Topic, partition: int, record: Record | None) -> None:
        """Begin without an answer.

        Args:
            topic: the topic.
            partition: the record's partition.
            record: the record; None, or a tombstone: there is none.
        """
        self.record: Final = None if record is None or record.value is None else record
        """The record; None: there is none."""
        self._topic = topic
        self._partition = partition
        self._value: Value = _UNREAD
        self._metadata: RecordMetadata | None = None
        self._answers: dict[tuple[str, str | None], bool] = {}
        self._selected: dict[str, Value] = {}
        self._sort_keys: dict[str | None, SortKey] = {}
        self._over: dict[int, bool] = {}

    @property
    def value(self) -> Value | None:
        """The parsed record; None if there is none.

        Raises:
            Stop: no worker wrote it like this.
        """
        if self._value is _UNREAD:
            self._value = None if self.record is None else self._topic.value(self.record, self._partition)
        return self._value

    def selected(self, select: Select | None) -> Value:
        """The part of the record that a select list includes; None: all of it.

        Raises:
            Stop: as `value`.
        """
        if select is None:
            return self.value
        text = select.canonical_text
        if text not in self._selected:
            self._selected[text] = select.project(self.value)
        return self._selected[text]

    def matches(self, selection: Filter, select: Select | None = None) -> bool:
        """Return whether there is a record, and a filter matches the part of it that a select list includes.

        The metadata that would reveal other fields is left out with a select list.

        Raises:
            RecordRejected: a third party's function raised.
            Stop: as `value`.
        """
        if self.record is None:
            return False
        memo = selection.text, None if select is None else select.canonical_text
        answer = self._answers.get(memo)
        if answer is None:
            metadata = self._visible_metadata(select) if selection.uses_metadata else NO_METADATA
            answer = self._answers[memo] = selection.matches(self.selected(select), metadata)
        return answer

    def sort_key(self, order: SortOrder, key: bytes) -> SortKey:
        """The place of the record, whose key is given, in an order.

        Raises:
            RecordRejected: a third party's function raised.
            Stop: as `value`.
        """
        sort_key = self._sort_keys.get(order.text)
        if sort_key is None:
            metadata = self._visible_metadata(None) if order.uses_metadata else NO_METADATA
            sort_key = self._sort_keys[order.text] = order.key(key, self.value, metadata)
        return sort_key

    def is_over(self, now_ms: int) -> bool:
        """Return whether there is a record whose expiry time has passed."""
        if self.record is None:
            return False
        over = self._over.get(now_ms)
        if over is None:
            over = self._over[now_ms] = is_over(self.record, now_ms)
        return over

    def _visible_metadata(self, select: Select | None) -> RecordMetadata:
        """The metadata; the size of a record would reveal fields that are not selected."""
        metadata = self._metadata
        if metadata is None:
            assert self.record is not None
            metadata = self._metadata = self._topic.metadata_of(self.record)
        return metadata if select is None else metadata._replace(message_bytes=None)
