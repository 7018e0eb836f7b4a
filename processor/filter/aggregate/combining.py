"""The views that combine without parsing records: these have totals of each group and partition first.

There it pays: few parts are sent in place of one for each record, and a record's former state is read as text. In all
other views that state is parsed and computed again, which costs more than its part where groups are many.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from processor.filter.aggregate.definition import compile_aggregates

if TYPE_CHECKING:
    from processor.config import ViewConfig
    from processor.filter.aggregate.definition import AggregateDefinition

_ARGUMENTS_MAX: Final = 8
"""Most arguments of the aggregates of plain records: `plain_records.pyx` has room for as many."""


def combines_plainly(view: ViewConfig, message_type: str) -> bool:
    """Return whether a view with groups needs no parsing to combine.

    Args:
        view: its settings.
        message_type: that of the underlying's records.

    Raises:
        ConfigurationError: its definition cannot be used.
    """
    if message_type != "json" or view.as_of or view.filter is not None:
        return False
    definition = compile_aggregates(view.group_by or {}, view.fields, view.having)
    return plain_members(definition, view) is not None


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
