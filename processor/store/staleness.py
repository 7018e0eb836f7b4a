"""Decides whether the store in a directory can still be a copy of its topic. No clock that is ahead makes it fresh."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from processor.store.contract import Progress, WipeReason

SKEW_MAX_MS: Final = 5 * 60 * 1000
"""How far ahead the clock of the writer may have been: its copy is as much older than it looks."""


def stale_reason(
    progress: Progress, end: int, horizon_ms: float, *, position: int | None = None
) -> tuple[WipeReason, str] | None:
    """The reason for wiping a copy, as a word and as a text; None if it can be used.

    Args:
        progress: the progress that is stored in the directory.
        end: the end of its partition of the topic.
        horizon_ms: how long tombstones stay in the topic.
        position: the position of the copy in memory, if that is further.
    """
    if max(progress.position, position or 0) > end:
        return "ahead", "it is ahead of the SOW topic, which must have been made anew"
    age_ms = time.time() * 1000 - progress.applied_at_ms
    if progress.position > 0 and age_ms > horizon_ms:
        return "too_old", "it is older than the topic's delete.retention.ms: deletes may be missing"
    if progress.position > 0 and age_ms < -SKEW_MAX_MS:
        return "too_old", "its last write lies in the future, so its age is not known: deletes may be missing"
    return None


def past_ms(timestamp_ms: int) -> int:
    """The time of a record, as the age of a copy is reckoned from it: now, for one from a clock that was ahead."""
    return min(timestamp_ms, int(time.time() * 1000))
