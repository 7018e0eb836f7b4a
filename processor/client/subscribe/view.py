"""The state of the world as a mapping that follows its topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from processor.client.subscribe.frames import Frame, Table, arrow_table, html_table, pandas_frame
from processor.client.subscribe.subscription import Subscription
from processor.errors import RecordRejected, counted
from processor.merge import apply_delta, diff, strictly_equal
from processor.record import Value
from processor.subscriptions import Message
from processor.values.pointer import child


class ViewChange(NamedTuple):
    """The change of one record of a view."""

    key: str
    """Its SOW key."""
    record: Value | None
    """The full record; None: it has left the view. It belongs to the view and changes with it: copy it to keep it."""
    changed: tuple[str, ...] = ()
    """JSON Pointers of the new and changed values; for a new record, of all values."""
    removed: tuple[str, ...] = ()
    """JSON Pointers of the removed values."""


class View(Mapping[str, Value]):
    """A mapping of SOW keys to full records. One thread at a time.

    It changes only during calls: `refresh` applies the messages that have arrived, `changes` waits for more. Its
    records change with it: copy a record to keep or to edit it.
    """

    def __init__(self, subscription: Subscription, spell: Callable[[Value], str] | None = None) -> None:
        """Created by the client; reads the state of the world.

        Args:
            subscription: a `sow_and_delta_subscribe` with `oof`, which belongs to the view from then on.
            spell: returns the SOW key of a value; raises RecordRejected for a value that is no key. None: keys are
                given as text.
        """
        self._spell = spell
        self._subscription = subscription
        self._records: dict[str, Value] = {}
        self._versions: dict[str, int | None] = {}
        self._before: dict[str, Value] | None = None  # While a snapshot arrives: the records before it.
        self._is_broken = False
        self._healed = 0
        self._failure: BaseException | None = None
        try:
            for message in subscription:
                for _ in self._apply(message):
                    pass
                if message.command == "group_end":
                    break
        except BaseException:
            subscription.close()
            raise

    def __getitem__(self, key: Value) -> Value:
        """The current record of a key: as text, or as the value of the key field, as `Client.get` has it."""
        if type(key) is str and key in self._records:
            return self._records[key]
        try:
            text = key if self._spell is None else self._spell(key)
        except RecordRejected:
            raise KeyError(key) from None
        return self._records[text]

    def __contains__(self, key: object) -> bool:
        """True if there is a record of the key, which is given as for `view[key]`."""
        try:
            self[key]
        except (KeyError, TypeError):  # The latter: a list where no key is of values.
            return False
        return True

    def __len__(self) -> int:
        """Number of records."""
        return len(self._records)

    def __iter__(self) -> Iterator[str]:
        """The keys."""
        return iter(self._records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._subscription.__exit__(kind, error, trace)

    @property
    def healed(self) -> int:
        """Number of deltas that did not apply to the version of their record, after which the topic was read again."""
        return self._healed

    def changes(self, timeout_s: float | None = None) -> Iterator[ViewChange]:
        """Each change as it arrives; the view is always in the state after the last change that was yielded.

        Args:
            timeout_s: it ends when no message came for so long; None: it goes on until the view is closed.

        Raises:
            SowstreamError: reading failed.
        """
        self._raise_failure()
        while True:
            message = self._subscription.next_within(timeout_s)
            if message is None:
                return
            yield from self._apply(message)

    def refresh(self, timeout_s: float = 0.0) -> list[ViewChange]:
        """Apply all messages that have arrived; returns the changes.

        Args:
            timeout_s: the longest wait for the first message.

        Raises:
            SowstreamError: reading failed: in this call, or behind the changes that the last one returned.
        """
        self._raise_failure()
        changes: list[ViewChange] = []
        try:
            while (message := self._subscription.next_within(0.0 if changes else timeout_s)) is not None:
                changes += self._apply(message)
        except BaseException as error:
            if not changes:
                raise
            self._failure = error  # Ctrl-C too: a kept view does not deliver these changes to the next run.
        return changes

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def to_arrow(self, *, key_column: str | None = None) -> Table:
        """The records as a `pyarrow.Table`, a column for each field; `key_column` adds one with the SOW keys.

        Raises:
            ConfigurationError: pyarrow is not installed, or a field has values of several types.
        """
        return arrow_table(self.items(), key_column)

    def to_pandas(self, *, key_column: str | None = None) -> Frame:
        """The records as a `pandas.DataFrame`. Arguments and errors as `to_arrow`."""
        return pandas_frame(self.items(), key_column)

    def __repr__(self) -> str:
        return (
            f"<View with {counted(len(self._records), 'record')}{', closed' if self._subscription.is_closed else ''}>"
        )

    def _repr_html_(self) -> str:
        """The first records as a table, for notebooks."""
        return html_table(self)

    def close(self) -> None:
        """End the view, whose records stay as they are. One kept for the next run stands at the last applied change."""
        self._subscription.close()

    def _apply(self, message: Message) -> Iterator[ViewChange]:
        """Apply a message; yields the changes it makes."""
        if self._is_broken and message.command != "group_begin":
            return
        match message.command:
            case "group_begin":
                # Not the first one: the topic had to be read again. A snapshot that broke off has made no state.
                self._before = self._records if self._before is None else self._before
                self._records, self._versions = {}, {}
                self._is_broken = False
            case "group_end":
                yield from self._snapshot_changes()
            case "oof":
                self._versions.pop(_key(message), None)
                if self._records.pop(_key(message), None) is not None:
                    yield ViewChange(_key(message), None)
            case _:
                yield from self._apply_update(message)

    def _apply_update(self, message: Message) -> Iterator[ViewChange]:
        """Apply a full record or a delta."""
        key, records = _key(message), self._records
        if message.delta and message.delta_base is not None and message.delta_base != self._versions.get(key):
            self._begin_again(key, message)
            return
        self._versions[key] = message.version
        if self._before is not None:
            records[key] = message.data
            return
        old = records.get(key)
        if not message.delta:
            records[key] = message.data
            if (change := _difference(key, old, message.data)) is not None:
                yield change
            return
        changed = _changed_pointers(old, message.data)
        records[key] = apply_delta(old, message.data, message.removed)
        if changed or message.removed:
            yield ViewChange(key, records[key], changed, message.removed)

    def _begin_again(self, key: str, message: Message) -> None:
        """Read the topic again because a delta is missing; until its snapshot is complete, the view stays as it is."""
        self._is_broken = True
        self._healed += 1
        self._subscription.begin_again(
            f"a delta of key {key!r:.100} applies to version {message.delta_base}, the view has version "
            f"{self._versions.get(key)}"
        )

    def _snapshot_changes(self) -> Iterator[ViewChange]:
        """The changes that a snapshot made, at its end."""
        before, self._before = self._before or {}, None
        for key in before.keys() - self._records.keys():
            yield ViewChange(key, None)
        for key, record in self._records.items():
            if (change := _difference(key, before.get(key), record)) is not None:
                yield change


def _key(message: Message) -> str:
    assert message.sow_key is not None, "a view is never opened with no_sowkey"
    return message.sow_key


def _difference(key: str, old: Value | None, new: Value) -> ViewChange | None:
    """The difference of two full records; None if they are equal."""
    if type(old) is not dict or type(new) is not dict:
        if old is not None and strictly_equal(old, new):
            return None
        return ViewChange(key, new, tuple(_leaves(new, "")))
    change = diff(old, new)
    changed = tuple(_leaves(change.delta, ""))
    if not changed and not change.removed:
        return None
    return ViewChange(key, new, changed, tuple(change.removed))


def _changed_pointers(old: Value, delta: Value) -> tuple[str, ...]:
    """The values of a delta that differ from the record: a delta always contains the key fields."""
    return tuple(_leaves(diff(old, delta).delta, ""))


def _leaves(value: Value, path: str) -> Iterator[str]:
    """The pointers of all scalar values, arrays and empty objects; for a value that is no object, its own."""
    if type(value) is not dict:
        yield path
        return
    for name, part in value.items():
        if isinstance(part, dict) and part:
            yield from _leaves(part, child(path, name))
        else:
            yield child(path, name)
