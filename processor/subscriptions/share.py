"""One message for all subscriptions of a connection that an update is for.

::

    subscription   filter      asked for                 an update of one record
    a              /qty > 10   select=[-/,+/qty]           ─┐
    b              /qty < 90   select=[-/,+/note]          ─┼─▶ one message with id, qty, note and the time,
    c              (all)       select=[-/], timestamp      ─┘   sub_ids a, b, c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.subscriptions.grouping import SharedGroupings
from processor.subscriptions.message_builder import MessageBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from processor.subscriptions.grouping import Grouping
    from processor.subscriptions.message import Message
    from processor.subscriptions.message_builder import Style
    from processor.subscriptions.subscription import EngineSubscription
    from processor.subscriptions.update import Update

UNIONS_MAX: Final = 256
"""Unions of select lists that are kept compiled; the least recently used one is dropped first."""


class Addressed(NamedTuple):
    """A message of one update for one subscription."""

    subscription: EngineSubscription
    update: Update
    message: Message


class Sharing:
    """Builds the messages of updates that several subscriptions share; one for all connections of an engine."""

    def __init__(self) -> None:
        self.groupings: Final = SharedGroupings()
        """The groupings of running subscriptions."""
        self._unions: dict[frozenset[Style], MessageBuilder] = {}

    def messages(self, addressed: Sequence[Addressed]) -> Iterable[Message]:
        """The messages of one update for one connection: one for each record and command.

        Args:
            addressed: the message that each subscription would get if it were the only one.
        """
        if len(addressed) == 1:
            [(subscription, update, message)] = addressed
            return (update.addressed(message, subscription.sub_id),)
        return self._shared(addressed)

    def _shared(self, addressed: Sequence[Addressed]) -> Iterator[Message]:
        """The messages of an update that several subscriptions of a connection share."""
        # The keys of rows are those of groups: subscriptions with other groups have other rows.
        groups: dict[tuple[Grouping | None, bytes, str], list[Addressed]] = {}
        for one in addressed:
            groups.setdefault((one.subscription.grouping, one.update.key, one.message.command), []).append(one)
        for group in groups.values():
            yield self._message(group).addressed(tuple([one.subscription.sub_id for one in group]))

    def _message(self, group: Sequence[Addressed]) -> Message:
        """The message of one record with all fields that a subscription of the group selects; full if one gets all."""
        full = next((message for _, _, message in group if not message.delta), None)
        message = group[0].message if full is None else full
        builders = {subscription.builder.style: subscription.builder for subscription, _, _ in group}
        if len(builders) > 1:
            message = _united(message, group[0].update, self._union(builders))
        if not message.delta:
            return message
        # A subscription whose empty updates were left out has an older record than the others.
        bases = [base for _, _, message in group if (base := message.delta_base) is not None]
        base = min(bases, default=None)
        return message if base == message.delta_base else message._replace(delta_base=base)

    def _union(self, builders: dict[Style, MessageBuilder]) -> MessageBuilder:
        styles = frozenset(builders)
        union = self._unions.pop(styles, None) or MessageBuilder.union(list(builders.values()))
        self._unions[styles] = union
        if len(self._unions) > UNIONS_MAX:
            del self._unions[next(iter(self._unions))]
        return union


def _united(message: Message, update: Update, union: MessageBuilder) -> Message:
    """The same message, built by a union."""
    if message.command == "oof":
        return update.oof_message(union)
    if not message.delta:
        return update.full_message(union)
    delta = update.delta_message(union)
    assert delta is not None, "a union leaves no update out"
    return delta
