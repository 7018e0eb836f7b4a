"""One subscription of an engine: what it is told, when, and what it was told before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError, SowstreamError, SubscriberTooSlow
from processor.filter import compile_filter
from processor.subscriptions.conflation.buffer import Bases, Hold
from processor.subscriptions.conflation.group_buffer import GroupHold
from processor.subscriptions.message_builder import Teller, gone_reason
from processor.subscriptions.order import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from processor.record import Record
    from processor.subscriptions.connection import Connection
    from processor.subscriptions.focus import Focus, Found, Step
    from processor.subscriptions.message import Message
    from processor.subscriptions.message_builder import Topic
    from processor.subscriptions.options import Options
    from processor.subscriptions.update import Change


class Request:
    """What somebody subscribes to, understood and checked; nothing has begun."""

    def __init__(
        self,
        topic: Topic,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: Options,
        *,
        snapshot: bool,
        live: bool,
        delta: bool,
    ) -> None:
        """Check it.

        Args:
            topic: what the records are.
            filter: which of them are wanted; None: all.
            options: how.
            snapshot: whether the state of the world is told first.
            live: whether what happens later is told.
            delta: whether updates are told as deltas.

        Raises:
            FilterError: the filter cannot be read.
            ConfigurationError: something else cannot be meant.
        """
        selection = None if filter is None else compile_filter(filter)
        if options.oof and selection is not None and selection.moves_by_itself:
            raise ConfigurationError(
                f"option 'oof': what {selection.text!r} finds changes with the clock, and nobody would be told of it; "
                "filter by a field of the record, or do without oof"
            )
        self.filter: Final = selection
        self.options: Final = options
        self.snapshot: Final = snapshot
        self.live: Final = live
        self.teller: Final = Teller(topic, options, delta=delta)
        self.order: Final = None if options.order_by is None and not options.is_window else Order(options.order_by)

    @property
    def needs_view(self) -> bool:
        """Whether what was before matters."""
        options = self.options
        if options.oof or options.is_window or options.conflation_key:
            return True
        return self.snapshot or self.teller.tells_deltas

    @property
    def is_known(self) -> bool:
        """Whether the records in focus count as the subscriber's from the beginning: sent, or members of a group."""
        return self.snapshot or bool(self.options.conflation_key)

    @property
    def looks_at_all(self) -> bool:
        """Whether all records in focus must be looked at when it begins."""
        return self.is_known or self.options.is_window


class Subscription:
    """A running one; made by `Connection.subscribe`."""

    def __init__(
        self,
        topic: Topic,
        connection: Connection,
        sub_id: str,
        request: Request,
        focus: Focus,
        find: Callable[[bytes], Record | None],
    ) -> None:
        self.sub_id: Final = sub_id
        """Its name on the connection."""
        self.filter: Final = request.filter
        """Which records it is told of; None: all."""
        self.is_live: Final = request.live
        """Whether anything follows its snapshot."""
        self._topic = topic
        self._connection = connection
        self._focus = focus
        self.teller: Final = request.teller
        """Makes its messages."""
        self._options = request.options
        conflation = request.options.conflation
        self.interval_ms: Final = None if conflation in (None, "auto", "none") else round(float(conflation) * 1000)
        """How long updates of a key are folded; None: as the subscriber's pace has it."""
        self._always_folds = conflation == "auto" or self.interval_ms is not None
        self._ever_folds = conflation != "none"
        self._bases = Bases()
        self._hold: Hold | GroupHold = (
            GroupHold(topic, self.teller, request.options.conflation_key, find)
            if request.options.conflation_key
            else Hold(topic, self.teller, self._bases, tells_oof=request.options.oof, silent=focus.silent)
        )

    @property
    def waiting(self) -> int:
        """How many keys, or groups of them, are held back."""
        return len(self._hold)

    @property
    def due_ms(self) -> int | None:
        """When the next key is due; None if none is held back until a time, or the subscriber has no room for it."""
        began_ms = self._hold.began_ms
        if began_ms is None or self.interval_ms is None or self._connection.is_full:
            return None
        return began_ms + self.interval_ms

    @property
    def waits_for_room(self) -> bool:
        """Whether what is held back is to be told as soon as the subscriber takes it."""
        return self.interval_ms is None and len(self._hold) > 0

    def load(self, found: Iterable[Found]) -> Iterable[Found]:
        """Take the records in focus at the beginning; the same records, for its snapshot."""
        return self._hold.load(found)

    def close(self) -> None:
        """End it: it is told nothing more."""
        self._connection.end(self)

    def opened(self, partition: int, offset: int) -> None:
        """Hear of a partition nobody has read before, and where it begins."""
        self._focus.opened(partition, offset)

    def release_due(self, now_ms: int) -> None:
        """Tell what is due by the clock, as far as the subscriber has room for it."""
        self._connection.release_due(self, now_ms)

    def changed(self, change: Change, now_ms: int, *, was: bool, now: bool) -> None:
        """Take an update that concerns it.

        Args:
            change: the update.
            now_ms: the time.
            was: whether the filter matched the record before.
            now: whether it does.

        Raises:
            SubscriberTooSlow: it would have to wait, and must not.
            SowstreamError: a third party's function raised, or a record is not what a worker wrote.
        """
        hold, connection = self._hold, self._connection
        for step in self._focus.steps(change, was=was, now=now):
            if not step.was and not step.now:
                continue
            is_full = connection.is_full
            # What is folded is told first: while anything is, all of it is.
            if self._always_folds or len(hold) or (is_full and self._ever_folds):
                hold.add(step, now_ms)
                connection.folds(self)
            elif (message := self._message(step)) is not None:
                if is_full:
                    raise self._too_slow()
                connection.tell(self, step.change, message)
            elif step.now and self._options.oof and not step.received:
                self._focus.silent(step.change.key)

    def release(self) -> Message | None:
        """What is to be told of the key that was held back longest, which is now not; None if that is nothing."""
        return self._hold.release()

    def fail(self, error: SowstreamError) -> None:
        """End it with an error, which the subscriber hears of after all that was told before."""
        self._connection.fail(self, error)

    def _too_slow(self) -> SubscriberTooSlow:
        return SubscriberTooSlow(
            f"subscription {self.sub_id} to {self._topic.name}: {self._connection.queue_max:,} messages wait to be "
            "taken, and with conflation=none none of them may be folded; read faster, or leave the option out"
        )

    def _message(self, step: Step) -> Message | None:
        """What is told of an update; None if that is nothing."""
        change, was, now, received = step
        if now and was and self.teller.tells_deltas:
            return self._delta(change)
        self._bases.take(change.key, None)  # It has the record as it is now, or not at all.
        if now:
            return change.whole(self.teller)
        if not was or not received or not self._options.oof:
            return None
        if change.new.value is None:
            return self.teller.whole("oof", change.new, change.old_value, gone_reason(change.new))
        return self.teller.whole("oof", change.new, change.new_value, "match")

    def _delta(self, change: Change) -> Message | None:
        """What changed, with the version that the subscriber has as its base."""
        message = change.delta(self.teller)
        if message is None:
            self._bases.left_out(change.key, change.old_version)
            return None
        base = self._bases.take(change.key, message.delta_base)
        return message if base == message.delta_base else message._replace(delta_base=base)


def snapshot(teller: Teller, found: Iterable[Found], sub_ids: tuple[str, ...]) -> Iterator[Message]:
    """The state of the world, in the order of what was found."""
    yield teller.mark("group_begin", sub_ids)
    whole = teller.whole
    for record, value in found:
        yield whole("sow", record, value, None, sub_ids)
    yield teller.mark("group_end", sub_ids)
