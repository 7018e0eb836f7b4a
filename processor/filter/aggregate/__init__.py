"""Aggregates: the functions over the records of a group, and the definitions of views and aggregated subscriptions.

A group's row is a function of its members alone: of the arguments that each record contributes. Nothing depends on the
order in which members came and went, so a row that is computed again is the same row.

`moments` has the arithmetic, `extremes` the least and greatest values, `group` all aggregates of one group, and
`definition` the compiled text of a definition: from a record to its group and contribution, from a group to its row.
"""

from processor.filter.aggregate.columns import plain
from processor.filter.aggregate.definition import (
    AggregateDefinition,
    FieldsDefinition,
    compile_aggregates,
    compile_fields,
)
from processor.filter.aggregate.group import FUNCTIONS, CombinedGroup, Contribution, Group, GroupIncomplete

__all__ = [
    "FUNCTIONS",
    "AggregateDefinition",
    "CombinedGroup",
    "Contribution",
    "FieldsDefinition",
    "Group",
    "GroupIncomplete",
    "compile_aggregates",
    "compile_fields",
    "plain",
]
