"""One message for all subscriptions of a connection that an update is for.

::

    subscription   filter      asked for                 an update of one record
    a              /qty > 10   select=[-/,+/qty]           ─┐
    b              /qty < 90   select=[-/,+/note]          ─┼─▶ one message with id, qty, note and the time,
    c              (all)       select=[-/], timestamp      ─┘   sub_ids a, b, c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.subscriptions.message_builder import Teller, gone_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from processor.subscriptions.message import Message
    from processor.subscriptions.message_builder import Style
    from processor.subscriptions.subscription import Subscription
    from processor.subscriptions.update import Change

UNIONS_MAX: Final = 256
"""Unions of select lists that are kept compiled; the one that was used least recently goes first."""


class Addressed(NamedTuple):
    """A message of one update for one subscription."""

    subscription: Subscription
    change: Change
    message: Message


class Sharing:
    """Makes the messages of updates that are for several subscriptions; of one engine, for all its connections."""

    def __init__(self) -> None:
        self._unions: dict[frozenset[Style], Teller] = {}

    def messages(self, update: Sequence[Addressed]) -> Iterator[Message]:
        """The messages of one update for one connection: one for each record and command.

        Args:
            update: what each subscription would get if it were the only one.
        """
        if len(update) == 1:
            [(subscription, _, message)] = update
            yield message.addressed((subscription.sub_id,))
            return
        groups: dict[tuple[bytes, str], list[Addressed]] = {}
        for addressed in update:
            groups.setdefault((addressed.change.key, addressed.message.command), []).append(addressed)
        for group in groups.values():
            yield self._message(group).addressed(tuple([addressed.subscription.sub_id for addressed in group]))

    def _message(self, group: Sequence[Addressed]) -> Message:
        """The message of one record: whole if any of them gets it whole, and with all that any of them asked for."""
        whole = next((message for _, _, message in group if not message.delta), None)
        message = group[0].message if whole is None else whole
        tellers = {subscription.teller.style: subscription.teller for subscription, _, _ in group}
        if len(tellers) > 1:
            message = _united(message, group[0].change, self._union(tellers))
        if not message.delta:
            return message
        # One that was not sent updates in which nothing changed for it has an older record than the others.
        bases = [base for _, _, message in group if (base := message.delta_base) is not None]
        base = min(bases, default=None)
        return message if base == message.delta_base else message._replace(delta_base=base)

    def _union(self, tellers: dict[Style, Teller]) -> Teller:
        styles = frozenset(tellers)
        union = self._unions.pop(styles, None) or Teller.union(list(tellers.values()))
        self._unions[styles] = union
        if len(self._unions) > UNIONS_MAX:
            del self._unions[next(iter(self._unions))]
        return union


def _united(message: Message, change: Change, union: Teller) -> Message:
    """The same message with all that a union sends."""
    if message.command == "oof":
        is_gone = change.new.value is None
        value = change.old_value if is_gone else change.new_value
        return union.whole("oof", change.new, value, gone_reason(change.new) if is_gone else "match")
    if not message.delta:
        return change.whole(union)
    delta = change.delta(union)
    assert delta is not None, "a union leaves no update out"
    return delta
