"""Whether what a directory holds can still be a copy of its topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from processor.store.contract import Progress, WipeReason


def stale_reason(
    progress: Progress, end: int, horizon_ms: float, *, position: int | None = None
) -> tuple[WipeReason, str] | None:
    """Why a copy is to be wiped, as a word and for people; None if it may be gone on with.

    Args:
        progress: what the directory says of itself.
        end: where its partition of the topic ends.
        horizon_ms: how long deletes stay in the topic.
        position: how far the copy has come in memory, if that is further.
    """
    if max(progress.position, position or 0) > end:
        return "ahead", "it is ahead of the SOW topic, which must have been made anew"
    if progress.position > 0 and time.time() * 1000 - progress.applied_at_ms > horizon_ms:
        return "too_old", "it is older than the topic's delete.retention.ms: deletes may be missing"
    return None
