"""Routes: the subscriptions of an engine by their filter, each with the receiver of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from processor.subscriptions.request.filter_index import FilterIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from processor.filter import Filter
    from processor.subscriptions.engine_subscription import EngineSubscription
    from processor.subscriptions.request.turn import Turn
    from processor.subscriptions.request.update import Update

Receiver = TypeVar("Receiver")
"""The receiver of a subscription's messages."""

_ABSENT: Final = object()
_SLOTS_AT_ONCE: Final = 100
"""Slots of a filter that leave the index at once; a list of 7,000 texts takes 7 ms, and a client may have a hundred."""


class FilterGroup(Generic[Receiver]):
    """The subscriptions with one filter, which is evaluated once for all of them."""

    def __init__(self, selection: Filter | None) -> None:
        self.filter: Final = selection
        """The filter; None: all records match."""
        self.moves_by_itself: Final = selection is not None and selection.moves_by_itself
        """True if a record may match later without an update."""
        self.members: Final[dict[EngineSubscription, Receiver]] = {}
        """The subscriptions, in the order in which they began, with their receivers."""
        self.windows: Final[dict[int, EngineSubscription]] = {}
        """Of each shared order of records, one subscription whose window has it."""

    def index_windows(self) -> None:
        """Note one window for each order."""
        self.windows.clear()
        for subscription in self.members:
            if subscription.grouping is None and (window := subscription.window) is not None:
                self.windows.setdefault(id(window.places), subscription)


class Routes(Generic[Receiver]):
    """Finds the subscriptions that an update may concern."""

    def __init__(self, turn: Turn | None = None) -> None:
        """Begin without subscriptions.

        Args:
            turn: filters of many values leave the index in turns, as others wait; None: all of them at once.
        """
        self._turn = turn
        self._groups: dict[str | None, FilterGroup[Receiver]] = {}
        self._index: FilterIndex[FilterGroup[Receiver]] = FilterIndex()

    def __bool__(self) -> bool:
        """Return whether there is any subscription."""
        return bool(self._groups)

    def __iter__(self) -> Iterator[tuple[EngineSubscription, Receiver]]:
        """Every subscription with its receiver."""
        return (member for group in self._groups.values() for member in group.members.items())

    def add(self, subscription: EngineSubscription, receiver: Receiver) -> None:
        """Route updates to a subscription from now on."""
        selection = subscription.filter
        text = _text(subscription)
        group = self._groups.get(text)
        if group is None:
            group = self._groups[text] = FilterGroup(selection)
            self._index.add(selection, group, subscription.spec.index_slots)
        group.members[subscription] = receiver
        if subscription.grouping is not None:
            subscription.grouping.subscriptions += 1
        elif subscription.window is not None:
            subscription.window.places.windows += 1
            group.index_windows()

    def remove(self, subscription: EngineSubscription) -> bool:
        """Route no more updates to a subscription; False if none were, as it ended with its snapshot."""
        text = _text(subscription)
        group = self._groups.get(text)
        if group is None or group.members.pop(subscription, _ABSENT) is _ABSENT:
            return False
        if subscription.grouping is not None:
            subscription.grouping.subscriptions -= 1
        elif subscription.window is not None:
            subscription.window.places.windows -= 1
        if not group.members:
            del self._groups[text]
            slots = sum(map(len, (subscription.spec.index_slots or {}).values()))
            if self._turn is not None and slots > _SLOTS_AT_ONCE:
                self._turn.leave(self._removal(group))
            else:
                self._index.remove(group.filter, group)
        elif subscription.window is not None:
            group.index_windows()
        return True

    def _removal(self, group: FilterGroup[Receiver]) -> Iterator[None]:
        """Take a group without members out of the index, in one step."""
        self._index.remove(group.filter, group)
        yield

    def receiver_of(self, subscription: EngineSubscription) -> Receiver:
        """The receiver of a subscription that is routed."""
        return self._groups[_text(subscription)].members[subscription]

    def candidates(self, update: Update) -> Iterable[FilterGroup[Receiver]]:
        """The groups whose filter the record may match, before or after an update.

        Raises:
            SowstreamError: the record cannot be parsed, which every subscriber must learn.
        """
        new_value = update.new_value
        if not self._index.asks_records:
            return list(self._groups.values())
        return self._index.candidates(new_value, update.old_value)


def _text(subscription: EngineSubscription) -> str | None:
    """The text of a subscription's filter."""
    return None if subscription.filter is None else subscription.filter.text
