"""Decides whether the store in a directory can still be a copy of its topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from processor.store.contract import Progress, WipeReason


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
    if progress.position > 0 and time.time() * 1000 - progress.applied_at_ms > horizon_ms:
        return "too_old", "it is older than the topic's delete.retention.ms: deletes may be missing"
    return None
