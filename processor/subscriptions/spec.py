"""A subscription as it was asked for, parsed and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError
from processor.filter import compile_filter
from processor.subscriptions.message_builder import MessageBuilder
from processor.subscriptions.order import SortOrder

if TYPE_CHECKING:
    from processor.subscriptions.options import Options
    from processor.subscriptions.topic import Topic


class SubscriptionSpec:
    """The filter, the options and the kind of a subscription, checked before it begins."""

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
        """Check and compile it.

        Args:
            topic: the topic to subscribe to.
            filter: selects records; None: all.
            options: the other options.
            snapshot: whether it begins with the state of the world.
            live: whether it goes on with updates.
            delta: whether updates are delivered as deltas.

        Raises:
            FilterError: the filter cannot be parsed.
            ConfigurationError: the options contradict each other.
        """
        selection = None if filter is None else compile_filter(filter)
        if options.oof and selection is not None and selection.moves_by_itself:
            raise ConfigurationError(
                f"option 'oof': the answer of {selection.text!r} changes with the clock, without an update that could "
                "deliver an oof; filter by a field of the record, or do without oof"
            )
        self.filter: Final = selection
        """Selects records; None: all."""
        self.options: Final = options
        """The other options."""
        self.snapshot: Final = snapshot
        """Whether it begins with the state of the world."""
        self.live: Final = live
        """Whether it goes on with updates."""
        self.builder: Final = MessageBuilder(topic, options, delta=delta)
        """Builds its messages."""
        self.order: Final = None if options.order_by is None and not options.is_window else SortOrder(options.order_by)
        """The order of its records; None: any."""

    @property
    def needs_view(self) -> bool:
        """Whether it needs the records that came before an update."""
        options = self.options
        if options.oof or options.is_window or options.conflation_key:
            return True
        return self.snapshot or self.builder.builds_deltas

    @property
    def counts_as_received(self) -> bool:
        """Whether the records in focus count as the subscriber's from the beginning: sent, or members of a group."""
        return self.snapshot or bool(self.options.conflation_key)

    @property
    def reads_all(self) -> bool:
        """Whether all records in focus must be read when it begins."""
        return self.counts_as_received or self.options.is_window
