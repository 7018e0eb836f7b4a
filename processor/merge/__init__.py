"""Applies commands to records: pure functions on parsed values, no input or output, no message type.

Three promises of every function here:

- Records are changed **in place**: the caller owns it, fresh from a parser or a copy.
- A `Change` **shares** its values with the record and the delta it came from. Encode it before the record is merged
  into again.
- Names and values are compared strictly: `1`, `1.0`, `True` and `"1"` are four values, so are `0.0` and `-0.0`.

Sequence groups and merge rules come before a merge and change the delta: `compile_rules` once, then for each update the
steps that `Rules` names, with `merge`, `insert` or `diff` between them as without rules.
"""

from processor.merge.apply import apply_delta, remove_paths
from processor.merge.conflation import add_touched, conflated_delta, touch
from processor.merge.diff import diff
from processor.merge.field_rule import rule_names
from processor.merge.fold import Merge, MergePolicy, compile_merge, insert, merge
from processor.merge.key import KeyFields
from processor.merge.rules import Rules, compile_rules
from processor.merge.sequence_group import SequenceGroup
from processor.values.equality import strictly_equal
from processor.values.pointer import Touched

__all__ = [
    "KeyFields",
    "Merge",
    "MergePolicy",
    "Rules",
    "SequenceGroup",
    "Touched",
    "add_touched",
    "apply_delta",
    "compile_merge",
    "compile_rules",
    "conflated_delta",
    "diff",
    "insert",
    "merge",
    "remove_paths",
    "rule_names",
    "strictly_equal",
    "touch",
]
