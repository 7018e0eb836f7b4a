"""Records as objects of a class: of a dataclass, a pydantic model, or any other type that pydantic validates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from processor.errors import SowstreamError

if TYPE_CHECKING:
    from types import TracebackType

    from processor.client.subscribe.view import View, ViewChange
    from processor.record import Value

RecordT = TypeVar("RecordT")


class RecordType(Generic[RecordT]):
    """A class whose objects records become."""

    def __init__(self, topic: str, kind: type[RecordT]) -> None:
        """Prepare the validation.

        Args:
            topic: the topic, for errors.
            kind: the class. Fields of a record that it does not have are left out.
        """
        from pydantic import TypeAdapter  # noqa: PLC0415 - Only for typed records.

        self._topic = topic
        self._name = getattr(kind, "__name__", str(kind))
        self._adapter: TypeAdapter[RecordT] = TypeAdapter(kind)

    def read(self, key: object, record: Value) -> RecordT:
        """Make an object of a record.

        Raises:
            SowstreamError: the record does not fit the class; with the fields.
        """
        from pydantic import ValidationError  # noqa: PLC0415

        try:
            return self._adapter.validate_python(record)
        except ValidationError as error:
            faults = "; ".join(
                f"{'/'.join(map(str, fault['loc'])) or 'the record'}: {fault['msg']}" for fault in error.errors()[:3]
            )
            raise SowstreamError(f"record {key!r:.100} of {self._topic!r} is no {self._name}: {faults}") from None


class TypedChange(NamedTuple, Generic[RecordT]):
    """The change of one record of a `TypedView`."""

    key: str
    """Its SOW key."""
    record: RecordT | None
    """The record; None: it has left the view."""
    changed: tuple[str, ...] = ()
    """JSON Pointers of the new and changed values."""
    removed: tuple[str, ...] = ()
    """JSON Pointers of the removed values."""


class TypedView(Mapping[str, RecordT]):
    """A view whose records are objects of a class, made when they are asked for. One thread at a time."""

    def __init__(self, view: View, record_type: RecordType[RecordT]) -> None:
        """Created by the client.

        Args:
            view: the view, which belongs to this one from then on.
            record_type: the class.
        """
        self.view = view
        """The view with the records as they are."""
        self._record_type = record_type
        self._changes: deque[ViewChange] = deque()  # Read, but not returned yet.

    def __getitem__(self, key: Value) -> RecordT:
        """The current record of a key, which is given as for `View`."""
        return self._record_type.read(key, self.view[key])

    def __contains__(self, key: object) -> bool:
        """True if there is a record of the key."""
        return key in self.view

    def __len__(self) -> int:
        """Number of records."""
        return len(self.view)

    def __iter__(self) -> Iterator[str]:
        """The keys."""
        return iter(self.view)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.view.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<Typed{repr(self.view)[1:]}"

    def changes(self, timeout_s: float | None = None) -> Iterator[TypedChange[RecordT]]:
        """Each change as it arrives, after those that `refresh` keeps. Arguments and errors as `View.changes`."""
        return map(self._typed, chain(self._kept(), self.view.changes(timeout_s)))

    def refresh(self, timeout_s: float = 0.0) -> list[TypedChange[RecordT]]:
        """Apply all messages that have arrived; returns the changes. Arguments and errors as `View.refresh`.

        A record that does not fit the class is an error of its own: the changes before it are returned first, and those
        after it by the next call.
        """
        if not self._changes:
            self._changes.extend(self.view.refresh(timeout_s))
        typed: list[TypedChange[RecordT]] = []
        while self._changes:
            try:
                typed.append(self._typed(self._changes[0]))
            except SowstreamError:
                if typed:
                    break
                self._changes.popleft()
                raise
            self._changes.popleft()
        return typed

    def close(self) -> None:
        """End the view."""
        self.view.close()

    def _kept(self) -> Iterator[ViewChange]:
        while self._changes:
            yield self._changes.popleft()

    def _typed(self, change: ViewChange) -> TypedChange[RecordT]:
        record: Any = change.record
        if record is not None:
            record = self._record_type.read(change.key, record)
        return TypedChange(change.key, record, change.changed, change.removed)
