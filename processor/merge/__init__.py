"""Applies commands to records: pure functions on parsed values, no input or output, no message type.

Three promises of every function here:

- Records are changed **in place**: the caller owns it, fresh from a parser or a copy.
- A `Change` **shares** its values with the record and the delta it came from. Encode it before the record is merged
  into again.
- Names and values are compared strictly: `1`, `1.0`, `True` and `"1"` are four values, so are `0.0` and `-0.0`.

Sequence groups and merge rules come before a merge and change the update: `compile_rules` once, then for each update
the steps that `GroupedUpdate` names, with `merge`, `insert` or `diff` between them as without rules.
"""

from processor.merge.conflation import add_touched, conflated_delta, touch
from processor.merge.delta import apply_delta, check_removable, diff, removal_paths, remove_path, remove_paths
from processor.merge.fold import Merge, MergePolicy, compile_merge, insert, merge
from processor.merge.grouped_update import GroupedUpdate
from processor.merge.key import KeyFields
from processor.merge.rules import Rules, compile_rules
from processor.values.kinds import strictly_equal
from processor.values.pointer import Touched

__all__ = [
    "GroupedUpdate",
    "KeyFields",
    "Merge",
    "MergePolicy",
    "Rules",
    "Touched",
    "add_touched",
    "apply_delta",
    "check_removable",
    "compile_merge",
    "compile_rules",
    "conflated_delta",
    "diff",
    "insert",
    "merge",
    "removal_paths",
    "remove_path",
    "remove_paths",
    "strictly_equal",
    "touch",
]
