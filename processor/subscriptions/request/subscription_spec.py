"""A subscription as it was asked for, parsed and checked, with the options of an aggregated one compiled."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Final

from processor.codec import load_codec
from processor.codec.binary import BinaryCodec
from processor.errors import ConfigurationError
from processor.filter import compile_filter
from processor.filter.aggregate import compile_aggregates
from processor.filter.parse import named_fields
from processor.filter.value import PATH, read_path
from processor.merge import KeyFields
from processor.subscriptions.request.filter_index import path_slots
from processor.subscriptions.request.record_order import SortOrder
from processor.subscriptions.request.subscribe_options import split
from processor.subscriptions.request.subscribed_topic import Topic
from processor.subscriptions.request.subscriber_message import MessageBuilder
from processor.subscriptions.request.top_n import FAR
from processor.values.pointer import pointer_of

if TYPE_CHECKING:
    from processor.filter.aggregate import Contribution
    from processor.record import Record, Value
    from processor.subscriptions.request.entitlement import Entitlement
    from processor.subscriptions.request.subscribe_options import Options


_AS: Final = re.compile(rf"(.+)\sAS\s++(?:({PATH})|(/\S+))", re.IGNORECASE | re.DOTALL)
"""A field of a projection: its expression, and its name as a path of a filter, or else as a JSON Pointer."""


class GroupingSpec:
    """The options `grouping` and `projection`, compiled."""

    def __init__(
        self,
        topic: Topic,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: Options,
        entitlement: Entitlement | None = None,
    ) -> None:
        """Compile them.

        Args:
            topic: the topic of the records.
            filter: selects the records that count; None: all.
            options: the options of the subscription.
            entitlement: the fields that count; another one is NULL. None: all of them count.

        Raises:
            ConfigurationError: the projection cannot be used, with the place in it.
        """
        fields: dict[str, str] = {}
        for item in split(options.projection or ""):
            match = _AS.fullmatch(item.text)
            if match is None:
                raise ConfigurationError(f"option 'projection': {item.text!r} has no name; write SUM(/qty) AS /qty")
            name = match[3] if match[2] is None else _pointer("projection", match[2])
            if name in fields:
                raise ConfigurationError(f"option 'projection': two fields have the name {name}")
            fields[name] = match[1].rstrip()
        group_by = {pointer: pointer for pointer in (_pointer("grouping", path) for path in options.grouping)}
        try:
            self.definition: Final = compile_aggregates(group_by, fields)
        except ConfigurationError as error:
            raise ConfigurationError(f"option 'projection': {error}") from None
        if isinstance(topic.codec, BinaryCodec) and (group_by or any(map(named_fields, fields.values()))):
            raise ConfigurationError(
                f"option 'projection': the records of {topic.name} have no fields; count them: COUNT(*) AS /count"
            )
        self.text: Final = f"{','.join(options.grouping)}\0{options.projection}"
        """Equal for the same groups and fields of their rows."""
        self.source: Final = topic
        """The topic of the records."""
        self.filter: Final = filter
        """Selects the records that count; None: all."""
        self.entitlement: Final = entitlement
        """The fields that count; None: all."""
        self.topic: Final = Topic(topic.name, load_codec("json"), KeyFields(self.definition.key))
        """The topic of the rows, under the name of the records' topic."""

    def contribution(self, record: Record, visible: Value) -> Contribution:
        """The part of a record that its group needs.

        Args:
            record: the record.
            visible: the part of its value that the subscriber may see; one that is no object has no fields.

        Raises:
            RecordRejected: a third party's function raised.
        """
        # A snapshot does not know the partitions of its records, and the place is the same if one comes as an update.
        place = record.timestamp_ms, record.offset, record.key or b""
        fields = visible if type(visible) is dict else {}
        if not self.definition.uses_metadata:
            return self.definition.contribution(fields, place)
        metadata = self.source.metadata_of(record)
        if self.entitlement is not None:
            metadata = self.entitlement.visible_metadata(metadata)
        return self.definition.contribution(fields, place, metadata)


