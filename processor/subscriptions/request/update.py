"""An update of one key: everything that is computed of it is computed once, however many subscriptions use it.

Subscribers have different rights, but many have the same condition, or the same fields. The answers are kept by the
texts of both, so that 1,000 subscribers with 20 conditions cost 20 evaluations::

    record ──▶ value ──▶ selected(fields) ──▶ matches(condition, fields)
                 1          each list once        each pair once
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import RecordRejected
from processor.filter.evaluation import NO_METADATA
from processor.merge import add_touched, touch
from processor.subscriptions.request.entitlement import EntitledFilter
from processor.wire.record_headers import version_of
from processor.wire.subscriber_headers import is_over, touched_paths

if TYPE_CHECKING:
    from processor.filter import Filter, RecordMetadata
    from processor.filter.aggregate import Contribution
    from processor.merge import Touched
    from processor.record import Record, Value
    from processor.subscriptions.request.record_order import SortKey, SortOrder
    from processor.subscriptions.request.select import Select
    from processor.subscriptions.request.subscribed_topic import Topic
    from processor.subscriptions.request.subscriber_message import Message, MessageBuilder
    from processor.subscriptions.request.subscription_spec import GroupingSpec


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

    def matches_entitled(self, selection: EntitledFilter) -> bool:
        """Return whether a subscriber may see the record, and its filter matches; equal rights share the answers.

        Raises:
            RecordRejected: a third party's function raised.
            Stop: as `value`.
        """
        if selection.allowed is not None and not self.matches(selection.allowed):
            return False
        return selection.asked is None or self.matches(selection.asked, selection.select)

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


class Update:
    """The records of a key before and after an update, with all that was computed of them for subscriptions."""

    __slots__ = (
        "_addressed",
        "_contributions",
        "_messages",
        "_others",
        "_states",
        "_topic",
        "_touched",
        "after",
        "before",
        "key",
        "new",
        "old",
        "partition",
    )

    def __init__(self, topic: Topic, partition: int, key: bytes, old: Record | None, new: Record) -> None:
        self.partition = partition
        """The partition of the key."""
        self.key = key
        """The Kafka record key."""
        self.old = old
        """The record before; None if there was none, or it is not known."""
        self.new = new
        """The record after; a tombstone has no value."""
        self.before = EvaluatedRecord(topic, partition, old)
        """The record before, with the answers of filters."""
        self.after = EvaluatedRecord(topic, partition, new)
        """The record after, likewise."""
        self._topic = topic
        # The objects whose ids are parts of names are kept with their entries, so that each id stays its own.
        self._states: dict[int, EvaluatedRecord] = {}
        self._others: dict[int, Update] = {}
        self._touched: dict[tuple[int, str | None, bool], Touched] = {}
        self._messages: dict[object, Message | None] = {}
        self._addressed: dict[tuple[int, str], tuple[Message, Message]] = {}
        self._contributions: dict[tuple[str, str | None], Contribution] = {}

    @property
    def old_value(self) -> Value | None:
        """The parsed record before; None if there was none.

        Raises:
            Stop: no worker wrote it like this.
        """
        return self.before.value

    @property
    def old_version(self) -> int | None:
        """The version of the record before; None if there was none."""
        return None if self.old is None else version_of(self.old.headers)

    @property
    def new_value(self) -> Value | None:
        """The parsed record after; None for a tombstone.

        Raises:
            Stop: as `old_value`.
        """
        return self.after.value

    def state(self, record: Record) -> EvaluatedRecord:
        """Another record of this key, or one of the two, with the answers of filters."""
        if record is self.old:
            return self.before
        state = self._states.get(id(record))
        if state is None:
            state = self._states[id(record)] = EvaluatedRecord(self._topic, self.partition, record)
        return state

    def value_of(self, record: Record) -> Value:
        """The parsed value of another record of this key.

        Raises:
            Stop: as `old_value`.
        """
        return self.state(record).value

    def standing(self, record: Record) -> Update:
        """The update from another key's record to itself: this update moves it in or out of a window."""
        update = self._others.get(id(record))
        if update is None:
            update = Update(self._topic, self.partition, record.key or b"", record, record)
            self._others[id(record)] = update
        return update

    @property
    def touched(self) -> Touched | None:
        """Of a conflated topic, the paths that changed since the record before and changed back; None: no such path.

        Raises:
            Stop: no worker wrote the header like this.
        """
        try:
            return touched_paths(self.new.headers, self.new_value)
        except RecordRejected as error:
            raise self._topic.unreadable(self.new, error, self.partition) from error

    def touched_since(self, record: Record, select: Select | None, *, now: bool) -> Touched:
        """The selected paths at which the record after differs from an earlier record; not to be changed.

        Args:
            record: the earlier record.
            select: the select list; None: all paths.
            now: whether the record after counts; if not, all paths of the earlier one are touched.

        Raises:
            Stop: as `old_value`.
        """
        memo = id(record), None if select is None else select.canonical_text, now
        tree = self._touched.get(memo)
        if tree is None:
            tree = {}
            touch(tree, self.state(record).selected(select), [self.after.selected(select) if now else None])
            if now and (touched := self.touched) is not None:
                add_touched(tree, touched)
            self._touched[memo] = tree
        return tree

    def matches(self, filter: Filter | None) -> tuple[bool, bool]:  # noqa: A002 - AMPS' name
        """True if a filter matches the record before, and whether it matches the record after.

        Raises:
            RecordRejected: a third party's function raised.
            Stop: no worker wrote a record like this.
        """
        if filter is None:
            return self.old is not None, self.new.value is not None
        if type(filter) is EntitledFilter:
            return self.before.matches_entitled(filter), self.after.matches_entitled(filter)
        before, after = self.before, self.after
        if filter.uses_metadata:
            return before.matches(filter), after.matches(filter)
        return (  # It is asked once for each filter: there is nothing to keep.
            before.record is not None and filter.matches(before.value),
            after.record is not None and filter.matches(after.value),
        )

    def contribution(self, spec: GroupingSpec) -> Contribution:
        """The part of the record after that its group needs; made once for all groupings with the same fields.

        Raises:
            SowstreamError: as `matches`.
        """
        select = None if spec.entitlement is None else spec.entitlement.select
        memo = spec.text, None if select is None else select.canonical_text
        part = self._contributions.get(memo)
        if part is None:
            part = self._contributions[memo] = spec.contribution(self.new, self.after.selected(select))
        return part

    def addressed(self, message: Message, sub_id: str) -> Message:
        """A message of this update for one subscription; the same object for all connections that give it this name."""
        memo = id(message), sub_id
        if (entry := self._addressed.get(memo)) is None:
            # The message is kept, so that its id stays its own.
            entry = self._addressed[memo] = message, message.addressed((sub_id,))
        return entry[1]

    def full_message(self, builder: MessageBuilder) -> Message:
        """The message with the full record after; built once for all subscriptions of a style."""
        memo = builder.style
        if (message := self._messages.get(memo)) is None:
            message = self._messages[memo] = builder.full("publish", self.new, self.new_value)
        return message

    def delta_message(self, builder: MessageBuilder) -> Message | None:
        """The message with the delta, None if it is empty and not wanted; built once for all of a style."""
        memo = (builder.style, builder.no_empties)
        if memo not in self._messages:
            self._messages[memo] = builder.delta(
                self.new, self.new_value, self.old_value, self.old_version, self.touched
            )
        return self._messages[memo]

    def oof_message(self, builder: MessageBuilder) -> Message:
        """The `oof` of a record that left the focus by this update; built once for all of a style."""
        visible = builder.visible if self.new.value is not None else None
        is_hidden = visible is not None and not self.after.matches(visible)
        memo = (builder.style, "oof", is_hidden)
        if (message := self._messages.get(memo)) is None:
            message = builder.out_of_focus(self.new, self.new_value, self.old_value, is_hidden=is_hidden)
            self._messages[memo] = message
        return message
