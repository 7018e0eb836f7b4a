"""The choice of a view's parts: one for each group and input partition, or one for each record.

A view combines where it need not parse records to do so: then it is faster, the more records of a group change in a
transaction. Elsewhere a former state has to be parsed and computed again, too, which costs more than the parts where
groups are many.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError
from processor.filter.aggregate.definition import compile_aggregates
from processor.filter.aggregate.group import FUNCTIONS
from processor.filter.functions import BUILT_IN
from processor.filter.parse import called_functions

if TYPE_CHECKING:
    from processor.config import ViewConfig
    from processor.filter.aggregate.definition import AggregateDefinition

_ARGUMENTS_MAX: Final = 8
"""Most arguments of the aggregates of plain records: `plain_records.pyx` has room for as many."""


def with_parts(view: ViewConfig, message_type: str) -> ViewConfig:
    """Return the settings of a view with groups with `partial_aggregation` decided, where it is not.

    Args:
        view: the settings.
        message_type: that of the underlying's records.
    """
    if view.partial_aggregation is not None:
        return view
    try:
        definition = compile_aggregates(view.group_by or {}, view.fields, view.having)
    except ConfigurationError:  # The check of the settings reports it.
        return view
    combines = message_type == "json" and not view.as_of and plain_members(definition, view) is not None
    return view.model_copy(update={"partial_aggregation": combines})


def plain_members(definition: AggregateDefinition, view: ViewConfig) -> list[bytes] | None:
    """Return the names, as JSON, of the grouping member and of the arguments, for records that need not be parsed.

    Returns:
        None: they have to be. The view has a filter, groups by several fields or by none, computes with fields, or has
        aggregates that need the records or their squares.
    """
    members = definition.simple_members
    if members is None or view.filter is not None or definition.not_combined or len(members) - 1 > _ARGUMENTS_MAX:
        return None
    names = [json.dumps(name).encode() for name in members]
    # A canonical text has no other names.
    return None if any(b"\\" in name for name in names) else names


def obstacle(definition: AggregateDefinition, view: ViewConfig, *, uses_metadata: bool) -> str | None:
    """Return the reason for which a view cannot combine; None: it can.

    A record's former value is computed again from its former state, of which the metadata are not kept.

    Args:
        definition: its aggregates.
        view: its settings.
        uses_metadata: whether its filter uses metadata.
    """
    if definition.not_combined:
        return f"{', '.join(definition.not_combined)} of parts of a group are not that of the group"
    if definition.uses_metadata or uses_metadata:
        return "the metadata of a record's former state are not kept"
    texts = [*view.fields.values(), *([] if view.filter is None else [view.filter])]
    if foreign := {name for text in texts for name in called_functions(text)} - FUNCTIONS - BUILT_IN.keys():
        return f"{', '.join(sorted(foreign))} may have another value for the same record later"
    return None