def _pointer(option: str, path: str) -> str:
    """The JSON Pointer of a path that is written as in filters.

    Raises:
        ConfigurationError: it leads into an array.
    """
    parts = read_path(path)
    if any(isinstance(part, int) for part in parts):
        raise ConfigurationError(f"option {option!r}: {path!r:.100} leads to one element of an array; name a member")
    return pointer_of(map(str, parts))


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
        entitlement: Entitlement | None = None,
    ) -> None:
        """Check and compile it.

        Args:
            topic: the topic to subscribe to.
            filter: selects records; None: all.
            options: the other options.
            snapshot: whether it begins with the state of the world.
            live: whether it goes on with updates.
            delta: whether updates are delivered as deltas.
            entitlement: the records and fields that the subscriber may see; None: all.

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
        if entitlement is not None:
            selection = entitlement.narrowed(selection)
        self.topic: Final = topic
        """The topic to subscribe to."""
        self.filter: Final = selection
        """Selects records, of those that the subscriber may see; None: all."""
        self.index_slots: Final = path_slots(selection) if live else None
        """The slots of its filter for an index: found where it is compiled, as others may wait where it begins."""
        self.entitlement: Final = entitlement
        """The records and fields that the subscriber may see; None: all."""
        self.options: Final = options
        """The other options."""
        self.snapshot: Final = snapshot
        """True if it begins with the state of the world."""
        self.live: Final = live
        """True if it goes on with updates."""
        self.delta: Final = delta
        """True if updates are delivered as deltas, where the message type has them."""
        self.grouping: Final = None if options.projection is None else GroupingSpec(topic, filter, options, entitlement)
        """The groups of an aggregated subscription; None: its messages are about records."""
        if self.grouping is not None:
            # Its rows are computed from visible fields only, so that all of a row may be seen.
            topic, entitlement = self.grouping.topic, None
        self.builder: Final = MessageBuilder(topic, options, delta=delta, entitlement=entitlement)
        """Builds its messages."""
        order = None if options.order_by is None and not options.is_window else SortOrder(options.order_by)
        self.order: Final = order if order is None or entitlement is None else entitlement.ordered(order)
        """The order of its records; None: any."""

    @property
    def needs_view(self) -> bool:
        """True if it needs the records that came before an update."""
        options = self.options
        if options.oof or options.is_window or options.conflation_key or self.grouping is not None:
            return True
        return self.snapshot or self.builder.builds_deltas

    @property
    def has_state(self) -> bool:
        """True if the subscriber holds the records in focus, and not only those that changed since it began."""
        return self.snapshot or self.options.is_window

    @property
    def counts_as_received(self) -> bool:
        """True if the records in focus count as the subscriber's from the beginning: sent, or members of a group."""
        return self.snapshot or bool(self.options.conflation_key)

    @property
    def reads_all(self) -> bool:
        """True if all records in focus must be read when it begins."""
        return self.counts_as_received or self.options.is_window

    @property
    def window_depth(self) -> int:
        """The places from the first one to the end of its window."""
        options = self.options
        return FAR if options.top_n is None else options.skip_n + options.top_n

    @property
    def live_steps(self) -> int:
        """The work of its filter and its order on each update of an ordinary record, in steps of about 100 ns."""
        if not self.live:
            return 0
        return sum(0 if part is None else part.steps for part in (self.filter, self.order))

    @property
    def window_places(self) -> int:
        """The places of its window, or so many that each record has one."""
        return FAR if self.options.top_n is None else self.options.top_n

    @property
    def order_name(self) -> tuple[str | None, str | None]:
        """Equal for requests whose records, and their order, are the same."""
        return None if self.filter is None else self.filter.text, None if self.order is None else self.order.text

    @property
    def is_read_as_taken(self) -> bool:
        """True if the records of its snapshot are read one by one as the subscriber takes them."""
        return self.order is None and not self.options.conflation_key and self.grouping is None

    def with_snapshot(self) -> SubscriptionSpec:
        """The same subscription, which begins with a snapshot."""
        other = copy.copy(self)
        other.snapshot = True  # type: ignore[misc]  # Of a copy, which is not shared yet.
        return other

    def of_rows(self) -> SubscriptionSpec:
        """The same subscription to the rows of its groups: the filter has selected the records under them."""
        rows = copy.copy(self)
        rows.filter = None  # type: ignore[misc]  # Of a copy, which is not shared yet.
        return rows
