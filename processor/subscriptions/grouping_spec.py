"""The options of an aggregated subscription, compiled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from processor.codec import load_codec
from processor.errors import ConfigurationError
from processor.filter.aggregate import compile_aggregates
from processor.merge import KeyFields
from processor.subscriptions.lists import split
from processor.subscriptions.topic import Topic

if TYPE_CHECKING:
    from processor.filter.aggregate import Contribution
    from processor.record import Record, Value
    from processor.subscriptions.entitlement import Entitlement
    from processor.subscriptions.options import Options

_AS: Final = re.compile(r"(.+)\s+AS\s+(/\S+)", re.IGNORECASE | re.DOTALL)


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
        fields = {}
        for item in split(options.projection or ""):
            match = _AS.fullmatch(item.text.strip())
            if match is None:
                raise ConfigurationError(
                    f"option 'projection': {item.text.strip()!r} has no name; write SUM(/qty) AS /qty"
                )
            fields[match[2]] = match[1]
        try:
            self.definition: Final = compile_aggregates({path: path for path in options.grouping}, fields)
        except ConfigurationError as error:
            raise ConfigurationError(f"option 'projection': {error}") from None
        self.text: Final = f"{','.join(options.grouping)}\0{options.projection}"
        """Equal for the same groups and fields of their rows."""
        self.source: Final = topic
        """The topic of the records."""
        self.filter: Final = filter
        """Selects the records that count; None: all."""
        self.entitlement: Final = entitlement
        """The fields that count; None: all."""
        self.topic: Final = Topic(topic.name, load_codec("json"), KeyFields(tuple(options.grouping)))
        """The topic of the rows, under the name of the records' topic."""

    def contribution(self, record: Record, partition: int, visible: Value) -> Contribution:
        """The part of a record that its group needs.

        Args:
            record: the record.
            partition: its partition.
            visible: the part of its value that the subscriber may see.

        Raises:
            RecordRejected: a third party's function raised.
        """
        place = record.timestamp_ms, partition, record.offset
        if not self.definition.uses_metadata:
            return self.definition.contribution(visible, place)
        metadata = self.source.metadata_of(record)
        if self.entitlement is not None:
            metadata = self.entitlement.visible_metadata(metadata)
        return self.definition.contribution(visible, place, metadata)
