"""Why an update is rejected on which a message type or a function of a filter raises."""

from __future__ import annotations

from processor.errors import RecordRejected, SowstreamError


def rejection(error: Exception) -> RecordRejected:
    """What to reject an update with on which this was raised.

    It must not get any further: updates are looked at when their key is due, and what is raised by the clock ends the
    worker, and every successor of it.

    Raises:
        Exception: it is no fault of the update.
    """
    if isinstance(error, RecordRejected):
        return error
    if isinstance(error, SowstreamError | MemoryError):
        raise error
    return RecordRejected("plugin_failed", f"{type(error).__name__}: {error}")
