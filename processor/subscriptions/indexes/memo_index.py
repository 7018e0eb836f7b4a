"""The memo index: finds records by the value at a path, so that a snapshot of a few need not scan all.

A path is indexed once a second query asks for equality there, as with AMPS' memo indexes: many subscribers that
each join with a `/symbol = 'X'` of their own pay for one scan between them.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.errors import SowstreamError
from processor.filter.path import compile_path
from processor.filter.record_metadata import NO_METADATA
from processor.filter.value import elements, number
from processor.subscriptions.indexes.equality import constant_keys, element_keys, required_values
from processor.values.pointer import names

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping

    from processor.filter import Filter
    from processor.filter.syntax_tree import Scalar
    from processor.record import Record, Value
    from processor.subscriptions.indexes.equality import NumberKey, Parts
    from processor.subscriptions.record_view import RecordView
    from processor.subscriptions.topic import Topic
    from processor.subscriptions.update import Update
    from processor.values.instant import Instant

PATHS_MAX: Final = 4
"""Indexed paths; another one replaces the least recently used one."""
ENTRIES_MAX: Final = 1_000_000
"""Indexed values at one path, of all records: 30 bytes each where many have the same, 100 where each has its
own. A path with more is not indexed, and always scanned."""
_NOTED_MAX: Final = 64
_KEYS_MAX: Final = 10_000
FOUND_MAX: Final = 200_000
"""Records that are looked up; a scan takes less memory for more."""

_TEXTS: Final = 0
_NUMBERS: Final = 1
_NUMBERS_BEGIN: Final = frozenset("0123456789+-.")
_TEXT_NUMBERS: Final = 2  # Texts that are numbers, by their value: for the numbers in filters.


class MemoIndex:
    """The memo index of an engine: the indexed paths, with the keys of the records by value."""

    def __init__(self, topic: Topic, view: RecordView, declared: Iterable[tuple[str, ...]] = ()) -> None:
        """Begin without an index.

        Args:
            topic: the topic.
            view: its records.
            declared: lists of paths that are always indexed, without a limit; `build_declared` does it.
        """
        self._declared = {_DeclaredIndex.parts_of(paths): None for paths in declared}
        self._built: dict[tuple[Parts, ...], _DeclaredIndex] = {}
        self._topic = topic
        self._view = view
        self._paths: dict[Parts, _Path] = {}  # The one asked for last comes last.
        self._once: dict[Parts, None] = {}  # Paths that were asked for, and are not kept in mind.
        self._too_large: dict[Parts, None] = {}  # Of these, what was found to be too much.

    def records(self, selection: Filter | None) -> Iterable[Record] | None:
        """Records that include all matches; None: only a scan finds them."""
        required = {} if selection is None else required_values(selection.tree)
        if (by_key := self._by_key(required)) is not None:
            return self._found(by_key)
        if (keys := self._declared_keys(required)) is not None:
            return self._found(keys)
        if required and not any(parts in self._paths for parts in required):
            for parts in required:
                self._asked(parts)
        found = [self._keys(parts, constants) for parts, constants in required.items() if parts in self._paths]
        keys = min(found, key=len, default=None)
        if keys is None or len(keys) > FOUND_MAX:
            return None
        return self._found(keys)

    def changed(self, change: Update) -> None:
        """Take an update."""
        if not self._paths and not self._built:
            return
        try:
            old, new = change.old_value, change.new_value
        except SowstreamError:  # The error is raised where the record is needed.
            self.clear()
            return
        for declared in self._built.values():
            declared.changed(change.key, old, new)
        for parts, path in list(self._paths.items()):
            path.changed(change.key, old, new)
            if path.entries > ENTRIES_MAX:
                del self._paths[parts]
                _note(self._too_large, parts)

    def clear(self) -> None:
        """Drop the index: its content is out of date."""
        self._paths.clear()
        self._built.clear()

    def build_declared(self) -> None:
        """Build the declared indexes that are not there; an unreadable record leaves them out, and a scan raises it."""
        missing = {parts: _DeclaredIndex(parts) for parts in self._declared if parts not in self._built}
        if not missing:
            return
        try:
            for record in self._view.scan():
                assert record.key is not None
                value = self._topic.value(record)
                for index in missing.values():
                    index.changed(record.key, None, value)
        except SowstreamError:
            return
        self._built |= missing

    def _declared_keys(self, required: Mapping[Parts, tuple[Scalar, ...]]) -> Collection[bytes] | None:
        """The keys that the declared index with the most paths finds; None: none can be used."""
        usable = [index for index in self._built.values() if all(parts in required for parts in index.parts)]
        best = max(usable, key=lambda index: len(index.parts), default=None)
        return None if best is None else best.keys(required)

    def _found(self, keys: Iterable[bytes]) -> list[Record]:
        return [record for record in self._view.get_many(list(keys)).values() if record is not None]

    def _by_key(self, required: Mapping[Parts, tuple[Scalar, ...]]) -> list[bytes] | None:
        """The keys of all records that can match, where the key fields are asked for; None where they are not.

        By texts alone: a record equal to the number 7 may have the key `7`, `07` or `7.0`. And by members of the record
        alone: at `/a/id` a filter goes through the elements of an array `a`, whose members are no key fields.
        """
        fields = [names(pointer) for pointer in self._topic.key.pointers]
        choices = [required.get(path, ()) for path in fields]
        if not fields or not all(choices) or math.prod(map(len, choices)) > _KEYS_MAX:
            return None
        if any(len(path) > 1 for path in fields):
            return None
        keys = []
        for texts in itertools.product(*choices):
            if any(type(text) is not str or not text or number(text) is not None for text in texts):
                return None
            record: Value = {name: text for (name,), text in zip(fields, texts, strict=True)}
            if (key := self._topic.key.text(record)) is not None:
                keys.append(key.encode(errors="surrogatepass"))
        return keys

    def _keys(self, parts: Parts, constants: Iterable[Scalar]) -> Collection[bytes]:
        path = self._paths[parts] = self._paths.pop(parts)
        return path.keys(constants)

    def _asked(self, parts: Parts) -> None:
        """Note a query of a path: the second one makes an index worth its memory."""
        if parts not in self._once:
            _note(self._once, parts)
            return
        if parts in self._too_large:
            return  # To find that out again would take as long as the scan that is needed anyway.
        if (path := self._build(parts)) is not None:
            self._paths[parts] = path
            if len(self._paths) > PATHS_MAX:
                del self._paths[next(iter(self._paths))]

    def _build(self, parts: Parts) -> _Path | None:
        """Index all records at a path; None if there are too many values."""
        path = _Path(parts)
        try:
            for record in self._view.scan():
                assert record.key is not None
                path.add(record.key, self._topic.value(record))
                if path.entries > ENTRIES_MAX:
                    _note(self._too_large, parts)
                    return None
        except SowstreamError:  # The scan that follows raises it.
            return None
        return path


_Bucket: TypeAlias = "bytes | dict[bytes, None]"
"""The keys of the records with one value: one alone takes a third of the memory without a table of its own."""


_Key: TypeAlias = "str | NumberKey | Instant"
"""A value by which records are found: a text, or a number or time."""


class _Path:
    """The keys of the records by their value at one path."""

    def __init__(self, parts: Parts) -> None:
        self._value = compile_path(parts)
        self._tables: tuple[dict[_Key, _Bucket], ...] = ({}, {}, {})
        self.entries = 0
        """Number of values of records."""

    def keys(self, constants: Iterable[Scalar]) -> dict[bytes, None]:
        """The keys of all records that are equal to one of these."""
        texts, numbers, text_numbers = self._tables
        found: dict[bytes, None] = {}
        for constant in constants:
            is_text = type(constant) is str
            if is_text:
                _take(found, texts.get(constant))  # type: ignore[arg-type]
            for key in constant_keys(constant):
                _take(found, numbers.get(key))
                if not is_text:
                    _take(found, text_numbers.get(key))
        return found

    def add(self, key: bytes, record: Value) -> None:
        """Add a record that is not in the index."""
        for number_of_table, value in self.slots(record):
            table = self._tables[number_of_table]
            bucket = table.get(value)
            if bucket is None:
                table[value] = key
            elif type(bucket) is dict:
                bucket[key] = None
            else:
                table[value] = {bucket: None, key: None}  # type: ignore[dict-item]
            self.entries += 1

    def remove(self, key: bytes, record: Value) -> None:
        """Remove a record that is in the index."""
        for number_of_table, value in self.slots(record):
            table = self._tables[number_of_table]
            bucket = table[value]
            if type(bucket) is dict and len(bucket) > 1:
                del bucket[key]
            else:
                del table[value]
            self.entries -= 1

    def changed(self, key: bytes, old: Value | None, new: Value | None) -> None:
        """Take an update; None stands for a record that was not there, or is deleted."""
        before = None if old is None else self._value_of(old)
        after = None if new is None else self._value_of(new)
        if type(before) is type(after) is str and before == after:
            return
        if old is not None:
            self.remove(key, old)
        if new is not None:
            self.add(key, new)

    def _value_of(self, record: Value) -> Value:
        return self._value(record, NO_METADATA) if type(record) is dict else None

    def slots_of(self, constants: Iterable[Scalar]) -> list[tuple[int, _Key]]:
        """The slots in which records are that are equal to one of some values of a filter."""
        slots: dict[tuple[int, _Key], None] = {}
        for constant in constants:
            if type(constant) is str:
                slots[_TEXTS, constant] = None
            for key in constant_keys(constant):
                slots[_NUMBERS, key] = None
                if type(constant) is not str:
                    slots[_TEXT_NUMBERS, key] = None
        return list(slots)

    def slots(self, record: Value) -> Iterable[tuple[int, _Key]]:
        """The slots of a record, each once: an array has one for each element."""
        value = self._value_of(record)
        if type(value) is str and value and value[0] not in _NUMBERS_BEGIN:  # The usual case.
            return ((_TEXTS, value),)
        slots: dict[tuple[int, _Key], None] = {}
        for element in elements(value):
            is_text = type(element) is str
            if is_text:
                slots[_TEXTS, element] = None  # type: ignore[index]
            for key in element_keys(element):
                slots[_TEXT_NUMBERS if is_text else _NUMBERS, key] = None
        return slots


class _DeclaredIndex:
    """The keys of the records by their values at one or several paths together: an index that settings declare."""

    def __init__(self, parts: tuple[Parts, ...]) -> None:
        self.parts: Final = parts
        """The paths."""
        self._paths = [_Path(one) for one in parts]
        self._keys: dict[Hashable, _Bucket] = {}

    @staticmethod
    def parts_of(paths: tuple[str, ...]) -> tuple[Parts, ...]:
        """Paths, as a filter's tree has them."""
        return tuple(tuple(names(path)) for path in paths)

    def keys(self, required: Mapping[Parts, tuple[Scalar, ...]]) -> dict[bytes, None]:
        """The keys of all records that have one of the required values at each path."""
        found: dict[bytes, None] = {}
        choices = [path.slots_of(required[parts]) for path, parts in zip(self._paths, self.parts, strict=True)]
        for slots in itertools.product(*choices):
            _take(found, self._keys.get(slots if len(slots) > 1 else slots[0]))
        return found

    def changed(self, key: bytes, old: Value | None, new: Value | None) -> None:
        """Take an update; None stands for a record that was not there, or is deleted."""
        before = () if old is None else self._names(old)
        after = () if new is None else self._names(new)
        if before == after:
            return
        for name in before:
            bucket = self._keys[name]
            if type(bucket) is dict and len(bucket) > 1:
                del bucket[key]
            else:
                del self._keys[name]
        for name in after:
            others = self._keys.get(name)
            if others is None:
                self._keys[name] = key
            elif type(others) is dict:
                others[key] = None
            else:
                self._keys[name] = {others: None, key: None}  # type: ignore[dict-item]

    def _names(self, record: Value) -> tuple[Hashable, ...]:
        slots = [path.slots(record) for path in self._paths]
        if len(slots) == 1:
            return tuple(dict.fromkeys(slots[0]))
        return tuple(dict.fromkeys(itertools.product(*slots)))


def _note(noted: dict[Parts, None], parts: Parts) -> None:
    """Note a path; the oldest of too many is forgotten."""
    noted[parts] = None
    if len(noted) > _NOTED_MAX:
        del noted[next(iter(noted))]


def _take(found: dict[bytes, None], bucket: _Bucket | None) -> None:
    """Add the keys of a bucket."""
    if type(bucket) is dict:
        found |= bucket
    elif bucket is not None:
        found[bucket] = None  # type: ignore[index]
