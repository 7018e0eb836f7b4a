"""Checks the types of a third party's outputs and states: a wrong one would fail in the Kafka client only.

There no record is known to be at fault, and the partition's next owner would fail in the same way. Here the call fails,
and the runtime finds and rejects the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from processor.record import Stored, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Marks, Processor, State
    from processor.record import Outgoing

_OURS: Final = ("processor.builtin.", "spark_integration.")


def is_ours(processor_type: type[Processor]) -> bool:
    """Return whether a processor is a built-in one, whose types mypy has checked; a third party's subclass is not."""
    return processor_type.__module__.startswith(_OURS)


def checked_records(name: str, output: str, records: Sequence[Outgoing]) -> list[Outgoing]:
    """Return the forwarded records, if all of them can be sent.

    Args:
        name: the processor's.
        output: which of its outputs.
        records: key, value and headers of each.

    Raises:
        TypeError: a key is not bytes, a value neither bytes nor None, or headers are no list of text and bytes.
    """
    checked: list[Value] = list(records)
    for record in checked:
        if not isinstance(record, tuple) or len(record) != 3:
            _refuse(name, output, "a record", "a tuple of key, value and headers", record)
        key, value, headers = record
        if not isinstance(key, bytes):
            _refuse(name, output, "the key", "bytes", key)
        if value is not None and not isinstance(value, bytes):
            _refuse(name, output, f"the value of key {key!r:.100}", "bytes, or None for a tombstone", value)
        if not isinstance(headers, list | tuple):
            _refuse(name, output, f"headers of key {key!r:.100}", "a list of (name, bytes)", headers)
        for header in headers:
            if not _is_header(header):
                _refuse(name, output, f"a header of key {key!r:.100}", "a tuple of a text and bytes or None", header)
    return checked


class CheckedState:
    """The state of a third party's processor, which accepts values of the right types only."""

    def __init__(self, state: State, processor: str, on_put: Callable[[], None]) -> None:
        self._state = state
        self._processor = processor
        self._on_put = on_put
        self.get_many, self.get_some, self.due, self.scan = state.get_many, state.get_some, state.due, state.scan

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Stage new states.

        Raises:
            TypeError: a key is not bytes, or a state neither a `Stored` of the right types nor None.
        """
        given: Mapping[Value, Value] = changes
        for key, stored in given.items():
            if not isinstance(key, bytes):
                raise TypeError(f"{self._processor} puts a state under the key {_shown(key)}; a key is bytes")
            if stored is not None and not _is_stored(stored):
                raise TypeError(
                    f"{self._processor} puts {_shown(stored)} under the key {key!r:.100}; a state is None or "
                    "Stored(version: int, value: bytes)"
                )
        self._on_put()
        self._state.put_many(changes)


class CheckedMarks:
    """The marks of a third party's processor, whose names and values are bytes only."""

    def __init__(self, marks: Marks, processor: str, on_put: Callable[[], None]) -> None:
        self._marks = marks
        self._processor = processor
        self._on_put = on_put
        self.get = marks.get

    def put(self, name: bytes, value: bytes) -> None:
        """Set a mark.

        Raises:
            TypeError: the name or the value is not bytes, or the name is one of Sowstream's own marks.
        """
        parts: tuple[Value, ...] = (name, value)
        if not all(isinstance(part, bytes) for part in parts):
            raise TypeError(
                f"{self._processor} puts the mark {_shown(name)} to {_shown(value)}; a mark's name and value are bytes"
            )
        if name.startswith(b"\0"):
            raise TypeError(f"{self._processor} puts the mark {_shown(name)}; names that begin with a NUL are reserved")
        self._on_put()
        self._marks.put(name, value)


def _is_header(header: object) -> bool:
    """Return whether a value is a header that Kafka's client can send."""
    if not isinstance(header, tuple) or len(header) != 2:
        return False
    name, value = header
    if not isinstance(name, str) or (value is not None and not isinstance(value, bytes)):
        return False
    try:
        return name.isascii() or bool(name.encode())
    except UnicodeEncodeError:
        return False


def _is_stored(stored: object) -> bool:
    """Return whether a value is a state that can be written."""
    if not isinstance(stored, Stored):
        return False
    parts: tuple[Value, ...] = stored
    version, value, expires_at_ms, source_offset, *texts = parts
    numbers = (version, expires_at_ms, source_offset)
    return all(isinstance(part, int) for part in numbers) and all(isinstance(part, bytes) for part in (value, *texts))


def _refuse(name: str, output: str, what: str, should_be: str, value: object) -> NoReturn:
    raise TypeError(f"{name} forwards to {output!r}: {what} is {_shown(value)}; it should be {should_be}")


def _shown(value: object) -> str:
    """Show a value with its type, for an error."""
    return f"{type(value).__name__} {value!r:.100}"
