"""An index of filters: finds those that a record may match, without evaluating each of them.

Of each filter the index looks for an equality that every match must satisfy, such as `/symbol = 'X'` in
`/symbol = 'X' AND /qty > 10`, and keeps it by path and value. A record is looked up once for each path that there is,
however many filters ask for it. Filters without such an equality are candidates for every record.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from processor.filter import Filter
from processor.filter.evaluation import UNCOUNTED, compile_path
from processor.filter.syntax_tree import Scalar
from processor.filter.value import elements
from processor.record import Value
from processor.subscriptions.request.conditions import (
    Condition,
    NumberKey,
    Parts,
    RangePlace,
    constant_keys,
    element_keys,
    required_ranges,
    required_values,
)
from processor.values.instant import Instant

Item = TypeVar("Item", bound=Hashable)
"""The indexed item: the owner of the filter."""

_Bucket: TypeAlias = dict[int, Item]
"""Items with one value at a path, by their turn: the how many-th they were added."""

_Key: TypeAlias = str | NumberKey | Instant

_Slot: TypeAlias = tuple[int, _Key]
"""The place of a value: the table of its path, and its key there."""

PathSlots: TypeAlias = Mapping[Parts, tuple[_Slot, ...]]
"""The values of which a filter needs one, by their path."""

_TEXTS: Final = 0
"""Texts in filters, by themselves: two texts are equal as texts."""
_NUMBERS: Final = 1
"""Numbers in filters: an equal value may be a number, or a text that is one."""
_TEXT_NUMBERS: Final = 2
"""Texts in filters that are numbers or times, by their value: for the numbers and times in records."""
_SCALARS: Final = frozenset((str, int, bool, type(None), float))
"""Types of values that have no parts."""


class _Entry(NamedTuple):
    """The place of an item, for one of its filters."""

    turn: int
    parts: Parts | None
    """None: it is always a candidate."""
    slots: tuple[_Slot, ...]
    """None at a path: nothing is equal to NULL, and it never is one."""
    condition: Condition | None = None
    """The range or the beginnings by which it is kept; None: by values."""


class FilterIndex(Generic[Item]):
    """Items, found by records that their filters may match."""

    def __init__(self) -> None:
        self._turns = 0
        self._entries: dict[tuple[str | None, Item], _Entry] = {}
        self._filters_of: dict[Item, int] = {}
        self._always: _Bucket[Item] = {}
        self._places: dict[str, dict[Parts, _Place[Item]]] = {}
        """By the first name of the path, then by all of it."""

    def __len__(self) -> int:
        """Number of items, each counted once for each of its filters."""
        return len(self._entries)

    @property
    def asks_records(self) -> bool:
        """True if candidates depend on the record; if not, it need not even be parsed."""
        return bool(self._places)

    def add(self, filter: Filter | None, item: Item, slots: PathSlots | None = None) -> None:  # noqa: A002 - the word
        """Add an item; without a filter it is always a candidate. An item may have several filters, each of them once.

        Args:
            filter: its filter.
            item: the item.
            slots: the slots of the filter, if the caller has them; None: they are computed.

        Raises:
            ValueError: it is there with this filter.
        """
        name = (None if filter is None else filter.text, item)
        if name in self._entries:
            raise ValueError(f"{item!r} is in the index with the filter {name[0]!r} already")
        self._turns += 1
        parts, own_slots = self._best(path_slots(filter) if slots is None else slots)
        condition: Condition | None = None
        if parts is None and filter is not None:
            parts, condition = next(iter(required_ranges(filter.tree).items()), (None, None))
        entry = _Entry(self._turns, parts, own_slots, condition)
        self._entries[name] = entry
        self._filters_of[item] = self._filters_of.get(item, 0) + 1
        if entry.parts is None:
            self._always[entry.turn] = item
        elif entry.slots or entry.condition is not None:
            places = self._places.setdefault(str(entry.parts[0]), {})
            if entry.parts not in places:
                places[entry.parts] = _Place(entry.parts)
            places[entry.parts].add(entry, item)

    def remove(self, filter: Filter | None, item: Item) -> None:  # noqa: A002
        """Remove an item with a filter of the same text.

        Raises:
            KeyError: it is not there.
        """
        entry = self._entries.pop((None if filter is None else filter.text, item))
        self._filters_of[item] -= 1
        if not self._filters_of[item]:
            del self._filters_of[item]
        if entry.parts is None:
            del self._always[entry.turn]
        elif entry.slots or entry.condition is not None:
            first = str(entry.parts[0])
            places = self._places[first]
            if places[entry.parts].remove(entry):
                del places[entry.parts]
                if not places:
                    del self._places[first]

    def candidates(self, record: Value, before: Value = None) -> Iterable[Item]:
        """The items with a filter that a record may match, now or before: all whose filter does match, and few others.

        Each comes once, in the order of adding. The index may change while they are gone through.

        Args:
            record: the record now; None: there is none.
            before: the record before an update; None: there was none.
        """
        buckets: list[_Bucket[Item]] = [self._always] if self._always else []
        if type(record) is dict:
            self._find(record, {}, buckets)
            if type(before) is dict:
                self._find(before, record, buckets)
        elif type(before) is dict:
            self._find(before, {}, buckets)
        if not buckets:
            return ()
        if len(buckets) == 1:
            items = list(buckets[0].values())
        else:
            merged: _Bucket[Item] = {}
            for bucket in buckets:
                merged.update(bucket)
            items = [merged[turn] for turn in sorted(merged)]
        # Only an item with several filters can be there twice.
        return items if len(self._filters_of) == len(self._entries) else dict.fromkeys(items)

    def _find(self, record: dict[str, Value], looked_up: dict[str, Value], buckets: list[_Bucket[Item]]) -> None:
        """Append the buckets that match a record, except by members that are the same in one looked up before."""
        places = self._places
        # Through the fewer of the two.
        for name in places if len(places) <= len(record) else record:
            if name in places and name in record:
                if name in looked_up:
                    value, other = record[name], looked_up[name]
                    if type(value) is type(other) and type(value) in _SCALARS and value == other:
                        continue
                for place in places[name].values():
                    place.find(record, buckets)

    def _best(self, by_path: PathSlots) -> tuple[Parts | None, tuple[_Slot, ...]]:
        """The path to keep a filter by: where its values are the rarest among the filters so far."""
        best: tuple[Parts | None, tuple[_Slot, ...]] = (None, ())
        least = None
        for parts, slots in by_path.items():
            place = self._places.get(str(parts[0]), {}).get(parts)
            crowd = place.crowd(slots) if place is not None else 0
            if least is None or (crowd, len(slots)) < least:
                best, least = (parts, slots), (crowd, len(slots))
        return best


class _Place(Generic[Item]):
    """The items whose filters ask for values at one path."""

    __slots__ = ("_ranges", "_tables", "_value")

    def __init__(self, parts: Parts) -> None:
        self._value = compile_path(parts)
        self._tables: tuple[dict[_Key, _Bucket[Item]], ...] = ({}, {}, {})
        self._ranges: RangePlace[Item] = RangePlace()

    def add(self, entry: _Entry, item: Item) -> None:
        """Add an item under each of its values, or by its range."""
        if entry.condition is not None:
            self._ranges.add(entry.turn, entry.condition, item)
        for table, key in entry.slots:
            self._tables[table].setdefault(key, {})[entry.turn] = item

    def remove(self, entry: _Entry) -> bool:
        """Remove an item; True if there is none left."""
        if entry.condition is not None:
            self._ranges.remove(entry.turn)
        for table, key in entry.slots:
            bucket = self._tables[table][key]
            del bucket[entry.turn]
            if not bucket:
                del self._tables[table][key]
        return not any(self._tables) and not self._ranges

    def crowd(self, slots: Iterable[_Slot]) -> int:
        """Number of items with the most frequent of some values."""
        return max((len(self._tables[table].get(key, ())) for table, key in slots), default=0)

    def find(self, record: Value, buckets: list[_Bucket[Item]]) -> None:
        """Append the buckets that match a record; any element of an array counts."""
        texts, numbers, text_numbers = self._tables
        value = self._value(record, UNCOUNTED)
        if self._ranges:
            self._ranges.find(value, buckets)
        if not any(self._tables):
            return
        for element in (value,) if type(value) is str else elements(value):
            if type(element) is str:
                if element in texts:
                    buckets.append(texts[element])
                if not numbers:
                    continue
            for key in element_keys(element):
                if key in numbers:
                    buckets.append(numbers[key])
                if key in text_numbers and type(element) is not str:
                    buckets.append(text_numbers[key])


def path_slots(filter: Filter | None) -> PathSlots:  # noqa: A002 - it is the word
    """The slots by which an index keeps a filter, of each path; to find those of a list of 7,000 takes 40 ms."""
    required = {} if filter is None else required_values(filter.tree)
    return {
        parts: tuple(dict.fromkeys(slot for constant in constants for slot in _slots(constant)))
        for parts, constants in required.items()
    }


def _slots(constant: Scalar) -> Iterator[_Slot]:
    """The place of a value in a filter."""
    if constant is None or constant == "":
        return
    is_text = isinstance(constant, str)
    if isinstance(constant, str):
        yield _TEXTS, constant
    for key in constant_keys(constant):
        yield (_TEXT_NUMBERS if is_text else _NUMBERS), key
