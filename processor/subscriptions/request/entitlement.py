"""The entitlement of a subscriber: the records and fields that the subscriber may see.

A filter, an order or a select list of the subscriber works on the visible part of a record: another field is NULL to
it. So nothing can be found out by asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.filter import Filter, RecordMetadata
from processor.filter.evaluation import NO_METADATA
from processor.filter.syntax_tree import And, Constant
from processor.subscriptions.request.conditions import required_ranges, required_values
from processor.subscriptions.request.record_order import SortOrder
from processor.subscriptions.request.select import Node, Select
from processor.values.kinds import MISSING

if TYPE_CHECKING:
    from processor.record import Value
    from processor.subscriptions.request.record_order import SortKey


_ANY_DEPTH: Final = 1 << 30


class Entitlement:
    """The right to read the records of one topic that match a filter, and the selected fields of them."""

    __slots__ = ("filter", "select", "text")

    def __init__(self, own_filter: Filter | None, select: Select | None) -> None:
        """Combine a filter and a select list.

        Args:
            own_filter: matches the records that may be seen; None: all.
            select: the fields that may be seen; None: all.
        """
        self.filter: Final = own_filter
        """Matches the records that may be seen; None: all."""
        self.select: Final = select
        """The fields that may be seen; None: all."""
        self.text: Final = f"{own_filter.text if own_filter else ''}\0{select.text if select else ''}"
        """Equal for entitlements to the same records and fields."""

    def allows(self, value: Value, metadata: RecordMetadata) -> bool:
        """Return whether a record may be seen."""
        return self.filter is None or self.filter.matches(value, metadata)

    def visible(self, value: Value) -> Value:
        """The part of a record that may be seen."""
        return value if self.select is None else self.select.project(value)

    def visible_metadata(self, metadata: RecordMetadata) -> RecordMetadata:
        """The metadata that may be seen: the size of a record would reveal hidden fields."""
        return metadata if self.select is None else metadata._replace(message_bytes=None)

    def may_write(self, fields: Value, visible: Value, merge_depth: int | None = None) -> bool:
        """Return whether a message leaves every field alone that may not be seen.

        The answer depends on nothing that may not be seen: otherwise the value of a field could be found out by trying.

        Args:
            fields: the message, whose objects merge into those of the record.
            visible: the visible part of the record; None: there is no record.
            merge_depth: the depth to which objects merge; None: any.
        """
        if self.select is None or type(fields) is not dict:
            return True  # A record that is no object is visible as a whole.
        return _leaves_alone(self.select.root, fields, visible, merge_depth or _ANY_DEPTH)

    def narrowed(self, asked: Filter | None) -> Filter | None:
        """The filter for records that may be seen and match a filter of the subscriber."""
        if self.filter is None and (asked is None or self.select is None):
            return asked
        return EntitledFilter(self, asked)

    def ordered(self, asked: SortOrder) -> SortOrder:
        """The order of a subscriber, by visible fields."""
        return asked if self.select is None else EntitledOrder(self, asked)

    def selected(self, asked: Select | None) -> Select | None:
        """The visible part of the fields that a subscriber selects."""
        if asked is None or self.select is None:
            return asked or self.select
        return Select.intersection(self.select, asked)


class EntitledFilter(Filter):
    """A filter of a subscriber, applied to the visible part of the records that it may see."""

    __slots__ = ("_entitlement", "allowed", "asked", "select")

    def __init__(self, entitlement: Entitlement, asked: Filter | None) -> None:
        allowed = entitlement.filter
        filters = [one for one in (allowed, asked) if one is not None]
        assert filters
        # Without a filter of the subscriber the fields that it may see decide nothing.
        self.text = f"{asked.text}\0{entitlement.text}" if asked else f"\0{allowed.text if allowed else ''}"
        # Indexes hold full records. Projection takes values away and adds none: what the asked filter requires of the
        # visible part holds for the full record too, unless elements of an array have other places in it.
        trees = [one.tree for one in filters if one is allowed or entitlement.select is None or not _has_places(one)]
        self.tree = trees[0] if len(trees) == 1 else And(tuple(trees)) if trees else Constant(value=True)
        self.moves_by_itself = any(one.moves_by_itself for one in filters)
        self.uses_metadata = any(one.uses_metadata for one in filters)
        self.steps = 0 if asked is None else asked.steps  # The other one is not the subscriber's.
        self._entitlement = entitlement
        self.allowed: Final = allowed
        """Matches the records that the subscriber may see; None: all."""
        self.asked: Final = asked
        """The filter of the subscriber; None: it has none."""
        self.select: Final = entitlement.select
        """The fields that the subscriber may see; None: all."""

    def matches(self, record: Value, metadata: RecordMetadata = NO_METADATA) -> bool:
        """Return whether a record may be seen, and the filter is true of its visible part."""
        if self.allowed is not None and not self.allowed.matches(record, metadata):
            return False
        if self.asked is None:
            return True
        entitlement = self._entitlement
        return self.asked.matches(entitlement.visible(record), entitlement.visible_metadata(metadata))


class EntitledOrder(SortOrder):
    """An order of a subscriber, by the visible part of each record."""

    __slots__ = ("_asked", "_entitlement")

    def __init__(self, entitlement: Entitlement, asked: SortOrder) -> None:
        fields = entitlement.select.canonical_text if entitlement.select else ""
        self.text = f"{asked.text or ''}\0{fields}"
        self.uses_metadata, self.steps = asked.uses_metadata, asked.steps
        self.member = None  # A record's text has also the fields that are not visible.
        self._asked = asked
        self._entitlement = entitlement

    def key(self, sow_key: bytes, record: Value, metadata: RecordMetadata) -> SortKey:
        """The place of a record."""
        entitlement = self._entitlement
        return self._asked.key(sow_key, entitlement.visible(record), entitlement.visible_metadata(metadata))


def _leaves_alone(node: Node, fields: Value, visible: Value, depth: int) -> bool:
    """Return whether an object changes visible places only; `depth` counts the levels that merge, this one included."""
    for name, new in fields.items():
        place = node.member(name)
        if place.included and not place.members:
            continue
        if type(new) is not dict or depth == 1 or not place.members:
            return False
        old = None if visible is None else visible.get(name, MISSING)
        # An object replaces another value. If none is visible here, a hidden one may be in its place.
        if type(old) is list or (type(old) is not dict and old is not None and not place.included):
            return False
        if not _leaves_alone(place, new, old if type(old) is dict or old is None else {}, depth - 1):
            return False
    return True


def _has_places(one: Filter) -> bool:
    """Return whether an index would look up an element of an array by its place."""
    required = (*required_values(one.tree), *required_ranges(one.tree))
    return any(type(part) is int for parts in required for part in parts)
