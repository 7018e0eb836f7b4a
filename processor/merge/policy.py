"""How deltas of one topic merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """The part of a topic's settings that decides what a delta does."""

    null_policy: Literal["ignore", "set", "remove"] = "ignore"
    """A null in a delta is as if missing, is a value, or removes the field."""
    merge_depth: int | None = None
    """Levels of objects that merge; those below are replaced whole, as they are. None: any depth; 1: no nested one."""

    def __post_init__(self) -> None:
        """Refuse a depth at which not even the record itself would merge."""
        if self.merge_depth is not None and self.merge_depth < 1:
            raise ValueError(f"merge_depth is {self.merge_depth}; it must be at least 1, or None for any depth")
