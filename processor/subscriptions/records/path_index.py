"""The indexes behind the memo index: the keys of records by their values at one path, or at several together."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.filter.evaluation import UNCOUNTED, compile_path
from processor.filter.value import elements
from processor.subscriptions.request.conditions import constant_keys, element_keys
from processor.subscriptions.request.turn import LargeDict
from processor.values.pointer import names

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from processor.filter.syntax_tree import Scalar
    from processor.record import Record, Value
    from processor.subscriptions.request.conditions import NumberKey, Parts
    from processor.subscriptions.request.subscribed_topic import RecordView, Topic
    from processor.subscriptions.request.turn import Turn
    from processor.subscriptions.request.update import Update
    from processor.values.instant import Instant

_TEXTS: Final = 0
_NUMBERS: Final = 1
_NUMBERS_BEGIN: Final = frozenset("0123456789+-.")
_TEXT_NUMBERS: Final = 2  # Texts that are numbers, by their value: for the numbers in filters.
COMBINED_MAX: Final = 10_000
"""Combinations of a filter's values at several paths, all of which are looked up."""
_NAMES_MAX: Final = 256
"""Combinations of a record's values, which its arrays multiply; a record with more is looked at by every query."""

_Bucket: TypeAlias = "bytes | dict[bytes, None]"
"""The keys of the records with one value: one alone takes a third of the memory without a table of its own."""


_Key: TypeAlias = "str | NumberKey | Instant"
"""A value by which records are found: a text, or a number or time."""


class PathIndex:
    """The keys of the records by their value at one path."""

    def __init__(self, parts: Parts, turn: Turn | None = None) -> None:
        self._value = compile_path(parts)
        self._tables: tuple[dict[_Key, _Bucket], ...] = (LargeDict(turn), LargeDict(turn), LargeDict(turn))
        self.entries = 0
        """Number of values of records."""

    def keys(self, constants: Iterable[Scalar]) -> dict[bytes, None]:
        """The keys of all records that are equal to one of these."""
        texts, numbers, text_numbers = self._tables
        keys: dict[bytes, None] = {}
        for constant in constants:
            is_text = type(constant) is str
            if is_text:
                _take(keys, texts.get(constant))  # type: ignore[arg-type]
            for key in constant_keys(constant):
                _take(keys, numbers.get(key))
                if not is_text:
                    _take(keys, text_numbers.get(key))
        return keys

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
        return self._value(record, UNCOUNTED) if type(record) is dict else None

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


class PathBuild:
    """The index of one path while it is built: the records of its beginning, and the updates since then."""

    def __init__(self, parts: Parts, topic: Topic, view: RecordView, turn: Turn | None = None) -> None:
        self.path: Final = PathIndex(parts, turn)
        """The index, when `advance` has returned True."""
        self._topic = topic
        self._records = view.scan()
        self._updated: dict[bytes, tuple[Record | None, Record]] = {}  # At the beginning, and now.

    def changed(self, change: Update) -> None:
        """Take an update, which counts when all records of the beginning are there."""
        first, _ = self._updated.get(change.key, (change.old, None))
        self._updated[change.key] = first, change.new

    def advance(self, turn: Turn) -> bool:
        """Take the next records, for one turn; returns whether all are taken.

        Raises:
            SowstreamError: a record cannot be parsed.
        """
        turn.begin()
        value_of = self._topic.value
        for record in self._records:
            assert record.key is not None
            self.path.add(record.key, value_of(record))
            if turn.is_over:
                return False
        while self._updated:
            key, (old, new) = self._updated.popitem()
            before = None if old is None else value_of(old)
            self.path.changed(key, before, None if new.value is None else value_of(new))
            if turn.is_over:
                return False
        return True


class DeclaredIndex:
    """The keys of the records by their values at one or several paths together: an index that settings declare."""

    def __init__(self, parts: tuple[Parts, ...]) -> None:
        self.parts: Final = parts
        """The paths."""
        self._paths = [PathIndex(one) for one in parts]
        self._keys: dict[Hashable, _Bucket] = {}
        self._broad: dict[bytes, None] = {}  # The keys of the records with too many combinations.

    @staticmethod
    def parts_of(paths: tuple[str, ...]) -> tuple[Parts, ...]:
        """Paths, as a filter's tree has them."""
        return tuple(tuple(names(path)) for path in paths)

    def keys(self, required: Mapping[Parts, tuple[Scalar, ...]]) -> dict[bytes, None] | None:
        """The keys of all records that have one of the required values at each path, and of others; None: too many."""
        choices = [path.slots_of(required[parts]) for path, parts in zip(self._paths, self.parts, strict=True)]
        count = 1 if len(choices) == 1 else math.prod(map(len, choices))
        if max(count, len(self._broad)) > COMBINED_MAX:
            return None
        keys = dict(self._broad)
        for slots in itertools.product(*choices):
            _take(keys, self._keys.get(slots if len(slots) > 1 else slots[0]))
        return keys

    def changed(self, key: bytes, old: Value | None, new: Value | None) -> None:
        """Take an update; None stands for a record that was not there, or is deleted."""
        before = () if old is None else self._names(old)
        after = () if new is None else self._names(new)
        if after is None:
            self._broad[key] = None
        elif before is None:
            del self._broad[key]
        if before == after:
            return
        for name in before or ():
            bucket = self._keys[name]
            if type(bucket) is dict and len(bucket) > 1:
                del bucket[key]
            else:
                del self._keys[name]
        for name in after or ():
            others = self._keys.get(name)
            if others is None:
                self._keys[name] = key
            elif type(others) is dict:
                others[key] = None
            else:
                self._keys[name] = {others: None, key: None}  # type: ignore[dict-item]

    def _names(self, record: Value) -> tuple[Hashable, ...] | None:
        """The names under which a record is; None: there are too many of them."""
        slots = [tuple(path.slots(record)) for path in self._paths]
        if len(slots) == 1:
            return slots[0]
        return None if math.prod(map(len, slots)) > _NAMES_MAX else tuple(itertools.product(*slots))


def _take(keys: dict[bytes, None], bucket: _Bucket | None) -> None:
    """Add the keys of a bucket."""
    if type(bucket) is dict:
        keys |= bucket
    elif bucket is not None:
        keys[bucket] = None  # type: ignore[index]
